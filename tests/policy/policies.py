"""Policies for the tests of this room, importable by worker processes."""

from __future__ import annotations

import os
import time

import numpy as np
import torch
from torch import nn

from rlightning.distributed import ParallelMode
from rlightning.policy.base_policy import BasePolicy, PolicyRole, infer_train_dp_world_size
from rlightning.types import BatchedData, EnvRet, PolicyResponse
from tests.doubles import LinearPolicy

UNUSUAL_DTYPES = [
    torch.float8_e4m3fn,
    torch.float8_e8m0fnu,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.complex128,
]
"""What torch cannot pickle, or safetensors cannot write."""


def request(rows, start=0.0):
    """What an env worker of some rows asks: row i observes (start + i, start + i)."""
    observation = np.repeat(np.arange(start, start + rows, dtype=np.float32)[:, None], 2, 1)
    return EnvRet.from_reset(observation, rows)


def batch(sizes, env_ids=None):
    """Requests of workers of the given sizes; the rows of all are numbered through."""
    starts = np.cumsum([0, *sizes[:-1]])
    ids = range(len(sizes)) if env_ids is None else env_ids
    return BatchedData(list(ids), [request(*pair) for pair in zip(sizes, starts, strict=True)])


def build_anew(policy, *args):
    """Have a policy begin again, as its constructor leaves it."""
    policy._communicator.close()
    policy.__init__(*args)


class Bare(BasePolicy):
    """As little as an author may write."""

    def construct_network(self, env_meta, *args, **kwargs):
        self.net = nn.Linear(2, 2)

    def setup_optimizer(self, optim_cfg):
        self.optimizer = None

    def rollout_step(self, env_ret):
        return PolicyResponse(self.net(env_ret.observation))

    def update_dataset(self, data):
        self.dataset = data

    def train(self, *args, **kwargs):
        self.trained = True
        return {}


class Unusual(Bare):
    """Modules without parameters, parameters and buffers outside of modules, and nested ones."""

    def construct_network(self, env_meta, *args, **kwargs):
        self.net = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
        self.statistics = nn.Module()
        self.statistics.register_buffer("mean", torch.zeros(2))
        self.activation = nn.Tanh()
        self.log_std = nn.Parameter(torch.zeros(2))
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("scratch", torch.zeros(1), persistent=False)


class EveryKind(Bare):
    """Two modules with buffers of every kind, and buffers of its own that are not kept."""

    def construct_network(self, env_meta, *args, **kwargs):
        self.net = nn.Linear(2, 2)
        self.tied = nn.Module()
        self.tied.weight = self.net.weight
        self.kinds = nn.Module()
        value = 0 if self.role_type is PolicyRole.EVAL else 3
        for dtype in (torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.uint8, torch.bool):
            self.kinds.register_buffer(f"of_{dtype}".replace(".", "_"), torch.full((3,), value).to(dtype))
        self.kinds.register_buffer("zero_dim", torch.tensor(value))
        self.kinds.register_buffer("transposed", (torch.arange(6.0).view(2, 3) * value).t())
        self.kinds.register_buffer("empty", torch.empty(0, 2, dtype=torch.int32))
        for dtype in UNUSUAL_DTYPES:
            number = torch.full((2, 16), value, dtype=torch.uint8).view(dtype)
            self.kinds.register_buffer(f"of_{dtype}".replace(".", "_"), number)
        for module in (self, self.kinds):
            module.register_buffer("hidden", torch.full((3,), float(value)), persistent=False)
            module.register_buffer("mean", None)

    def get_hidden(self):
        return [*self.hidden.tolist(), *self.kinds.hidden.tolist()]


class Scribbling(LinearPolicy):
    """User code that works until arrays are shared: writes into what it is given."""

    def rollout_step(self, env_ret, *, deterministic=False):
        for field in (env_ret.observation, env_ret.reward):
            field += 1
        env_ret.terminated |= True
        return PolicyResponse(env_ret.observation, env_action=env_ret.observation * 2, extras={"r": env_ret.reward})

    def postprocess(self, env_ret=None, policy_resp=None):
        policy_resp.action += 1
        policy_resp.extras["r"] *= 10
        return policy_resp

    def update_dataset(self, data):
        data["reward"] *= 0.1
        data["observation"] += 1
        self.dataset = data

    def train(self, *args, **kwargs):
        return {"reward": float(self.dataset["reward"].sum()), "observation": float(self.dataset["observation"].sum())}


class Breakable(LinearPolicy):
    """Lets a test change one bit of a parameter."""

    def flip(self, name, place):
        with torch.no_grad():
            self.get_parameter(name).view(torch.int32).reshape(-1)[place] ^= 1

    def scale(self, name, factor):
        with torch.no_grad():
            self.get_parameter(name).mul_(factor)

    def get_weights(self):
        return self.net.weight.detach().numpy().copy(), int(self.seen)

    def give_back(self, value):
        return value

    def get_training(self):
        return self.training, self.net.training


class BreakingTensors(nn.Module):
    """One of its tensors can be told to have no values when it is read next."""

    breaks = False

    def state_dict(self, *args, **kwargs):
        state = super().state_dict(*args, **kwargs)
        if self.breaks:
            self.breaks = False
            state["t100"] = state["t100"].detach().to("meta")
        return state


class Numbered(Bare):
    """200 tensors, parameters and buffers, all filled with the number of the training steps."""

    def construct_network(self, env_meta, *args, **kwargs):
        self.tensors = BreakingTensors()
        for i in range(200):
            value = torch.zeros(3, i % 5 + 1)
            if i % 2:
                self.tensors.register_parameter(f"t{i}", nn.Parameter(value))
            else:
                self.tensors.register_buffer(f"t{i}", value)

    def rollout_step(self, env_ret):
        """Answer with the smallest and the largest of all numbers."""
        held = [*self.tensors.parameters(), *self.tensors.buffers()]
        numbers = torch.stack(torch.cat([tensor.reshape(-1) for tensor in held]).aminmax())
        rows = len(env_ret.reward)
        return PolicyResponse(torch.zeros(rows), extras={"numbers": numbers.repeat(rows, 1)})

    def train(self, *args, **kwargs):
        with torch.no_grad():
            for _, tensor in sorted(self.tensors.state_dict(keep_vars=True).items()):
                tensor += 1
        return {}

    def fail_next_export(self):
        """Fail half way through the copy: tensor 100 of 200 has no values."""
        self._weight_port.layout()
        self.tensors.breaks = True

    def flip_one_bit(self):
        self.tensors.t7.data[0, 0].view(torch.int32).bitwise_xor_(1)


class Many(Bare):
    """``model_cfg.tensors`` parameters of the same size, ``model_cfg.floats`` numbers in all, in modules of 50."""

    def construct_network(self, env_meta, *args, **kwargs):
        count, floats = self.config.model_cfg["tensors"], self.config.model_cfg["floats"]
        parameters = [nn.Parameter(torch.full((floats // count,), float(i))) for i in range(count)]
        self.net = nn.ModuleList(nn.ParameterList(parameters[i : i + 50]) for i in range(0, count, 50))

    def rollout_step(self, env_ret):
        return PolicyResponse(self.net[1][2][:1].expand(len(env_ret.reward)))

    def train(self, *args, **kwargs):
        with torch.no_grad():
            torch._foreach_add_(list(self.net.parameters()), 1.0)
        return {}

    def replace(self, what):
        """Put another tensor into the place of one, as authors may."""
        if what == "memory":
            self.net[1][2].data = torch.full_like(self.net[1][2], -5.0)
        elif what == "parameter":
            self.net[1][2] = nn.Parameter(torch.full_like(self.net[1][2], -6.0))
        else:
            self.net[1] = nn.ParameterList(nn.Parameter(parameter.detach() - 7.0) for parameter in self.net[1])


class NumberedOfEveryKind(Numbered, EveryKind):
    """Has those numbers and tensors of every kind, so that the tests of both can share its processes."""

    def construct_network(self, env_meta, *args, **kwargs):
        EveryKind.construct_network(self, env_meta)
        Numbered.construct_network(self, env_meta)


class OwnLoading(NumberedOfEveryKind):
    """Loads weights in its own way."""

    def __init__(self, *args):
        super().__init__(*args)
        self.loads, self.refuses, self.receives = 0, False, True

    def load_state_dict(self, state_dict):
        self.loads += 1
        if self.refuses:
            self.refuses = False
            raise OSError("this cannot be loaded")
        super().load_state_dict(state_dict)

    def fail_next_loading(self):
        self.refuses = True

    def recv_weights(self, payload=None):
        if not self.receives:
            self.receives = True
            raise OSError("nothing can be received")
        return super().recv_weights(payload)

    def fail_next_receiving(self):
        self.receives = False


class ByTheContract(Bare):
    """Writes every method with just the parameters of the contract, and passes on what it is given to modules."""

    def construct_network(self, env_meta):
        self.net = nn.Linear(2, 2)

    def get_trainable_parameters(self):
        return {"net": dict(self.net.named_parameters())}

    def load_state_dict(self, state_dict, *args, **kwargs):
        self.net.load_state_dict(state_dict["net"], *args, **kwargs)

    def train(self):
        with torch.no_grad():
            self.net.bias += 1
        return {}

    def postprocess(self, env_ret=None, policy_resp=None):
        return policy_resp


class ByTheContractAlone(ByTheContract):
    """Takes the state dict, and nothing else."""

    def load_state_dict(self, state_dict):
        self.net.load_state_dict(state_dict["net"])


class Dying(NumberedOfEveryKind):
    """A learner whose process ends when it is to map memory that others have mapped by then."""

    def __init__(self, *args):
        super().__init__(*args)
        if self.role_type is PolicyRole.TRAIN:
            self._weight_port.map = self.die

    def die(self, memory):
        time.sleep(1.0)  # until the answer to the call before is on its way
        os._exit(1)


class Peer(LinearPolicy):
    """Tells of its groups, and learns the mean of the numbers that it is given: its gradient is w minus their mean.

    Its optimizer has a memory: a momentum of 0.5.
    """

    def construct_network(self, env_meta, *args, **kwargs):
        self.net = nn.Linear(1, 1, bias=False)
        self.register_buffer("seen", torch.randn(2))

    def setup_optimizer(self, optim_cfg):
        self.optimizer = torch.optim.SGD(self.net.parameters(), self.train_config.lr, momentum=0.5)

    def rollout_step(self, env_ret, **kwargs):
        return PolicyResponse(self.net.weight.expand(len(env_ret.reward), 1))

    def train(self, *args, fail_on=None, die_on=None, **kwargs):
        if die_on is not None and self.peers.rank == die_on:
            os._exit(3)
        if fail_on is not None and self.peers.rank in fail_on:
            raise ArithmeticError(f"train policy {self.peers.rank} cannot")
        x = self.dataset
        self.optimizer.zero_grad()
        (0.5 * (self.net.weight - x).square().mean()).backward()
        self.optimizer.step()
        return {"loss": float(x.mean()), "weight": self.net.weight.item(), "name": "peer"}

    def update_dataset(self, data):
        self.dataset = data  # plain numbers

    def get_groups(self):
        return {
            mode.value: [(group.ranks, group.rank, group.generation) for group in self._communicator.groups(mode)]
            for mode in ParallelMode
            if self._communicator.groups(mode)
        }

    def sum_of_ranks(self, mode):
        group = self._communicator.group(mode)
        return group.all_reduce_(torch.tensor(10.0 ** self.get_rank())).item()

    def get_sizes(self):
        default = torch.distributed.get_world_size() if torch.distributed.is_initialized() else None
        return self.world_size, infer_train_dp_world_size(), default

    def draw(self):
        own, shared = (torch.rand(2, generator=one).tolist() for one in (self.generator, self.shared_generator))
        return own, shared

    def check_ranks(self):
        self._data_parallel.check_ranks(self)

    def spoil(self, name):
        with torch.no_grad():
            self._tensors.held().joined()[name].view(torch.int32).view(-1)[0] ^= 1

    def get_weight(self):
        return self.net.weight.item()

    def set_weight(self, value):
        with torch.no_grad():
            self.net.weight.fill_(value)


class Entropic(Peer):
    """Learns numbers that only an optimizer holds, and acts with a table that is an array."""

    def construct_network(self, env_meta, *args, **kwargs):
        super().construct_network(env_meta)
        self.table = torch.randn(2).numpy()

    def setup_optimizer(self, optim_cfg):
        super().setup_optimizer(optim_cfg)
        self.log_alpha = torch.randn(1, requires_grad=True)
        self.bounds = [torch.randn(2, requires_grad=True)]
        numbers = [self.log_alpha, *self.bounds, torch.randn((), requires_grad=True)]
        self.alpha_optimizer = torch.optim.SGD(numbers, self.train_config.lr, momentum=0.5)

    def get_trainable_parameters(self):
        return {"net": dict(self.net.named_parameters()), "table": {"values": self.table}}

    def rollout_step(self, env_ret, **kwargs):
        return PolicyResponse(torch.from_numpy(self.table).expand(len(env_ret.reward), 2))

    def train(self, *args, stop_on=None, **kwargs):
        """Each number goes down by the mean of the data; the table is what this train policy saw."""
        self.alpha_optimizer.zero_grad()
        sum(number.sum() * self.dataset.mean() for number in self.get_numbers()).backward()
        if stop_on == self.peers.rank:
            raise ArithmeticError(f"train policy {stop_on} cannot")
        self.alpha_optimizer.step()
        self.table[:] = self.dataset.mean()
        return super().train()

    def get_numbers(self):
        return self.alpha_optimizer.param_groups[0]["params"]

    def get_all(self):
        tensors = {name: tensor.tolist() for name, tensor in self._tensors.held().joined().items()}
        momenta = [str(one.state_dict()["state"]) for one in (self.optimizer, self.alpha_optimizer)]
        return tensors, momenta, self.epoch, self.version

    def check_ranks(self):
        self._data_parallel.check_ranks(self)

    def spoil(self, name):
        with torch.no_grad():
            self._tensors.held().joined()[name].view(-1)[0] += 1.0


class Wider(Peer):
    """Has another network on the second train policy."""

    def construct_network(self, env_meta, *args, **kwargs):
        self.net = nn.Linear(1, 1 + self.peers.rank, bias=False)


class Wrapping(Peer):
    """Wraps its module itself."""

    def setup_optimizer(self, optim_cfg):
        self.optimizer = torch.optim.SGD(self.net.parameters(), self.train_config.lr)

    def wrap_with_ddp(self):
        self.net = torch.nn.parallel.DistributedDataParallel(self.net)
        self.model_list = [("net", self.net)]

    def train(self, *args, **kwargs):
        self.optimizer.zero_grad()
        (0.5 * (self.net(torch.ones(1)) - self.dataset).square().mean()).backward()
        self.optimizer.step()
        return {"weight": self.get_trainable_parameters()["net"]["weight"].item()}

    def count_wrappers(self):
        return sum(isinstance(module, torch.nn.parallel.DistributedDataParallel) for module in self.modules())
