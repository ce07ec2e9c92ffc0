"""Options are strict, frozen, documented, and sections of an algorithm are its own."""

import ast
import inspect
from typing import get_args

import pytest
from pydantic import ValidationError

from rlightning import config
from rlightning.config import ClusterConfig, Config, EnvConfig, OptimConfig, PolicyConfig, Section, TrainConfig

SECTIONS = [cls for _, cls in inspect.getmembers(config, inspect.isclass) if issubclass(cls, Section)]
BASE = {"env": {"name": "CartPole-v1"}}


def paths_of(caught):
    return {".".join(map(str, error["loc"])) for error in caught.value.errors()}


@pytest.mark.parametrize(
    ("path", "data"),
    [
        ("polcy", {"polcy": {}}),
        ("train.learning_rat", {"train": {"learning_rat": 1e-3}}),
        ("buffer.batch_size", {"buffer": {"batch_size": 64}}),
        ("train.batch-size", {"train": {"batch-size": 64}}),
        ("train.batch_size", {"train": {"batch_size": "64k"}}),
        ("train.max_epochs", {"train": {"max_epochs": 0}}),
        ("train.max_epochs", {"train": {"max_epochs": 1.5}}),
        ("train.lr", {"train": {"lr": -1.0}}),
        ("policy.optim_cfg.eps", {"policy": {"optim_cfg": {"eps": 0}}}),
        ("policy.router_type", {"policy": {"router_type": "nearest"}}),
        ("cluster.remote_env", {"cluster": {"remote_env": "yes"}}),
        ("seed", {"seed": -1}),
    ],
)
def test_an_unknown_name_or_a_bad_value_is_refused_at_its_path(path, data):
    with pytest.raises(ValidationError) as caught:
        Config.model_validate(BASE | data)
    assert paths_of(caught) == {path}


def test_all_problems_are_reported_at_once():
    with pytest.raises(ValidationError) as caught:
        Config.model_validate({"env": [{"name": "a", "num_workers": -1}, {}], "train": {"lr": 0}, "polcy": 1})
    assert paths_of(caught) == {"env.0.num_workers", "env.1.name", "train.lr", "polcy"}


def test_an_env_is_required_and_one_env_is_a_list_of_one():
    assert [env.name for env in Config.model_validate(BASE).env] == ["CartPole-v1"]
    for data in ({}, {"env": []}):
        with pytest.raises(ValidationError):
            Config.model_validate(data)


def test_a_configuration_cannot_be_changed():
    cfg = Config.model_validate(BASE)
    for section, name in ((cfg, "seed"), (cfg.train, "lr"), (cfg.policy.optim_cfg, "eps"), (cfg.env[0], "name")):
        with pytest.raises(ValidationError, match="frozen"):
            setattr(section, name, getattr(section, name))
    with pytest.raises(ValidationError):
        cfg.train.new = 1


def test_free_form_sections_take_anything_and_are_not_shared():
    data = {"env": {"name": "x", "env_kwargs": {"any": {"depth": [1]}}}, "policy": {"model_cfg": {"a": 1}}}
    cfg = Config.model_validate(data)
    assert cfg.env[0].env_kwargs == {"any": {"depth": [1]}}
    assert EnvConfig(name="a").env_kwargs is not EnvConfig(name="b").env_kwargs


def test_a_list_serves_as_a_tuple_since_yaml_has_none_and_its_length_counts():
    assert OptimConfig(betas=[0.8, 0.9]).betas == (0.8, 0.9)
    with pytest.raises(ValidationError):
        OptimConfig(betas=[0.8])


def test_a_configuration_comes_back_equal_from_json():
    cfg = Config.model_validate(BASE | {"policy": {"optim_cfg": {"betas": [0.8, 0.9]}}})
    assert Config.model_validate(cfg.model_dump(mode="json")) == cfg
    assert Config.model_validate_json(cfg.model_dump_json()) == cfg


def test_sub_envs_are_counted_over_all_workers_of_all_envs():
    # 3 x 4 + 2 x 1 = 14.
    envs = [{"name": "a", "num_workers": 3, "num_envs": 4}, {"name": "b", "num_workers": 2}]
    assert Config.model_validate({"env": envs}).num_envs == 14


def test_ray_is_needed_where_any_worker_is_remote():
    assert not ClusterConfig().any_remote
    for kind in ("train", "eval", "storage", "env"):
        assert ClusterConfig(**{f"remote_{kind}": True}).any_remote


@pytest.mark.parametrize("section", SECTIONS, ids=lambda cls: cls.__name__)
def test_every_option_is_documented_under_its_field_and_every_default_is_valid(section):
    tree = ast.parse(inspect.getsource(section)).body[0]
    documented = {
        node.target.id
        for node, below in zip(tree.body, tree.body[1:], strict=False)
        if isinstance(node, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
    }
    subsections = {
        name
        for name, field in section.model_fields.items()
        if inspect.isclass(field.annotation) and issubclass(field.annotation, Section)
    }
    assert set(section.model_fields) - subsections <= documented
    required = {name for name, field in section.model_fields.items() if field.is_required()}
    section(**{name: {"name": "x"} if name == "env" else "x" for name in required})


def test_an_algorithm_may_declare_sections_of_its_own_as_strict():
    class Options(Section):
        clip: float = 0.2

    assert Options.model_validate({"clip": 0.1}).clip == 0.1
    with pytest.raises(ValidationError, match="clpi"):
        Options.model_validate({"clpi": 0.1})


def test_the_documented_choices_of_the_contract_are_there():
    choices = {
        (PolicyConfig, "rollout_mode"): {"sync", "async"},
        (PolicyConfig, "router_type"): {"simple", "node_affinity"},
        (config.WeightBufferConfig, "buffer_strategy"): {"None", "Double", "Shared", "Sharded"},
        (TrainConfig, "parallel"): {"none", "ddp"},
    }
    for (section, name), expected in choices.items():
        assert set(get_args(section.model_fields[name].annotation)) == expected
