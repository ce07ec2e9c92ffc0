"""A worker imports what it needs: with many of them, what one imports is what a run takes to start."""

import subprocess
import sys

import pytest

from rlightning.config import EnvConfig
from rlightning.env.env_worker import EnvWorker
from rlightning.registry import lookup
from rlightning.runtime import as_handle
from rlightning.runtime.spawn import WorkerPool, WorkerSetup, WorkerSpec
from tests.architecture.source import ROOT

WORKERS = {
    "env worker": ("rlightning.env.env_worker, rlightning.simulators.gymnasium, rlightning.runtime.spawn", "torch"),
    "env worker of mujoco": (
        "rlightning.env.env_worker, rlightning.simulators.mujoco.env, rlightning.runtime.spawn",
        "torch",
    ),
    "policy": ("rlightning.algorithms.ppo, rlightning.runtime.spawn", "tensordict"),
}
"""Modules that a worker's class comes with, and what it must do without."""


@pytest.mark.parametrize(("modules", "heavy"), WORKERS.values(), ids=WORKERS)
def test_a_worker_starts_without_what_it_does_not_need(modules, heavy):
    program = f"import sys; import {modules}; sys.exit({heavy!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=100).returncode == 0


@pytest.mark.slow
def test_a_run_that_compiles_nothing_loads_no_compiler(tmp_path):
    program = (
        "import sys\n"
        "from rlightning import assemble, launch\n"
        "from rlightning.checkpoint import save_state\n"
        "def train(config):\n"
        "    with assemble(config) as engine:\n"
        "        engine.start()\n"
        "        engine.run_epoch()\n"
        f"        engine.resume(save_state('{tmp_path}/saved', engine.get_state()))\n"
        f"launch(train, 'ppo_cartpole', ['train.save_dir={tmp_path}', 'train.max_epochs=1', 'log.progress=false'])\n"
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    outcome = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert outcome.returncode == 0, outcome.stderr


def imported(_worker, name):
    import sys

    return name in sys.modules


@pytest.mark.ray
def test_the_process_of_an_env_worker_has_no_torch(ray_cluster, tmp_path):
    from rlightning.runtime import ray_backend

    pool = WorkerPool(setup=WorkerSetup(seed=1, log_dir=tmp_path))
    args = (lookup("simulator", "gymnasium"), EnvConfig(name="CartPole-v1"), 0, 7, "train")
    try:
        (worker,) = pool.start([WorkerSpec(EnvWorker, args, "env[0]", True, num_cpus=0.01)])
        # Sent as code, since this module is of the tests and imports torch.
        ray_backend.pickle_by_value(sys.modules[__name__])
        assert not as_handle(worker).run(imported, "torch").result(60)
        assert as_handle(worker).run(imported, "gymnasium").result(60)
    finally:
        pool.stop()
