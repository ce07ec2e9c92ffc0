"""A policy that was trained acts in plain Python as it does in its run."""

import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch

from rlightning import load_policy
from rlightning.assembly.assemble import assemble
from rlightning.checkpoint import load_state, save_state
from rlightning.configuring.changes import open_folder
from rlightning.errors import CheckpointError, ConfigError, ProtocolError, ShapeError
from rlightning.types import EnvRet
from rlightning.types.tree import tree_leaves, tree_map
from tests.deployment.kinds import KINDS


@pytest.fixture(scope="module")
def vectors(runs):
    return load_policy(runs("vectors"))


def observations(space, n=5):
    space.seed(3)
    drawn = [space.sample() for _ in range(n)]
    return drawn, tree_map(lambda *leaves: np.stack(leaves), *drawn)


def as_stored(rows):
    """Observations leave an env as float32 where they are float64."""
    return tree_map(lambda leaf: leaf.astype(np.float32) if leaf.dtype == np.float64 else leaf, rows)


@pytest.mark.parametrize("kind", KINDS)
def test_a_loaded_policy_acts_as_in_its_run(kind, runs):
    policy = load_policy(runs(kind), checkpoint="last")
    single, rows = observations(policy.observation_space)
    with assemble(open_folder(runs(kind)).config) as engine:
        engine.resume(runs(kind) / "checkpoints" / "last")
        actor = engine.policy_group.eval_list[0]
        request = EnvRet.from_reset(as_stored(rows), 5)
        expected = actor._rollout_batch(request, deterministic=True, env_ids=(7,))[0].action_for_env
    actions = policy.act(rows)
    for got, wanted in zip(tree_leaves(actions), tree_leaves(expected), strict=True):
        np.testing.assert_array_equal(got, wanted)
    assert all(policy.action_space.contains(action) for action in actions)
    policy.reset()
    alone = policy.act(single[0])
    assert policy.action_space.contains(alone)
    np.testing.assert_allclose(alone, actions[0], rtol=1e-5, atol=1e-6)
    assert policy.version == 2


def test_the_state_of_a_recurrent_policy_follows_reset(runs):
    policy = load_policy(runs("recurrent"))
    hidden = policy.policy.hidden
    rows = np.ones((2, 3), np.float32)
    request = EnvRet.from_reset(torch.zeros(2, 3), 2)
    for _ in range(3):
        policy.act(rows)

    def counts():
        request.env_id, request.row = torch.zeros(2, dtype=torch.long), torch.arange(2)
        request.is_first = torch.zeros(2, dtype=torch.bool)
        return hidden.get(request)[:, 4].tolist()

    assert counts() == [3, 3]
    policy.reset([1])
    policy.act(rows)
    assert counts() == [4, 1]
    with pytest.raises(ProtocolError, match=r"2 rows and this one has 3.*call reset\(\)"):
        policy.act(np.ones((3, 3), np.float32))
    policy.reset()
    policy.act(rows)
    assert counts() == [1, 1]


def test_a_checkpoint_alone_is_enough_and_loads_neither_ray_nor_a_simulator(runs, tmp_path, vectors):
    copied = shutil.copytree(runs("vectors") / "checkpoints" / "last", tmp_path / "moved")
    program = (
        "import sys, numpy as np\n"
        "from rlightning import load_policy\n"
        f"policy = load_policy({str(copied)!r})\n"
        "print(policy.act(np.array([0.01, 0.02, -0.03, 0.04])), policy.meta.rate_hz)\n"
        "unwanted = ('ray', 'mujoco', 'hydra', 'matplotlib', 'rlightning.simulators')\n"
        "assert [name for name in unwanted if name in sys.modules] == []\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(vectors.act(np.array([0.01, 0.02, -0.03, 0.04]))), "50.0"]


def test_sampled_actions_follow_from_the_seed(runs):
    def sampled(seed):
        policy = load_policy(runs("vectors"), seed=seed)
        return [int(policy.act(np.zeros(4), deterministic=False)) for _ in range(32)]

    assert sampled(1) == sampled(1)
    assert sampled(1) != sampled(2)
    assert len(set(sampled(1))) == 2


@pytest.mark.parametrize(
    ("observation", "message"),
    [
        (np.zeros(3), r"shape \[3\]; \[4\] or \[N, ...\] of it expected"),
        (np.zeros((2, 3, 4)), r"shape \[2, 3, 4\]"),
        (np.zeros((0, 4)), "has no row"),
        (np.array([0.0, np.nan, 0.0, 0.0]), "not finite"),
        (["a", "b", "c", "d"], "dtype"),
        ({"image": 1}, r"shape \[\]; \[4\]"),
    ],
)
def test_what_is_no_observation_is_refused(observation, message, vectors):
    with pytest.raises(ShapeError, match=message):
        vectors.act(observation)


def test_lists_and_tensors_are_observations(vectors):
    wanted = vectors.act(np.array([0.0, 1.0, 0.0, 1.0]))
    assert wanted == vectors.act([0, 1, 0, 1]) == vectors.act(torch.tensor([0.0, 1.0, 0.0, 1.0]))


def test_a_dict_without_a_part_is_named(runs):
    policy = load_policy(runs("dict"))
    observation = policy.observation_space.sample()
    del observation["mode"]
    with pytest.raises(ShapeError, match="no part 'mode'"):
        policy.act(observation)


def test_a_checkpoint_of_an_older_version_builds_its_env_once(runs, tmp_path, caplog):
    old = shutil.copytree(runs("vectors"), tmp_path / "old", symlinks=True)
    for name in ("last", "best"):
        folder = (old / "checkpoints" / name).resolve()
        states = load_state(folder)
        states.pop("spec", None)
        save_state(folder, states)
    assert load_policy(old).observation_space.shape == (4,)
    assert "one env of the run is built" in caplog.text
    alone = shutil.copytree((old / "checkpoints" / "last").resolve(), tmp_path / "alone")
    with pytest.raises(CheckpointError, match="older version"):
        load_policy(alone)


def test_nonsense_is_refused_by_name(tmp_path, runs):
    with pytest.raises(CheckpointError, match="neither the folder of a run nor that of a checkpoint"):
        load_policy(tmp_path)
    with pytest.raises(CheckpointError, match="no checkpoint 'epoch-7'"):
        load_policy(runs("vectors"), checkpoint="epoch-7")
    with pytest.raises(ConfigError, match=r"imports\.0: cannot import 'no_such_module'"):
        load_policy(runs("vectors"), imports=["no_such_module"])
