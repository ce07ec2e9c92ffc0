"""Seeds differ wherever two sub-envs differ, and repeat wherever nothing does."""

import itertools

import numpy as np
import pytest

from rlightning.config import EnvConfig
from rlightning.env import EnvGroup, EnvWorker
from rlightning.env.seeding import joint_seed, sub_env_seeds
from rlightning.runtime import gather
from rlightning.simulators.gymnasium import GymnasiumEnv
from rlightning.types import BatchedData, PolicyResponse

RANDOM = EnvConfig(name="tests.env.doubles:RandomEnv", num_envs=4)
SAMPLING = EnvConfig(name="tests.env.doubles:SamplingEnv", num_envs=4)
NATIVE = EnvConfig(name="tests.env.doubles:NumpyVector", num_envs=4)


def first_observations(workers, count=5):
    """The first reset observations of all sub-envs, as tuples; RandomEnv stays where it started for 4 steps."""
    group = EnvGroup(workers)
    responses = BatchedData(group.env_ids, [PolicyResponse(np.zeros(4, np.int64)) for _ in workers])
    starts = gather(group.reset().items)
    found = [tuple(row) for ret in starts for row in ret.observation.tolist()]
    for _ in range(count - 1):
        for _ in range(4):
            rets = gather(group.step(responses).items)
        found += [tuple(row) for ret in rets for row in ret.observation.tolist()]
    return found


def three_workers(make, seed):
    return [make(EnvWorker, GymnasiumEnv, RANDOM, index, seed) for index in range(3)]


def here(cls, *args):
    return cls(*args)


def test_the_first_episodes_of_twelve_envs_differ_and_repeat(runtime):
    # C08: 3 workers of 4 envs, 5 resets each: 60 starts.
    found = first_observations(three_workers(runtime.make, 7))
    assert len(found) == len(set(found)) == 60
    assert found == first_observations(three_workers(here, 7))


def test_another_seed_gives_other_episodes():
    assert not set(first_observations(three_workers(here, 7))) & set(first_observations(three_workers(here, 8)))


def test_a_worker_that_replaces_another_one_plays_new_episodes():
    old = first_observations([EnvWorker(GymnasiumEnv, RANDOM, 1, 7)])
    new = first_observations([EnvWorker(GymnasiumEnv, RANDOM, 1, 7, "train", 1)])
    assert not set(old) & set(new)


def test_a_worker_that_is_restarted_plays_new_episodes():
    worker = EnvWorker(GymnasiumEnv, RANDOM, 1, 7)
    before = worker.reset().observation
    after = worker.restart(1).observation
    assert not (before == after).any()
    assert (after == EnvWorker(GymnasiumEnv, RANDOM, 1, 7, "train", 1).reset().observation).all()


def test_a_second_reset_goes_on_and_a_reseeded_one_repeats():
    worker = EnvWorker(GymnasiumEnv, RANDOM, 0, 7)
    first, second = worker.reset().observation, worker.reset().observation
    assert not (first == second).any()
    assert (worker.reset(reseed=True).observation == first).all()
    assert (worker.reset().observation == second).all()


def test_training_and_evaluation_share_no_episode():
    train = first_observations([EnvWorker(GymnasiumEnv, RANDOM, 0, 7)])
    evaluation = first_observations([EnvWorker(GymnasiumEnv, RANDOM, 0, 7, "eval")])
    assert not set(train) & set(evaluation)


def test_the_rows_of_a_vector_env_that_takes_one_seed_differ_too():
    workers = [EnvWorker(GymnasiumEnv, NATIVE, index, 7) for index in range(3)]
    found = [tuple(row) for worker in workers for row in worker.reset().observation.tolist()]
    assert len(set(found)) == 12
    again = EnvWorker(GymnasiumEnv, NATIVE, 2, 7).reset().observation
    assert [tuple(row) for row in again.tolist()] == found[8:]


def test_envs_that_draw_from_spaces_of_their_class_differ_and_repeat():
    def starts(seed):
        workers = [EnvWorker(GymnasiumEnv, SAMPLING, index, seed) for index in range(2)]
        return [tuple(row) for _ in range(3) for each in workers for row in each.reset().observation.tolist()]

    assert len(set(starts(7))) == 3 * 2 * 4
    assert starts(7) == starts(7)
    assert not set(starts(7)) & set(starts(8))


def test_no_two_places_of_a_run_share_a_seed():
    places = itertools.product(range(3), ["train", "eval"], range(20), range(3))
    seeds = [seed for place in places for seed in sub_env_seeds(*place, 10)]
    # 3600 of 2^31 numbers: by chance two of them would agree with probability 0.003; these do not.
    assert len(seeds) == len(set(seeds)) == 3600
    assert all(0 <= seed < 2**31 for seed in seeds)


@pytest.mark.parametrize("count", [1, 5])
def test_the_number_of_sub_envs_does_not_change_the_seeds_of_the_first(count):
    assert sub_env_seeds(7, "train", 3, 0, count) == sub_env_seeds(7, "train", 3, 0, 8)[:count]


def test_a_joint_seed_depends_on_every_seed():
    assert len({joint_seed([1, 2]), joint_seed([1, 3]), joint_seed([2, 1]), joint_seed([1])}) == 4
