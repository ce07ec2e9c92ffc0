"""Run folders that 0.1.0 wrote are resumed and evaluated by this version; they lie in `runs_of_0_1_0`."""

import math
import shutil
from pathlib import Path

import pytest
import torch
from rich.console import Console

from rlightning.assembly.assemble import assemble
from rlightning.checkpoint import load_state
from rlightning.commands.run import resume
from rlightning.configuring.changes import open_folder
from rlightning.observability.sinks import read_metrics

RUNS = Path(__file__).parent / "runs_of_0_1_0"
QUIET = Console(quiet=True)
IMPORTED = "imports: [own_policy.py]"


@pytest.fixture
def folder(request, tmp_path):
    copied = shutil.copytree(RUNS / request.param, tmp_path / request.param, symlinks=True)
    config = (copied / "config.yaml").read_text()
    # 0.1.0 wrote the absolute path of the file of the policy, which lies elsewhere now.
    config = config.replace(IMPORTED, f"imports: ['{RUNS / 'own' / 'own_policy.py'}']")
    assert "max_epochs: 2," in config
    (copied / "config.yaml").write_text(config.replace("max_epochs: 2,", "max_epochs: 3,"))
    return copied


EVERY_RUN = pytest.mark.parametrize("folder", sorted(path.name for path in RUNS.iterdir()), indirect=True)


@EVERY_RUN
def test_the_weights_and_counters_of_an_earlier_version_are_loaded_exactly(folder):
    stored = load_state(folder / "checkpoints" / "last")
    with assemble(open_folder(folder).config) as engine:
        engine.resume(folder / "checkpoints" / "last")
        loaded = engine.get_state()
    assert loaded["engine"]["epoch"] == stored["engine"]["epoch"] == 2
    assert loaded["engine"]["env_steps"] == stored["engine"]["env_steps"]
    for name, tensor in stored["policy"]["train"]["modules"].items():
        assert torch.equal(loaded["policy"]["train"]["modules"][name], tensor), name
    moments = {name: value["state"] for name, value in stored["policy"]["train"]["optimizers"].items()}
    for name, state in moments.items():
        for index, held in state.items():
            for key, tensor in held.items():
                found = loaded["policy"]["train"]["optimizers"][name]["state"][index][key]
                assert torch.equal(torch.as_tensor(found), torch.as_tensor(tensor)), (name, index, key)
    assert len(loaded["policy"]["train_peers"]) == len(stored["policy"]["train_peers"])


@EVERY_RUN
def test_a_run_of_an_earlier_version_is_trained_on_and_evaluated(folder):
    resume(open_folder(folder), QUIET)
    rows = read_metrics(folder / "metrics.jsonl")
    assert [row["step"] for row in rows] == sorted({row["step"] for row in rows})
    assert rows[-1]["step"] > rows[-2]["step"]
    assert load_state(folder / "checkpoints" / "last", ["engine"])["engine"]["epoch"] == 3
    assert math.isfinite(rows[-1]["eval/return_mean"])
