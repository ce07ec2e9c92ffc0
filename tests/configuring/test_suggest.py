"""The option that was probably meant."""

from __future__ import annotations

import pytest

from rlightning.configuring.suggest import nearest_option
from rlightning.errors import nearest_name


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("train.learning_rat", "train.lr"),
        ("train.learning_rate", "train.lr"),
        ("train.batch-size", "train.batch_size"),
        ("train.Batch_Size", "train.batch_size"),
        ("buffer.batch_size", "train.batch_size"),
        ("batch_size", "train.batch_size"),
        ("polcy", "policy"),
        ("env.n_envs", "env.num_envs"),
        ("train.num_envs", "env.num_envs"),
        ("evaluation.num_env", "evaluation.num_envs"),
        ("train.n_steps", "train.max_rollout_steps"),
        ("cluster.remote_envs", "cluster.remote_env"),
        ("log.progres", "log.progress"),
        ("train.zzz", ""),
    ],
)
def test_nearest_option(written: str, meant: str) -> None:
    assert nearest_option(written) == meant


def test_options_of_the_algorithm_count_too() -> None:
    assert nearest_option("train.gae_lambda", ["policy.algo_cfg.lam"]) == "policy.algo_cfg.lam"


def test_nearest_name() -> None:
    assert nearest_name("halfcheeta", ["halfcheetah", "hopper"]) == "halfcheetah"
    assert nearest_name("zzz", ["halfcheetah", "hopper"]) == ""
