"""What a policy holds moves to host memory and back, and nobody who refers to it need know."""

import threading

import pytest
import torch
from tensordict import TensorDict
from torch import nn

from rlightning.checkpoint import load_state
from rlightning.config import PolicyConfig, TrainConfig
from rlightning.device import available_gpus
from rlightning.errors import ProtocolError, WorkerError
from rlightning.policy.base_policy import PolicyRole
from rlightning.policy.memory import Part, gradients, memory_of, optimizer_tensors
from rlightning.runtime import as_handle, gather
from tests.doubles import LinearPolicy
from tests.policy.crew import EVERYWHERE, crews
from tests.policy.policies import Bare, batch, request
from tests.policy.travel import Journey, Traveller

TRAIN = TrainConfig(max_epochs=10, lr=0.1)
# 2 x 2 weights and 2 biases of 4 bytes, and the count of transitions of 8 bytes.
MODEL_BYTES = 4 * 6 + 8
# Adam's two moments of weights and biases; its counts of steps stay.
OPTIMIZER_BYTES = 2 * 4 * 6


def learner(cls=Traveller):
    policy = cls(PolicyConfig(), PolicyRole.TRAIN)
    policy.set_seed(3)
    policy.init_train(TRAIN)
    return policy


def actor(weights_from):
    policy = Traveller(PolicyConfig(), PolicyRole.EVAL)
    policy.set_seed(3)
    policy.init_eval()
    policy.import_bundle(weights_from.export_bundle())
    return policy


def data(version=0):
    observation = torch.arange(12.0).view(2, 3, 2)
    return TensorDict({"observation": observation, "version": torch.full((2, 3), version)}, [2, 3])


def train(policy, epochs=1):
    for _ in range(epochs):
        policy._update_dataset(data(policy.version))
        policy._train()


# Moving


def test_tensors_come_back_as_themselves_with_their_values():
    module = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    tensors = [*module.parameters(), *module.buffers()]
    before = [tensor.detach().clone() for tensor in tensors]
    journey = Journey()
    memory = journey.memory()
    memory.offload(Part.MODEL, tensors)
    for tensor, value in zip(tensors, before, strict=True):
        assert torch.equal(tensor, value)
    memory.reload(Part.MODEL, tensors)
    assert [*map(id, (*module.parameters(), *module.buffers()))] == [*map(id, tensors)]
    assert all(map(torch.equal, tensors, before))
    # 6 + 2 of the layer, 2 + 2 + 2 + 2 of the norm in 4 bytes; the norm's count in 8.
    assert journey.out == journey.back == 4 * 16 + 8


def test_what_shares_memory_shares_it_on_the_other_side():
    flat = torch.arange(12.0)
    rows, turned, tail = flat.view(3, 4), flat.view(3, 4).t(), flat[8:]
    journey = Journey()
    memory = journey.memory()
    for move in (memory.offload, memory.reload):
        move(Part.MODEL, [flat, rows, turned, tail])
        rows[2, 3] += 1
        assert flat[11] == turned[3, 2] == tail[3] == rows[2, 3]
        assert turned.stride() == (1, 4)
    assert flat[11] == 13
    assert journey.out == journey.back == 12 * 4


def test_empty_and_zero_dimensional_tensors_move_too():
    tensors = [torch.empty(0, 3), torch.tensor(5), torch.empty(0, dtype=torch.int64)]
    memory = Journey().memory()
    memory.offload(Part.MODEL, tensors)
    memory.reload(Part.MODEL, tensors)
    assert [tuple(tensor.shape) for tensor in tensors] == [(0, 3), (), (0,)]
    assert tensors[1] == 5


def test_moving_twice_is_moving_once():
    journey = Journey()
    memory, tensor = journey.memory(), torch.ones(4)
    memory.reload(Part.MODEL, [tensor])
    for _ in range(2):
        memory.offload(Part.MODEL, [tensor])
    assert (journey.out, journey.back) == (16, 0)
    for _ in range(2):
        memory.reload(Part.MODEL, [tensor])
    assert (journey.out, journey.back) == (16, 16)


def test_a_move_that_fails_leaves_everything_where_it_is():
    # The storages 1 to 3 leave, number 5 does not come back.
    journey = Journey(fail_at=5)
    memory, tensors = journey.memory(), [torch.full((2,), float(i)) for i in range(3)]
    memory.offload(Part.MODEL, tensors)
    with pytest.raises(torch.OutOfMemoryError, match="full"):
        memory.reload(Part.MODEL, tensors)
    assert memory.offloaded == {Part.MODEL}
    assert [tensor.tolist() for tensor in tensors] == [[0, 0], [1, 1], [2, 2]]
    journey.left.clear()
    memory.reload(Part.MODEL, tensors)
    assert [tensor.tolist() for tensor in tensors] == [[0, 0], [1, 1], [2, 2]]


def test_on_the_cpu_nothing_is_copied():
    tensor = torch.ones(3)
    memory, place = memory_of("cpu"), tensor.data_ptr()
    memory.offload(Part.MODEL, [tensor])
    assert tensor.data_ptr() == place
    assert memory.offloaded == {"model"}


# Policies


def test_each_part_moves_on_its_own():
    policy = learner()
    train(policy)
    policy.offload_optimizer()
    assert policy.count_bytes() == (OPTIMIZER_BYTES, 0)
    policy.offload_model_param_and_grad(offload_grad=False)
    assert policy.count_bytes() == (OPTIMIZER_BYTES + MODEL_BYTES, 0)
    assert policy.get_offloaded() == ["model", "optimizer"]
    policy.reload_model_param_and_grad(load_grad=True)
    policy.reload_optimizer()
    assert policy.count_bytes() == (OPTIMIZER_BYTES + MODEL_BYTES,) * 2
    # With gradients it is 6 numbers more.
    policy.offload_model()
    assert policy.count_bytes()[0] == OPTIMIZER_BYTES + 2 * MODEL_BYTES + 24
    policy.reload_model()
    assert policy.get_offloaded() == []
    assert len(set(policy.count_bytes())) == 1


@pytest.mark.parametrize("load_grad", [True, False])
def test_a_learner_that_travels_learns_what_one_at_home_learns(load_grad):
    home, traveller = learner(), learner()
    for _ in range(4):
        train(home)
        train(traveller)
        traveller.offload_model_param_and_grad(offload_grad=True)
        traveller.offload_optimizer()
        traveller.reload_model_param_and_grad(load_grad=load_grad)
        traveller.reload_optimizer()
    assert home.count_bytes() == (0, 0)
    assert traveller.get_bundle_digest() == home.get_bundle_digest()
    moments = [optimizer_tensors([policy.optimizer]) for policy in (home, traveller)]
    assert len(moments[0]) == 4
    assert all(map(torch.equal, *moments))


def test_gradients_survive_where_they_are_wanted():
    policy = learner()
    train(policy)
    before = [gradient.clone() for gradient in gradients(policy.parameters())]
    policy.offload_model()
    policy.reload_model()
    after = gradients(policy.parameters())
    assert len(after) == 2
    assert all(map(torch.equal, before, after))


class Scattered(Bare):
    """A module that no attribute holds, one of two names, and a buffer that is not saved."""

    def construct_network(self, env_meta, *args, **kwargs):
        hidden = nn.Linear(2, 2)
        self.body = nn.Linear(2, 2)
        self.again = self.body
        self.hidden_ones = [hidden]
        self.body.register_buffer("scratch", torch.zeros(5), persistent=False)
        self.model_list = [("body", self.body), ("hidden", hidden)]


def test_every_module_of_the_model_list_moves():
    policy = Scattered(PolicyConfig(), PolicyRole.EVAL)
    journey = Journey()
    policy._memory = journey.memory()
    policy.init_eval()
    policy.offload_model()
    # Two layers of 6 numbers and the scratch of 5.
    assert journey.out == 4 * 17
    policy.reload_model()
    assert journey.back == 4 * 17


def test_what_is_offloaded_may_be_looked_at_and_saved(tmp_path):
    policy = learner()
    train(policy)
    expected = policy.get_param_fingerprint(), policy.get_bundle_digest(), policy.export_bundle().layout.specs
    policy.save_checkpoint(tmp_path / "home")
    policy.offload_model()
    policy.offload_optimizer()
    assert (policy.get_param_fingerprint(), policy.get_bundle_digest(), policy.export_bundle().layout.specs) == expected
    policy.save_checkpoint(tmp_path / "away")
    home, away = (load_state(tmp_path / name)["policy"] for name in ("home", "away"))
    assert home["modules"].keys() == away["modules"].keys()
    assert all(torch.equal(home["modules"][name], away["modules"][name]) for name in home["modules"])
    # It may be loaded there as well.
    train_on = learner()
    train_on.offload_model()
    train_on.offload_optimizer()
    train_on.load_checkpoint(tmp_path / "away")
    train_on.reload_model()
    train_on.reload_optimizer()
    policy.reload_model()
    policy.reload_optimizer()
    for each in (policy, train_on):
        train(each, 2)
    assert train_on.get_bundle_digest() == policy.get_bundle_digest()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda policy: policy._rollout(request(1)), "the model must be on the device to act: call reload_model first"),
        (lambda policy: policy._postprocess(request(1)), "the model must be on the device to act"),
    ],
)
def test_acting_while_offloaded_says_to_reload(call, message):
    policy = actor(learner())
    policy.offload_model()
    with pytest.raises(ProtocolError, match=message):
        call(policy)
    policy.reload_model()
    call(policy)
    assert policy.get_num_requests() == 0


def test_learning_while_offloaded_says_to_reload():
    policy = learner()
    train(policy)
    policy.offload_optimizer()
    with pytest.raises(ProtocolError, match="the optimizer must be on the device to train: call reload_optimizer"):
        policy._train()
    policy.offload_model()
    with pytest.raises(ProtocolError, match=r"the model and the optimizer must be .*reload_model and reload_optimizer"):
        policy._train()
    with pytest.raises(ProtocolError, match="the model must be on the device to take data"):
        policy._update_dataset(data())
    assert policy.version == 1


def test_a_reset_builds_everything_on_the_device():
    policy = learner()
    policy.offload_model()
    policy.offload_optimizer()
    policy.reset_training_state(TRAIN, seed=3)
    assert policy.get_offloaded() == []
    train(policy)


def test_weights_that_come_while_the_model_is_away_are_in_force_when_it_is_back():
    source = learner()
    target = actor(source)
    train(source)
    target.offload_model()
    target.import_bundle(source.export_bundle())
    assert target.get_bundle_digest() == source.get_bundle_digest()
    target.reload_model()
    assert target._rollout(request(1)).version == 1
    assert target.get_bundle_digest() == source.get_bundle_digest()


def test_the_model_leaves_between_two_requests():
    policy = actor(learner())
    leaving = threading.Thread(target=policy.offload_model)
    with policy._gate.request():
        leaving.start()
        while not policy._gate._updating:
            threading.Event().wait(0.001)
        assert policy.get_offloaded() == []
    leaving.join(60)
    assert policy.get_offloaded() == ["gradients", "model"]


# Groups


crew = pytest.fixture(scope="module", params=EVERYWHERE[:2])(crews)


@pytest.fixture
def group(crew):
    """A learner and two eval policies whose memories really move, and have not moved yet."""
    group = crew.group(Traveller, 1, 2)
    ask([*group.train_list, *group.eval_list], Traveller.depart)
    group.init(TRAIN)
    yield group
    group.shutdown()


def ask(workers, method):
    return gather([as_handle(worker).call(method) for worker in workers], 60)


def act(group):
    return gather(group.rollout_batch(batch([1, 2, 1])).items, 60)


def test_push_offload_reload_act_gives_the_learners_digest(group):
    group.sync_weights()
    act(group)
    for epoch in range(1, 3):
        group.offload_eval_model()
        group.update_dataset([data(epoch - 1)])
        group.train()
        # Once while they are away, once when they are back.
        if epoch == 1:
            group.sync_weights()
            assert group.verify_eval_weight_consistency(rtol=0)
        group.offload_model_param_and_grad()
        group.reload_eval_model()
        if epoch == 2:
            group.sync_weights()
        assert {answer.version for answer in act(group)} == {epoch}
        assert group.verify_eval_weight_consistency(rtol=0)
        group.reload_model_param_and_grad()
    learners, actors = ask(group.train_list, Traveller.count_bytes), ask(group.eval_list, Traveller.count_bytes)
    assert learners == [(2 * (MODEL_BYTES + OPTIMIZER_BYTES + 24),) * 2]
    assert actors == [(2 * MODEL_BYTES,) * 2] * 2


def test_the_optimizer_of_a_group_moves_alone(group):
    group.sync_weights()
    group.update_dataset([data()])
    group.train()
    group.offload_model_optimizer()
    assert ask(group.train_list, Traveller.get_offloaded) == [["optimizer"]]
    assert ask(group.train_list, Traveller.count_bytes) == [(OPTIMIZER_BYTES, 0)]
    group.reload_model_optimizer()
    assert ask(group.train_list, Traveller.get_offloaded) == [[]]


def test_acting_and_learning_while_offloaded_are_errors_of_the_group(group):
    group.sync_weights()
    group.offload_eval_model()
    with pytest.raises(WorkerError, match="call reload_model first") as caught:
        act(group)
    assert isinstance(caught.value.__cause__, ProtocolError)
    group.update_dataset([data()])
    group.offload_model_param_and_grad(offload_grad=False, offload_optimizer=False)
    assert ask(group.train_list, Traveller.get_offloaded) == [["model"]]
    with pytest.raises(WorkerError, match="call reload_model first"):
        group.train()
    group.reload_model_param_and_grad(load_grad=False, load_optimizer=False)
    group.reload_eval_model()
    group.train()
    group.sync_weights()
    act(group)


# A GPU


@pytest.mark.gpu
@pytest.mark.skipif(not available_gpus(), reason="needs a GPU")
def test_on_a_gpu_the_memory_is_free_while_the_policy_is_away():
    policy = learner(OnDevice)
    train(policy)
    used = torch.accelerator.memory_allocated()
    digest = policy.get_bundle_digest()
    policy.dataset = None
    policy.offload_model()
    policy.offload_optimizer()
    tensors = [
        *policy._tensors.in_modules(),
        *gradients(policy._tensors.in_modules()),
        *optimizer_tensors([policy.optimizer]),
    ]
    assert all(tensor.device.type == "cpu" and tensor.is_pinned() for tensor in tensors if tensor.numel())
    assert torch.accelerator.memory_allocated() < used
    assert policy.get_bundle_digest() == digest
    policy.reload_model()
    policy.reload_optimizer()
    assert {tensor.device.type for tensor in tensors} == {torch.device(policy.device).type}
    assert policy.get_bundle_digest() == digest
    train(policy)


class OnDevice(LinearPolicy):
    """A learner on the device that there is."""

    def __init__(self, config, role):
        super().__init__(config.model_copy(update={"train_num_gpus": 1.0}), role)
