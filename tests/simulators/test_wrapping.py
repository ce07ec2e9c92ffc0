"""Wrappers by name, what ``info`` says of episodes, and texts as token ids."""

import gymnasium as gym
import numpy as np
import pytest

from rlightning import register
from rlightning.checkpoint import load_state, save_state
from rlightning.config import EnvConfig
from rlightning.configuring.load import load_config
from rlightning.engine.evaluation import EvalResult, info_means
from rlightning.env import BaseEnv, EnvWorker
from rlightning.env.text import Tokenizer
from rlightning.errors import ConfigError, UnsupportedSpace, WorkerError
from rlightning.registry import lookup
from rlightning.simulators.gymnasium import GymnasiumEnv
from rlightning.types import EnvMeta, EnvRet, PolicyResponse, TokenIds

DOUBLES = "tests.env.doubles:"
ZEROS = PolicyResponse(np.zeros(2, np.int64))


def worker(name="GridEnv", **options):
    return EnvWorker(GymnasiumEnv, EnvConfig(name=DOUBLES + name, num_envs=2, **options), 0, 7)


def run(env_worker, steps):
    env_worker.reset()
    return [env_worker.step(ZEROS) for _ in range(steps)]


def wrappers(*entries):
    return [dict(zip(("name", "arguments"), entry, strict=False)) for entry in entries]


def test_wrappers_are_applied_in_order():
    # Doubled, then cut to at most 150: 100 episode + step is 101 in the first step, which gives 150 and not 202.
    clipped = worker("CountingEnv", wrappers=wrappers([f"{DOUBLES}Doubled"], ["ClipReward", {"max_reward": 150}]))
    assert run(clipped, 1)[0].reward.tolist() == [150, 150]
    doubled = worker("CountingEnv", wrappers=wrappers(["ClipReward", {"max_reward": 50}], [f"{DOUBLES}Doubled"]))
    assert run(doubled, 1)[0].reward.tolist() == [100, 100]


def test_frames_are_stacked_per_sub_env_and_stored(tmp_path):
    stack = wrappers(["FrameStackObservation", {"stack_size": 3}], ["NormalizeReward"])
    watched, fresh = (worker("CountingEnv", wrappers=stack) for _ in range(2))
    last = run(watched, 2)[-1]
    assert watched.get_meta().observation_space.shape == (3, 2)
    assert last.observation[1].tolist() == [[1, 0], [1, 1], [1, 2]]
    save_state(tmp_path / "state", {"env": watched.get_state()})
    fresh.set_state(load_state(tmp_path / "state")["env"])
    for _ in range(10):
        expected, found = watched.step(ZEROS), fresh.step(ZEROS)
        np.testing.assert_array_equal(found.observation, expected.observation)
        np.testing.assert_array_equal(found.reward, expected.reward)


def test_a_wrapper_that_repeats_actions_makes_each_step_longer():
    repeat = ["RepeatAction", {"num_repeats": 2}]
    assert worker("KeepingEnv").get_meta().rate_hz == 20
    assert (
        worker("KeepingEnv", wrappers=wrappers(repeat, ["ClipReward", {"max_reward": 1}], repeat)).get_meta().rate_hz
        == 5
    )


def test_an_env_with_a_vector_implementation_is_wrapped_as_a_plain_one():
    cartpole = EnvWorker(GymnasiumEnv, EnvConfig(name="CartPole-v1", wrappers=wrappers(["TimeAwareObservation"])), 0, 7)
    assert cartpole.get_meta().observation_space.shape == (5,)


@pytest.mark.parametrize(
    ("entries", "others", "path", "message"),
    [
        (["FrameStackObservations"], [], "env.wrappers.0.name", "did you mean 'FrameStackObservation'"),
        (["Autoreset"], [], "env.wrappers.0.name", "start the next episode themselves"),
        ([f"{DOUBLES}GridEnv"], [], "env.wrappers.0.name", "no class of gymnasium.Wrapper"),
        ([f"{DOUBLES}Doubledd"], [], "env.wrappers.0.name", f"did you mean '{DOUBLES}Doubled'"),
        (["no_module:Mine"], [], "env.wrappers.0.name", "no module 'no_module'"),
        (
            ["ClipReward", {"max_rewards": 1}],
            [],
            "env.wrappers.0.arguments",
            "did you mean 'env.wrappers.0.arguments.max_reward'",
        ),
        (
            ["FrameStackObservation", {"stack_sice": 3}],
            [],
            "env.wrappers.0.arguments",
            "no argument 'stack_sice'; it has stack_size, padding_type; did you mean",
        ),
        (["TransformReward"], [], "env.wrappers.0.arguments", "missing a required argument: 'func'"),
        (["ClipAction"], ["env.vectorization=native"], "env.vectorization", "around plain envs"),
        (["ClipAction"], ["env.backend=mujoco", "env.name=Ant-v5"], "env.wrappers", "remove them"),
    ],
)
def test_wrappers_that_cannot_be_used_are_refused_before_the_start(entries, others, path, message):
    (entry,) = wrappers(entries)
    arguments = ", ".join(f"{key}: {value}" for key, value in entry.get("arguments", {}).items())
    listed = f"{{name: '{entry['name']}', arguments: {{{arguments}}}}}"
    with pytest.raises(ConfigError) as caught:
        load_config("ppo_cartpole", [f"env.wrappers=[{listed}]", *others])
    found = {problem.path: str(problem) for problem in caught.value.problems}
    assert message in found[path]


def test_a_wrapper_that_does_not_fit_the_env_is_named():
    with pytest.raises(ConfigError, match=r"env\.wrappers\.0: RescaleAction cannot be put around .*CountingEnv"):
        worker("CountingEnv", wrappers=wrappers(["RescaleAction", {"min_action": -1, "max_action": 1}]))


def test_success_and_named_numbers_of_info_are_averaged_over_episodes():
    grid = worker(logged_info=["carried"])
    run(grid, 4)
    episodes = grid.pop_episodes()
    # Each sub-env succeeds after 2 steps; its second episode is not over.
    assert [episode.info for episode in episodes] == [{"is_success": 1.0, "carried": 2.0}] * 2
    grid.step(ZEROS)
    episodes += grid.pop_episodes()
    expected = {"episode/success_rate": 0.5, "episode/info/carried": 2.5}
    assert info_means(episodes, "episode") == expected
    result = EvalResult(tuple(episodes))
    assert result.metrics()["eval/success_rate"] == 0.5
    assert "success     50% of the episodes" in result.describe()


def test_success_rates_of_tasks_are_told_apart():
    episodes = []
    for task in ("easy", "hard"):
        each = worker(task=task)
        run(each, 2 if task == "easy" else 5)
        episodes += each.pop_episodes()
    means = info_means(episodes, "eval")
    assert means["eval/success_rate/easy"] == 1.0
    assert means["eval/success_rate/hard"] == 0.5


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_vector_envs_say_success_in_every_autoreset_mode(mode):
    vector = worker("successful_vector", env_kwargs={"mode": mode})
    run(vector, 15)
    # Episodes of 7 steps; the first fails, the second succeeds.
    assert [episode.info for episode in vector.pop_episodes()] == [{"is_success": 0.0}] * 2 + [{"is_success": 1.0}] * 2


def test_a_name_that_info_lacks_is_said_once(caplog):
    grid = worker(logged_info=["caried"])
    run(grid, 10)
    (message,) = [message for message in caplog.messages if "caried" in message]
    assert "did you mean carried?" in message


def test_a_logged_text_is_refused_by_name():
    with pytest.raises(WorkerError, match=r"info\['note'\] of sub-env 0 is a str and no number"):
        run(worker(logged_info=["note"]), 2)


def test_texts_become_token_ids():
    grid = worker(text={"length": 20})
    space = grid.get_meta().observation_space["mission"]
    assert isinstance(space, TokenIds)
    mission = grid.reset().observation["mission"]
    assert mission.dtype == np.int32
    # "go" is bytes 103 and 111; 0 fills up the 18 letters to 20.
    assert mission[1, :2].tolist() == [104, 112]
    assert mission[1, 17:].tolist() == [ord("l") + 1, 0, 0]
    assert grid.step(ZEROS).observation["image"][0, 0, 0, 0] == 1
    assert worker().get_meta().observation_space["mission"].length == 128


def test_a_text_that_is_too_long_is_refused_by_name():
    with pytest.raises(
        WorkerError, match=r"observation\.mission has 18 token ids, 9 at most expected; raise env\.text"
    ):
        worker(text={"length": 9}).reset()


class Letters(Tokenizer):
    """Counts the letters of each word."""

    vocabulary = 10

    def __call__(self, text):
        return [len(word) for word in text.split()]


def test_a_registered_tokenizer_is_used_and_an_unknown_one_refused():
    register("tokenizer", "letters")(Letters)
    grid = worker(text={"tokenizer": "letters", "length": 6})
    assert grid.reset().observation["mission"][0].tolist() == [2, 2, 3, 3, 4, 0]
    assert grid.get_state() is not None
    with pytest.raises(
        ConfigError, match=r"env\.text\.tokenizer: no tokenizer is called 'leters'.*did you mean 'letters'"
    ):
        load_config("ppo_cartpole", ["env.text.tokenizer=leters"])


class Teller(BaseEnv):
    """Says texts and other things in ``info``."""

    def __init__(self, config):
        super().__init__(config)
        space = gym.spaces.Text(5) if config.env_kwargs.get("text") else gym.spaces.Discrete(2)
        self.meta = EnvMeta("Teller", space, gym.spaces.Discrete(2), 2)

    def reset(self, seed=None, options=None):
        ret = EnvRet.from_reset(np.zeros(2, np.int64), 2)
        ret.info = {"said": self.config.env_kwargs["said"]}
        return ret

    def step(self, response):
        return self.reset()


def test_texts_in_the_info_of_own_envs_become_token_ids():
    config = EnvConfig(name="teller", num_envs=2, env_kwargs={"said": ["hi", "go"]}, text={"length": 3})
    info = EnvWorker(Teller, config, 0, 7).reset().info
    assert info["said"].tolist() == [[105, 106, 0], [104, 112, 0]]


@pytest.mark.parametrize(("said", "message"), [([{}, {}], "holds object"), ([[1], [1, 2]], "is no array")])
def test_what_info_cannot_hold_is_refused_by_name(said, message):
    config = EnvConfig(name="teller", num_envs=2, env_kwargs={"said": said})
    with pytest.raises(WorkerError, match=rf"info\['said'\] {message}"):
        EnvWorker(Teller, config, 0, 7).reset()


def test_a_text_space_of_an_own_env_says_what_to_do():
    with pytest.raises(UnsupportedSpace, match=r"Text space is no array of fixed shape.*TokenIds"):
        EnvWorker(Teller, EnvConfig(name="teller", num_envs=2, env_kwargs={"text": True}), 0, 7)


def test_an_episode_that_is_cut_has_no_numbers_of_its_end():
    grid = worker(logged_info=["carried"])
    grid.reset()
    response = PolicyResponse(np.zeros(grid.get_meta().num_envs, np.int64))
    grid.step(response)
    assert grid.cut_episodes(1) == list(range(grid.get_meta().num_envs))
    assert [(one.truncated, one.length, one.info) for one in grid.pop_episodes()] == [(True, 1, {})] * len(
        range(grid.get_meta().num_envs)
    )


def test_a_name_that_an_own_env_lacks_is_said_once_too(caplog):
    kind = EnvConfig(
        name="InvertedPendulum-v5", backend="mujoco", num_envs=1, max_episode_steps=3, logged_info=["ball"]
    )
    pendulum = EnvWorker(lookup("simulator", "mujoco"), kind, 0, 1)
    pendulum.reset()
    for _ in range(9):
        pendulum.step(PolicyResponse(np.zeros((1, 1), np.float32)))
    assert len(pendulum.pop_episodes()) == 3
    assert caplog.text.count("env.logged_info: no 'ball' in info") == 1
