"""The same script on a GPU: `make gpu` runs these where there is one."""

import math

import pytest

from rlightning.device import available_gpus
from rlightning.observability.sinks import read_metrics
from tests.faults.processes import program

SMALL = ["train.max_epochs=2", "train.save_dir=.", "log.name=run", "log.progress=false", "log.backend=[]", "seed=3"]
CHECKED = ["policy.weight_buffer.verify_interval=1", *SMALL]
"""Every push is compared bit for bit; a difference ends the run."""
LOCAL = ["policy.train_num_gpus=1", "policy.eval_num_gpus=1"]
REMOTE = [
    "cluster.remote_train=true",
    "cluster.remote_eval=true",
    "cluster.eval_worker_num=2",
    "env.num_workers=2",
    "env.num_envs=4",
    "policy.train_num_gpus=0.5",
    "policy.eval_num_gpus=0.25",
]
needs_gpu = pytest.mark.skipif(not available_gpus(), reason="needs a GPU")


def train(folder, *options):
    """Train; gives the metrics of the last epoch."""
    with program(["-m", "rlightning", "train", *options], folder) as run:
        code, _ = run.end(500)
        assert code == 0, run.errors
    return read_metrics(folder / "run" / "metrics.jsonl")[-1]


@pytest.mark.gpu
@needs_gpu
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "options",
    [
        pytest.param(LOCAL, id="one process"),
        pytest.param([*LOCAL, "cluster.enable_offload=true"], id="one process, offloaded"),
        pytest.param([*LOCAL, "policy.compile=true"], id="one process, compiled"),
        *(
            pytest.param([*REMOTE, f"policy.weight_buffer.buffer_strategy={strategy}"], id=strategy)
            for strategy in ("None", "Double", "Shared", "Sharded")
        ),
        pytest.param([*REMOTE, "policy.weight_buffer.transport=object_store"], id="object store"),
        pytest.param([*REMOTE, "cluster.eval_worker_num=1", "cluster.is_colocated=true"], id="colocated"),
        pytest.param([*REMOTE, "cluster.enable_offload=true"], id="offloaded"),
    ],
)
def test_ppo_trains_and_every_push_arrives_bit_for_bit(tmp_path, options):
    metrics = train(tmp_path, "ppo_cartpole", *CHECKED, *options)
    assert metrics["progress/epoch"] == 2
    assert math.isfinite(metrics["train/policy_loss"])


@pytest.mark.gpu
@needs_gpu
@pytest.mark.timeout(600)
def test_the_first_update_is_that_of_the_cpu_up_to_rounding(tmp_path):
    losses = []
    for place, options in (("cpu", []), ("gpu", LOCAL)):
        (tmp_path / place).mkdir()
        # The actions of both follow from one generator only if both act on the CPU.
        options = [*options, "policy.eval_num_gpus=0"]
        losses.append(train(tmp_path / place, "ppo_cartpole", *SMALL, *options, "train.max_epochs=1"))
    for name in ("train/value_loss", "train/explained_variance"):
        assert losses[1][name] == pytest.approx(losses[0][name], rel=0.05, abs=0.02)
