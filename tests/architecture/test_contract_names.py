"""The public contract of the policy layer: names, parameters, their order and their defaults.

User code is written against these. The classes below are the contract, written as Python: each module of the package is
a class here, and each signature shows parameters and defaults as they must be. The package may add parameters with
defaults behind them.
"""

import importlib
import inspect
import types
import typing

import pytest
from pydantic import BaseModel

from rlightning.config import Config, PolicyConfig
from rlightning.policy.base_policy import BasePolicy, PolicyRole
from rlightning.types import EnvRet, PolicyResponse


class base_policy:
    def clone_checkpoint_value(value): ...
    def infer_train_dp_world_size(): ...
    def set_nested_attr(obj, path, value): ...

    class BasePolicy:
        def __init__(self, config, role_type): ...

        def construct_network(self, env_meta, *args, **kwargs): ...
        def setup_optimizer(self, optim_cfg): ...
        def get_trainable_parameters(self): ...
        def load_state_dict(self, state_dict, *args, **kwargs): ...
        def train(self, *args, **kwargs): ...
        def update_dataset(self, data): ...
        def rollout_step(self, env_ret, **kwargs): ...
        def postprocess(self, env_ret=None, policy_resp=None): ...

        def init_train(self, train_config, env_meta=None): ...
        def init_eval(self, eval_config=None, env_meta=None): ...
        def is_initialized(self): ...
        def check_idle(self): ...
        def get_num_requests(self): ...
        def notify_update_weights(self): ...
        def wait_for_weight_update_done(self, timeout=None): ...
        def get_param_fingerprint(self): ...
        def get_bundle_digest(self): ...
        def reset_training_state(self, train_config, env_meta=None, seed=None): ...
        def save_checkpoint(self, path): ...
        def load_checkpoint(self, path): ...
        def print_timing_summary(self, reset=False): ...
        def eval(self): ...

        def _rollout(self, env_ret): ...
        def _postprocess(self, env_ret=None, policy_resp=None): ...

        def _get_node_id(self): ...
        def _get_gpu_ids(self): ...
        def _get_addr_and_port(self): ...
        def init_distributed_env(
            self, rank, world_size, local_rank, local_world_size, master_addr, master_port, backend="gloo"
        ): ...
        def init_single_comm_group(self, ranks, mode, backend="gloo"): ...
        def get_rank(self): ...
        def dist_barrier(self, mode=None): ...


class policy_group:
    class PolicyGroup:
        def __init__(self, train_policy_list, eval_policy_list, config): ...

        def init(self, train_config, env_meta=None, eval_config=None): ...
        def init_eval(self, eval_config=None, env_meta=None): ...
        def init_train(self, train_config, env_meta=None): ...
        def init_placement_info(self, is_colocated=False): ...
        def init_weight_buffer(self): ...
        def init_comm_group(self, backend="nccl", is_colocated=False): ...
        def rollout_batch(self, batched_env_ret): ...
        def postprocess(self, batched_env_ret=None, batched_policy_resp=None): ...
        def update_dataset(self, sample_data): ...
        def train(self, *args, **kwargs): ...
        def sync_weights(self): ...
        def wait_for_eval_weight_update(self, timeout=60.0): ...
        def verify_eval_weight_consistency(self, rtol=1e-3): ...
        def push(self, worker, role): ...
        def pop(self, role): ...
        def reset_training_state(self, train_config, env_meta=None, seed=None): ...
        def save_checkpoint(self, path): ...
        def print_timing_summary(self, reset=False): ...
        def shutdown(self): ...


class launch:
    def launch(main_func, config_path): ...
    def build_env_group(config): ...
    def build_policy_group(config, env_meta): ...
    def build_data_buffer(config): ...
    def build_engine(config, env_group, policy_group, data_buffer): ...


MODULES = {
    "rlightning.policy.base_policy": base_policy,
    "rlightning.policy.policy_group": policy_group,
    "rlightning.launch": launch,
}
ABSTRACT = {"construct_network", "setup_optimizer", "rollout_step", "update_dataset", "train"}
POLICY_ATTRIBUTES = {
    "config",
    "role_type",
    "device",
    "rollout_mode",
    "is_init",
    "model_list",
    "dataset",
    "world_size",
    "timing_raw",
}
GROUP_ATTRIBUTES = {"train_list", "eval_list", "placement_info"}
OPTIONS = {
    "engine",
    "policy.type",
    "policy.rollout_mode",
    "policy.router_type",
    "policy.weight_buffer.type",
    "policy.weight_buffer.buffer_strategy",
    "policy.model_cfg",
    "policy.optim_cfg",
    "policy.train_num_gpus",
    "policy.eval_num_gpus",
    *(f"train.{name}" for name in ("max_epochs", "batch_size", "max_rollout_steps", "max_eval_rollout_steps", "lr")),
    *(f"train.{name}" for name in ("parallel", "eval_interval", "save_interval", "save_dir")),
    *(f"cluster.{name}" for name in ("train_worker_num", "eval_worker_num", "buffer_worker_num", "remote_train")),
    *(f"cluster.{name}" for name in ("remote_eval", "remote_storage", "remote_env", "is_colocated", "enable_offload")),
    *(f"cluster.{name}" for name in ("placement.mode", "placement.strategy", "placement.env_strategy")),
    "cluster.resource_pool",
    *(f"env.{name}" for name in ("name", "backend", "task", "num_workers", "num_envs", "max_episode_steps")),
    *(f"env.{name}" for name in ("num_cpus", "num_gpus", "env_kwargs")),
    *(f"buffer.{name}" for name in ("type", "capacity", "sampler", "storage", "auto_truncate_episode")),
    *(f"log.{name}" for name in ("level", "backend", "project", "name", "log_dir", "mode")),
}
CHOICES = {
    "engine": {"syncrl", "rsl", "eval"},
    "policy.rollout_mode": {"sync", "async"},
    "policy.router_type": {"simple", "node_affinity"},
    "policy.weight_buffer.type": {"WeightBuffer", "CPUWeightBuffer", "ShardedWeightBuffer"},
    "policy.weight_buffer.buffer_strategy": {"None", "Double", "Shared", "Sharded"},
}


VARIADIC = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}


def pinned(contract, owner=""):
    """Dotted name and signature of every function of a contract class, also of the classes in it."""
    for name, member in vars(contract).items():
        if inspect.isclass(member):
            yield from pinned(member, f"{owner}{name}.")
        elif inspect.isfunction(member):
            yield f"{owner}{name}", inspect.signature(member)


def shape(parameter):
    return parameter.name, parameter.kind, parameter.default


SIGNATURES = [
    pytest.param(module, name, signature, id=f"{module.rpartition('.')[2]}.{name}")
    for module, contract in MODULES.items()
    for name, signature in pinned(contract)
]


@pytest.mark.parametrize(("module", "name", "expected"), SIGNATURES)
def test_parameters_and_defaults_stay(module, name, expected):
    found = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    parameters = inspect.signature(found).parameters
    given = [shape(parameter) for parameter in parameters.values()]
    named = [shape(parameter) for parameter in expected.parameters.values() if parameter.kind not in VARIADIC]
    assert given[: len(named)] == named
    assert {shape(parameter) for parameter in expected.parameters.values()} <= set(given)
    beyond = list(parameters.values())[len(named) :]
    assert all(parameter.default is not parameter.empty or parameter.kind in VARIADIC for parameter in beyond)


def test_roles():
    assert [(role.name, role.value) for role in PolicyRole] == [("TRAIN", "train"), ("EVAL", "eval")]


def test_what_a_user_must_write():
    assert BasePolicy.__abstractmethods__ == ABSTRACT


class Silent(BasePolicy):
    """As little as a policy can be."""

    def construct_network(self, env_meta, *args, **kwargs):
        pass

    def setup_optimizer(self, optim_cfg):
        pass

    def rollout_step(self, env_ret: EnvRet, **kwargs) -> PolicyResponse:
        return PolicyResponse(env_ret.observation)

    def update_dataset(self, data):
        self.dataset = data

    def train(self, *args, **kwargs):
        return {}


@pytest.mark.parametrize("name", sorted(POLICY_ATTRIBUTES))
@pytest.mark.parametrize("role", PolicyRole)
def test_attributes_of_a_policy(role, name):
    assert hasattr(Silent(PolicyConfig(), role), name)


@pytest.mark.parametrize("role", ["learner", "", None])
def test_a_role_that_is_none_of_the_two_is_refused(role):
    with pytest.raises(ValueError, match="not a valid PolicyRole"):
        Silent(PolicyConfig(), role)


@pytest.mark.parametrize("name", sorted(GROUP_ATTRIBUTES))
def test_attributes_of_a_group(name):
    group_class = importlib.import_module("rlightning.policy.policy_group").PolicyGroup
    assert hasattr(group_class([], [], PolicyConfig()), name)


def option(path):
    """The type of the option at a dotted path of the configuration; a list stands for its items."""
    found = Config
    for part in path.split("."):
        found = next((arg for arg in typing.get_args(found) if is_section(arg)), found)
        found = found.model_fields[part].annotation
    return found


def is_section(annotation):
    return (
        isinstance(annotation, type)
        and not isinstance(annotation, types.GenericAlias)
        and issubclass(annotation, BaseModel)
    )


@pytest.mark.parametrize("path", sorted(OPTIONS))
def test_names_of_options_stay(path):
    assert option(path) is not None


@pytest.mark.parametrize("path", sorted(CHOICES))
def test_choices_of_options_stay(path):
    assert CHOICES[path] <= set(typing.get_args(option(path)))
