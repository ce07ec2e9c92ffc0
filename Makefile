# Every command works in a fresh clone: it makes the virtual environment that it needs, with the pinned versions of
# constraints.txt, and does nothing twice. `make help` lists the commands.
#
#   PYTHON     the interpreter to build the environment with (3.11 or later)
#   VENV       where the environment lies
#   PIP_FLAGS  further arguments for pip, such as an index of CPU-only builds of torch
#   WORKERS    processes that run tests side by side; auto is one per core
#   PRESET     what `make train` trains, and ARGS its overrides: make train PRESET=ppo_cartpole ARGS="seed=1"

PYTHON    ?= python3
VENV      ?= .venv
PIP_FLAGS ?=
WORKERS   ?= auto
PRESET    ?= ppo_halfcheetah
ARGS      ?=

BIN := $(VENV)/bin
# Compiled is what is imported, when it is first imported, and once for all processes.
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --no-compile -c constraints.txt $(PIP_FLAGS)
unexport PYTHONDONTWRITEBYTECODE
PYTEST := $(BIN)/pytest -n $(WORKERS) --maxprocesses 8

.DEFAULT_GOAL := help
.PHONY: help train test check quick tests lint format types imports exhaustive gpu docs bench guard size clean

help:  ## list the commands
	@sed -n 's/^\([a-z]*\):.*## */  make \1|/p' Makefile | awk -F'|' '{printf "%-14s %s\n", $$1, $$2}'

train: $(VENV)/stamp-run  ## set everything up and train the main preset
	$(BIN)/rlightning train $(PRESET) $(ARGS)

test: check  ## set everything up and run every check

check: $(VENV)/stamp-dev  ## all checks: format, lint, types, layers, docs, tests and doctests
	@# The other checks fill the time in which tests wait.
	$(MAKE) -j2 --output-sync=target tests lint imports types docs

quick: $(VENV)/stamp-dev  ## the tests that take seconds
	$(PYTEST) -m "not slow and not exhaustive"

tests: $(VENV)/stamp-dev  ## the quick tests and the slow ones
	$(PYTEST) -m "not exhaustive"

lint: $(VENV)/stamp-dev  ## format and lint, without changing a file
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

format: $(VENV)/stamp-dev  ## bring the files into shape
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

types: $(VENV)/stamp-dev  ## mypy, strict
	$(BIN)/mypy

imports: $(VENV)/stamp-dev  ## who may import whom
	$(BIN)/lint-imports

exhaustive: $(VENV)/stamp-dev  ## the variants that `make tests` leaves out, since they would take it beyond half an hour
	$(PYTEST) -m exhaustive

gpu: $(VENV)/stamp-dev  ## the tests that need a GPU, for a machine that has one
	$(BIN)/pytest -m gpu

docs: $(VENV)/stamp-dev  ## build docs/_build/html; a warning is an error
	$(BIN)/sphinx-build -W --keep-going -n -q -b html docs docs/_build/html

bench: $(VENV)/stamp-run benchmarks/.venvs/stamp  ## measure everything, two hours; writes docs/benchmarks.md
	$(BIN)/python benchmarks/step_overhead.py > benchmarks/results/step_overhead.jsonl
	$(BIN)/python benchmarks/startup.py > benchmarks/results/startup.jsonl
	$(BIN)/python benchmarks/growth.py > benchmarks/results/growth.jsonl
	$(BIN)/python benchmarks/mujoco_batch.py > benchmarks/results/mujoco_batch.jsonl
	$(BIN)/python benchmarks/weight_push.py > benchmarks/results/weight_push.jsonl
	$(BIN)/python benchmarks/ppo_throughput.py > benchmarks/results/ppo_throughput.jsonl
	$(BIN)/python benchmarks/ppo_throughput.py --envs HalfCheetah-v5 --arms rlightning ray-fragments ray-steps rllib \
	  > benchmarks/results/ray_collection.jsonl
	$(BIN)/python benchmarks/scaling.py > benchmarks/results/scaling.jsonl
	$(BIN)/python benchmarks/cartpole_to_475.py > benchmarks/results/cartpole_to_475.jsonl
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/preset_seeds.py > benchmarks/results/preset_seeds.jsonl
	$(BIN)/python benchmarks/learning_curves.py > benchmarks/results/learning_curves.jsonl
	$(BIN)/python benchmarks/rollout_batch.py > benchmarks/results/rollout_batch.jsonl
	$(BIN)/python benchmarks/placement_plan.py > benchmarks/results/placement_plan.jsonl
	$(BIN)/python benchmarks/page.py

size: $(VENV)/stamp-dev  ## lines per room, methods, cycles of imports
	$(BIN)/python -m tests.architecture.size

guard: $(VENV)/stamp-run  ## a minute: has PPO become slower, beside a hand-written loop
	$(BIN)/python benchmarks/guard.py

clean:  ## remove the environment, builds and caches; runs are kept
	rm -rf $(VENV) benchmarks/.venvs build dist docs/_build docs/_generated .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp is made last, so that an installation that broke off is done again.

$(VENV)/stamp-venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "RLightning needs Python 3.11 or later; name one: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(VENV)/stamp-run: pyproject.toml constraints.txt | $(VENV)/stamp-venv
	@echo "installing RLightning and what it needs into $(VENV)"
	$(PIP) -e .
	@touch $@

$(VENV)/stamp-dev: pyproject.toml constraints.txt | $(VENV)/stamp-venv
	@echo "installing RLightning, what it needs and the tools for checks into $(VENV)"
	$(PIP) -e ".[dev]"
	@touch $(VENV)/stamp-run $@

benchmarks/.venvs/stamp: benchmarks/peers.sh $(wildcard benchmarks/constraints-*.txt) | $(VENV)/stamp-venv
	PYTHON="$(abspath $(BIN)/python)" benchmarks/peers.sh
	@touch $@
