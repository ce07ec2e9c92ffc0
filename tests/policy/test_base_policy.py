"""What the framework does for a policy, and what it refuses."""

import gc
import random
import weakref
from collections import OrderedDict

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from tensordict import TensorDict
from torch import nn

from rlightning.checkpoint import load_state, save_state
from rlightning.config import OptimConfig, PolicyConfig, Section, TrainConfig
from rlightning.errors import CheckpointError, ConfigError, ProtocolError, ShapeError, WeightSyncError
from rlightning.policy.base_policy import BasePolicy, PolicyRole
from rlightning.policy.learning import versions_behind
from rlightning.policy.networks import change_role
from rlightning.policy.training_state import own_state
from rlightning.runtime.generators import global_generators, set_global_generators
from rlightning.types import PolicyResponse
from rlightning.weights import digests, flatten_names, pack
from tests.doubles import LINE_META, LinearPolicy
from tests.policy.policies import Bare, EveryKind, Scribbling, Unusual, request

TRAIN = TrainConfig(max_epochs=10, lr=0.1)


def learner(cls=LinearPolicy, seed=3, **config):
    policy = cls(PolicyConfig(**config), PolicyRole.TRAIN)
    if seed is not None:
        policy.set_seed(seed)
    policy.init_train(TRAIN)
    return policy


def actor(cls=LinearPolicy, seed=4, index=0, weights_from=None, **config):
    policy = cls(PolicyConfig(**config), PolicyRole.EVAL)
    policy.set_seed(seed, index)
    policy.init_eval()
    if weights_from is not None:
        policy.import_bundle(weights_from.export_bundle())
    return policy


def data(steps=2, rows=3, version=0):
    return TensorDict(
        {
            "observation": torch.arange(steps * rows * 2.0).view(steps, rows, 2),
            "reward": torch.ones(steps, rows),
            "version": torch.full((steps, rows), version),
        },
        [steps, rows],
    )


def trained(policy, epochs):
    metrics = []
    for _ in range(epochs):
        policy._update_dataset(data(version=policy.version))
        metrics.append((policy._train()["loss"], policy.optimizer.param_groups[0]["lr"]))
    return metrics


def values(policy):
    return {name: tensor.detach().clone() for name, tensor in flatten_names(policy.get_trainable_parameters()).items()}


# Roles and order of calls


@pytest.mark.parametrize("role", ["both", "", None, "TRAIN"])
def test_a_role_that_is_not_one_of_the_two_is_a_value_error(role):
    with pytest.raises(ValueError, match="PolicyRole"):
        LinearPolicy(PolicyConfig(), role)


def test_a_role_may_be_given_by_its_value():
    assert LinearPolicy(PolicyConfig(), "eval").role_type is PolicyRole.EVAL


def test_a_policy_is_initialised_for_its_role_only():
    with pytest.raises(ProtocolError, match="init_train is for policies of role 'train'; this one is 'eval'"):
        LinearPolicy(PolicyConfig(), PolicyRole.EVAL).init_train(TRAIN)
    with pytest.raises(ProtocolError, match="init_eval is for policies of role 'eval'; this one is 'train'"):
        LinearPolicy(PolicyConfig(), PolicyRole.TRAIN).init_eval()


@pytest.mark.parametrize(
    ("role", "call"),
    [
        ("train", lambda policy: policy._train()),
        ("train", lambda policy: policy._update_dataset(data())),
        ("train", lambda policy: policy.export_bundle()),
        ("eval", lambda policy: policy.import_bundle(pack({}, 0))),
        ("eval", lambda policy: policy._rollout(request(1))),
        ("eval", lambda policy: policy._postprocess()),
    ],
)
def test_before_init_every_call_says_to_init_first(role, call):
    policy = LinearPolicy(PolicyConfig(), role)
    assert not policy.is_initialized()
    with pytest.raises(ProtocolError, match=f"call init_{role} before"):
        call(policy)


def test_requests_before_the_first_weights_are_refused():
    policy = actor()
    assert policy.is_initialized()
    with pytest.raises(ProtocolError, match=r"no weights have come yet: call PolicyGroup\.sync_weights"):
        policy._rollout(request(1))
    policy.import_bundle(learner().export_bundle())
    assert policy._rollout(request(1)).version == 0


def test_networks_that_were_built_anew_wait_for_weights_again():
    source = learner()
    policy = actor(weights_from=source)
    policy.init_eval()
    with pytest.raises(ProtocolError, match="no weights have come yet"):
        policy._rollout(request(1))
    policy.import_bundle(source.export_bundle())
    assert policy.get_bundle_digest() == source.get_bundle_digest()


def test_check_idle_is_for_sync_rollouts():
    actor().check_idle()
    with pytest.raises(AssertionError, match="get_num_requests"):
        LinearPolicy(PolicyConfig(rollout_mode="async"), "eval").check_idle()


def test_declared_options_are_validated_and_free_ones_are_not():
    class Options(Section):
        width: int = 8

    class Declared(Bare):
        ModelOptions = Options
        AlgoOptions = Options

    policy = Declared(PolicyConfig(model_cfg={"width": 4}), "train")
    assert (policy.model_options.width, policy.algo_options.width) == (4, 8)
    with pytest.raises(ValidationError, match="widht"):
        Declared(PolicyConfig(algo_cfg={"widht": 4}), "train")
    assert Bare(PolicyConfig(model_cfg={"anything": [1]}), "train").model_options is None


# Networks


def test_all_that_acts_is_found_where_the_author_lists_nothing():
    policy = learner(Unusual)
    assert [name for name, _ in policy.model_list] == ["net", "statistics"]
    named = policy.get_trainable_parameters()
    assert set(named["statistics"]) == {"mean"}
    assert set(named["self"]) == {"log_std", "count"}
    # Linear(2, 4), BatchNorm1d(4) with its three buffers, Linear(4, 2).
    assert set(named["net"]) >= {"0.weight", "1.running_mean", "1.running_var", "1.num_batches_tracked", "2.bias"}


def test_a_list_of_the_author_is_kept():
    class Listed(Unusual):
        def construct_network(self, env_meta, *args, **kwargs):
            super().construct_network(env_meta)
            self.model_list = [("only", self.net)]

    assert set(learner(Listed).get_trainable_parameters()) == {"only", "self"}


def test_get_trainable_parameters_gives_the_live_tensors_under_plain_names():
    policy = learner()
    plain = policy.net
    # As torch.compile and DDP do it, one around the other.
    policy.net = nn.ModuleDict({"_orig_mod": nn.ModuleDict({"module": plain})})
    policy.model_list = [("net", policy.net)]
    named = policy.get_trainable_parameters()["net"]
    assert set(named) == {"weight", "bias"}
    with torch.no_grad():
        named["weight"].fill_(5)
    assert plain.weight.tolist() == [[5, 5], [5, 5]]
    unwrapped = learner()
    unwrapped.import_bundle(policy.export_bundle())
    assert unwrapped.net.weight.tolist() == [[5, 5], [5, 5]]


def test_eval_sets_inference_mode_and_never_trains():
    policy = learner(Bare)
    assert (policy.training, policy.net.training) == (True, True)
    assert policy.eval() is policy
    assert (policy.training, policy.net.training) == (False, False)
    assert not hasattr(policy, "trained")


def test_modules_learn_in_training_mode_and_act_in_inference_mode():
    assert learner(Unusual).net[1].training
    policy = actor(Unusual, weights_from=learner(Unusual))
    assert not policy.net[1].training
    before = policy.get_bundle_digest()
    policy._rollout(request(8))
    # A BatchNorm in training mode would have moved its statistics.
    assert policy.get_bundle_digest() == before


# Seeds


def test_policies_of_an_equal_seed_start_equal_and_of_another_differ():
    assert learner(seed=3).get_bundle_digest() == learner(seed=3).get_bundle_digest()
    assert learner(seed=3).get_bundle_digest() != learner(seed=4).get_bundle_digest()


@pytest.mark.parametrize("seed", [None, 3])
def test_the_users_global_generator_is_left_as_it_was(seed):
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    policy = learner(seed=seed)
    policy.reset_training_state(TRAIN)
    assert torch.equal(torch.rand(3), expected)


def test_eval_policies_sample_differently_and_repeat_with_their_seed():
    source = learner()

    def sampled(index):
        return actor(index=index, weights_from=source)._rollout(request(4)).action

    assert np.array_equal(sampled(0), sampled(0))
    assert not np.array_equal(sampled(0), sampled(1))


def test_evaluation_draws_from_its_own_generator_and_leaves_trainings_untouched():
    source = learner()
    alone, between = actor(weights_from=source), actor(weights_from=source)
    first = [alone._rollout(request(4)).action for _ in range(2)]
    second = [between._rollout(request(4)).action]
    evaluated = [between._rollout(request(4), evaluation=True).action for _ in range(2)]
    second.append(between._rollout(request(4)).action)
    assert all(map(np.array_equal, first, second))
    assert not np.array_equal(evaluated[0], evaluated[1])
    assert not np.array_equal(evaluated[0], first[0])
    between._generators.begin_evaluation(9)
    again = between._rollout(request(4), evaluation=True).action
    between._generators.begin_evaluation(9)
    assert np.array_equal(between._rollout(request(4), evaluation=True).action, again)


def test_an_evaluation_gives_the_global_generators_back_and_a_state_goes_on_with_them():
    policy = actor(weights_from=learner())
    state, before = own_state(policy), global_generators()
    policy._generators.begin_evaluation(9)
    evaluated = [random.random(), np.random.random(), torch.rand(()).item()]  # noqa: NPY002
    policy._generators.begin_evaluation(9)  # the first one failed
    assert [random.random(), np.random.random(), torch.rand(()).item()] == evaluated  # noqa: NPY002
    policy._generators.end_evaluation()
    drawn = [random.random(), np.random.random(), torch.rand(()).item()]  # noqa: NPY002
    set_global_generators(before)
    assert [random.random(), np.random.random(), torch.rand(()).item()] == drawn  # noqa: NPY002
    policy._generators.set_state(state)
    assert [random.random(), np.random.random(), torch.rand(()).item()] == drawn  # noqa: NPY002


def test_an_exception_in_evaluation_gives_trainings_generator_back():
    policy = actor(weights_from=learner())
    own = policy.generator
    misshapen = request(4)
    misshapen.observation = np.zeros((4, 5), np.float32)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        policy._rollout(misshapen, evaluation=True)
    assert policy.generator is own
    assert policy.get_num_requests() == 0


# Rollouts


def test_a_rollout_runs_under_inference_mode_on_owned_tensors_and_answers_arrays():
    seen = {}

    class Watching(Bare):
        def rollout_step(self, env_ret):
            seen.update(inference=torch.is_inference_mode_enabled(), kind=type(env_ret.observation))
            env_ret.observation += 1
            return PolicyResponse(env_ret.observation, extras={"log_prob": env_ret.observation.sum(1)})

    asked = request(2)
    answer = actor(Watching, weights_from=learner(Watching))._rollout(asked)
    assert seen == {"inference": True, "kind": torch.Tensor}
    assert asked.observation.tolist() == [[0, 0], [1, 1]]
    # (0, 0) + 1 = (1, 1), whose sum is 2; (1, 1) + 1 = (2, 2), whose sum is 4.
    assert answer.action.tolist() == [[1, 1], [2, 2]]
    assert answer.extras["log_prob"].tolist() == [2, 4]
    answer.action += 1


def test_several_requests_are_one_forward_and_every_worker_gets_its_rows_with_the_version():
    source = learner()
    trained(source, 2)
    policy = actor(weights_from=source)
    answers = policy._rollout_batch(request(2), request(1, 2), request(3, 3), deterministic=True)
    together = policy._rollout(request(6), deterministic=True)
    assert policy.forwards == 2
    assert [len(answer.action) for answer in answers] == [2, 1, 3]
    assert np.array_equal(np.concatenate([answer.action for answer in answers]), together.action)
    assert {answer.version for answer in answers} == {2}


def test_a_request_for_the_mode_is_refused_by_name_where_rollout_step_cannot_give_it():
    policy = actor(Bare, weights_from=learner(Bare))
    policy._rollout(request(1), evaluation=True)
    with pytest.raises(ConfigError, match=r"Bare\.rollout_step takes no 'deterministic'.*deterministic=false"):
        policy._rollout(request(1), evaluation=True, deterministic=True)


@pytest.mark.parametrize("field", ["action", "env_action", "extras"])
def test_an_answer_of_another_number_of_rows_is_refused(field):
    class Short(Bare):
        def rollout_step(self, env_ret):
            whole, short = torch.zeros(3, 1), torch.zeros(2, 1)
            answer = {"action": whole, "env_action": whole, "extras": {"x": whole}}
            return PolicyResponse(**answer | {field: {"x": short} if field == "extras" else short})

    with pytest.raises(ShapeError, match=r"asked for 3 rows, .* of its answer has shape \[2, 1\]"):
        actor(Short, weights_from=learner(Short))._rollout_batch(request(1), request(2))


def test_by_default_postprocess_gives_the_answer_back():
    policy = actor(weights_from=learner())
    answer = policy._rollout(request(2))
    assert policy._postprocess(request(2), answer) is answer


def test_postprocess_works_on_owned_tensors_also_where_actions_are_trees():
    class Tree(Bare):
        def postprocess(self, env_ret=None, policy_resp=None):
            assert torch.is_inference_mode_enabled()
            policy_resp.action["arm"] += 1
            policy_resp.extras["reward"] = env_ret.reward + 5
            return policy_resp

    given = PolicyResponse({"arm": np.zeros(2), "grip": np.arange(2)}, version=7)
    given.action["arm"].flags.writeable = False
    answer = actor(Tree, weights_from=learner(Tree))._postprocess(request(2), given)
    assert given.action["arm"].tolist() == [0, 0]
    assert answer.action["arm"].tolist() == [1, 1]
    assert answer.action["grip"].tolist() == [0, 1]
    assert (answer.extras["reward"].tolist(), answer.version) == ([5, 5], 7)
    assert isinstance(answer.action["arm"], np.ndarray)


def test_time_spent_is_counted_by_name_and_printed(capsys):
    policy = actor(weights_from=learner())
    for _ in range(3):
        policy._rollout(request(1))
    assert policy.timing_raw["rollout"]["count"] == 3
    policy.print_timing_summary(reset=True)
    assert "rollout" in capsys.readouterr().out
    assert "rollout" not in policy.timing_raw


# Data


def test_update_dataset_tells_how_old_the_weights_were_that_acted():
    policy = learner()
    trained(policy, 3)
    assert policy._update_dataset(data(version=3)) == 0
    mixed = data(version=3)
    mixed["version"][0, 0] = 1
    # The oldest row acted with version 1, the learner has 3.
    assert policy._update_dataset(mixed) == 2
    assert policy._update_dataset(data().exclude("version")) == 0


# Bundles


@pytest.mark.parametrize("cls", [LinearPolicy, Unusual, EveryKind])
def test_a_bundle_brings_a_policy_to_the_learners_digest_and_version(cls):
    source = learner(cls)
    policy = actor(cls, seed=9)
    assert policy.get_bundle_digest() != source.get_bundle_digest()
    source.version = 5
    assert policy.import_bundle(source.export_bundle()) == 5
    assert policy.get_bundle_digest() == source.get_bundle_digest()
    assert policy.get_param_fingerprint() == source.get_param_fingerprint()
    assert policy.get_bundle_digest()[0] == 5


def test_a_bundle_is_a_copy_and_so_is_what_was_imported():
    source = learner()
    bundle = source.export_bundle()
    policy = actor()
    policy.import_bundle(bundle)
    before = values(policy)
    trained(source, 1)
    bundle.flat[:] = 0
    assert all(torch.equal(before[name], tensor) for name, tensor in values(policy).items())


def test_a_fingerprint_is_the_norm_of_each_tensor_that_acts():
    policy = learner()
    with torch.no_grad():
        policy.net.weight.copy_(torch.tensor([[3.0, 0.0], [0.0, 4.0]]))
        policy.net.bias.zero_()
    policy.seen += 2
    # sqrt(9 + 16) = 5.
    assert policy.get_param_fingerprint() == {"net.weight": 5.0, "net.bias": 0.0, "self.seen": 2.0}


def test_one_bit_changes_the_digest_of_its_tensor_only():
    policy = learner(EveryKind)
    tensors = flatten_names(policy.get_trainable_parameters())
    for name, tensor in tensors.items():
        _, before = policy.get_bundle_digest()
        with torch.no_grad():
            flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8).clone()
            flat[:1] ^= 1
            tensor.copy_(flat.view(tensor.dtype).view(tensor.shape))
        _, after = policy.get_bundle_digest()
        changed = {key for key in before if before[key] != after[key]}
        # Tied tensors are one tensor under two names; an empty one has no bit to change.
        tied = {"net.weight", "tied.weight"}
        assert changed == (tied if name in tied else {name} if tensor.numel() else set())


def _drop(tensors):
    del tensors["net"]["bias"]


def _drop_module(tensors):
    del tensors["net"]


def _add(tensors):
    tensors["net"]["scale"] = torch.ones(1)


def _reshape(tensors):
    tensors["net"]["weight"] = tensors["net"]["weight"].view(1, 4)


def _cast(tensors):
    tensors["net"]["bias"] = tensors["net"]["bias"].double()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_drop, r"missing net\.bias"),
        (_drop_module, r"missing net\.weight; missing net\.bias"),
        (_add, r"unexpected net\.scale"),
        (_reshape, r"net\.weight is \(1, 4\) torch\.float32, expected \(2, 2\)"),
        (_cast, r"net\.bias is \(2,\) torch\.float64, expected \(2,\) torch\.float32"),
    ],
)
def test_weights_that_do_not_fit_change_nothing_and_are_raised_by_the_next_wait_and_request(change, words):
    policy = actor(weights_from=learner(seed=8))
    tensors = {module: dict(named) for module, named in learner().get_trainable_parameters().items()}
    change(tensors)
    before = policy.get_bundle_digest()
    with pytest.raises(WeightSyncError, match=f"weights of version 1 do not fit LinearPolicy .*{words}"):
        policy.import_bundle(pack(tensors, 1))
    assert policy.get_bundle_digest() == before
    with pytest.raises(WeightSyncError, match=r"the last weight update failed.*net"):
        policy.wait_for_weight_update_done(1.0)
    with pytest.raises(WeightSyncError, match=r"the last weight update failed.*net"):
        policy._rollout(request(1))
    with pytest.raises(WeightSyncError, match="net"):
        policy.load_state_dict(tensors)
    assert policy.get_bundle_digest() == before
    # Weights that fit heal it.
    policy.import_bundle(learner().export_bundle())
    assert policy.wait_for_weight_update_done() is True
    policy._rollout(request(1))


def test_weights_that_are_older_than_those_in_force_are_refused():
    source = learner()
    old = source.export_bundle()
    trained(source, 1)
    policy = actor(weights_from=source)
    before = policy.get_bundle_digest()
    with pytest.raises(WeightSyncError, match="version 0 came after those of version 1"):
        policy.import_bundle(old)
    assert policy.get_bundle_digest() == before
    with pytest.raises(WeightSyncError, match="version 0 came after"):
        policy._rollout(request(1))


def test_the_same_version_may_come_twice():
    source = learner()
    policy = actor(weights_from=source)
    assert policy.import_bundle(source.export_bundle()) == 0


def test_a_learner_has_threads_of_its_own_while_it_learns_and_also_gives_them_back_after_a_failure():
    seen = []

    class Counting(LinearPolicy):
        def update_dataset(self, data):
            seen.append(torch.get_num_threads())

        def train(self, *args, **kwargs):
            seen.append(torch.get_num_threads())
            raise ValueError("lost")

    before = torch.get_num_threads()
    policy = Counting(PolicyConfig(), PolicyRole.TRAIN)
    policy.init_train(TrainConfig(learn_threads=before + 2))
    policy._update_dataset(TensorDict({}, [0]))
    with pytest.raises(ValueError, match="lost"):
        policy._train()
    assert seen == [before + 2] * 2
    assert torch.get_num_threads() == before


def test_a_users_own_update_that_fails_is_not_reported_done():
    class Failing(LinearPolicy):
        def load_state_dict(self, state_dict, *args, **kwargs):
            raise KeyError("in the user's code")

    policy = actor(Failing)
    with pytest.raises(KeyError):
        policy.import_bundle(learner().export_bundle())
    with pytest.raises(WeightSyncError, match="in the user's code"):
        policy.wait_for_weight_update_done()
    assert policy.version == -1
    assert policy.get_num_requests() == 0


def test_a_module_that_takes_the_place_of_another_one_acts_and_is_saved():
    policy, other = learner(), actor()
    policy.net = nn.Linear(2, 2)
    assert policy.get_trainable_parameters()["net"]["weight"] is policy.net.weight
    assert torch.equal(policy.get_training_state()["modules"]["net.weight"], policy.net.weight)
    policy.net = nn.Linear(2, 3)
    with pytest.raises(WeightSyncError, match=r"net\.weight is \(3, 2\) torch\.float32, expected \(2, 2\)"):
        other.import_bundle(policy.export_bundle())


class Listed(Bare):
    """Lists what acts, and puts another network in the place of the first one."""

    def construct_network(self, env_meta, *args, **kwargs):
        self.net, self.critic = nn.Linear(2, 2), nn.Linear(2, 1)
        self.model_list = [("net", self.net)]


def test_a_module_that_takes_the_place_of_one_that_the_author_listed_acts():
    ours = learner(Listed)
    ours.net = nn.Linear(2, 2)
    assert ours.get_trainable_parameters()["net"]["weight"] is ours.net.weight
    assert [*ours.get_trainable_parameters()] == ["net"]


@pytest.mark.parametrize("names", [["net", "net"], ["net", "self"]])
def test_models_of_one_name_are_refused(names):
    class Twice(Bare):
        def construct_network(self, env_meta, *args, **kwargs):
            self.model_list = [(name, nn.Linear(2, 2)) for name in names]

    with pytest.raises(ConfigError, match="each wants a name of its own"):
        learner(Twice)


class Residual(nn.Module):
    """Adds what another module answers, which it calls as wrappers do."""

    def __init__(self, module):
        super().__init__()
        self.module, self.scale = module, nn.Parameter(torch.ones(1))


class NamedAsWrappers(Bare):
    def construct_network(self, env_meta, *args, **kwargs):
        self.net = Residual(Residual(nn.Linear(2, 2)))


def test_tensors_whose_names_would_be_the_same_without_those_of_wrappers_all_act_and_are_saved(tmp_path):
    ours, theirs = learner(NamedAsWrappers), actor(NamedAsWrappers)
    with torch.no_grad():
        for value, parameter in enumerate(ours.net.parameters()):
            parameter.fill_(value)
    ours.net = nn.DataParallel(ours.net)  # one of torch's own is told from the author's
    assert [*ours.get_trainable_parameters()["net"]] == [name for name, _ in theirs.net.named_parameters()]
    theirs.import_bundle(ours.export_bundle())
    assert [parameter.unique().tolist() for parameter in theirs.net.parameters()] == [[0.0], [1.0], [2.0], [3.0]]
    ours.save_checkpoint(tmp_path / "c")
    with torch.no_grad():
        for parameter in ours.net.parameters():
            parameter.fill_(-1)
    ours.load_checkpoint(tmp_path / "c")
    assert [parameter.unique().tolist() for parameter in ours.net.parameters()] == [[0.0], [1.0], [2.0], [3.0]]


class OwnNames(Bare):
    """Lists its tensors itself, by the names that a wrapper gives them where there is one."""

    def get_trainable_parameters(self):
        return {"net": dict(self.net.named_parameters())}


@pytest.mark.parametrize("wrapped", [PolicyRole.TRAIN, PolicyRole.EVAL])
def test_the_names_of_an_authors_own_list_are_mapped_where_one_side_is_wrapped(wrapped):
    pair = {PolicyRole.TRAIN: learner(OwnNames), PolicyRole.EVAL: actor(OwnNames)}
    pair[wrapped].net = nn.DataParallel(pair[wrapped].net)
    with torch.no_grad():
        next(pair[PolicyRole.TRAIN].net.parameters()).fill_(5)
    pair[PolicyRole.EVAL].import_bundle(pair[PolicyRole.TRAIN].export_bundle())
    assert next(pair[PolicyRole.EVAL].net.parameters()).unique().tolist() == [5.0]


def test_a_list_of_copies_is_refused_since_nothing_would_be_loaded():
    class Copies(Bare):
        def get_trainable_parameters(self):
            return {"net": {name: value.clone() for name, value in self.net.named_parameters()}}

    ours, theirs = learner(Copies), actor(Copies)
    with pytest.raises(ProtocolError, match=r"returns copies of net\.weight, net\.bias: return the tensors themselves"):
        theirs.import_bundle(ours.export_bundle())


class Unbuildable(Bare):
    """Cannot be built a second time."""

    def construct_network(self, env_meta, *args, **kwargs):
        super().construct_network(env_meta)
        if hasattr(self, "was_built"):
            raise OSError("no second time")
        self.was_built = True


def test_what_could_not_be_built_anew_neither_acts_nor_learns():
    ours = learner(Unbuildable)
    theirs = actor(Unbuildable, weights_from=ours)
    with pytest.raises(OSError, match="no second time"):
        theirs.init_eval()
    with pytest.raises(ProtocolError, match="call init_eval before rollout"):
        theirs._rollout(request(1))
    with pytest.raises(OSError, match="no second time"):
        ours.reset_training_state(TRAIN)
    with pytest.raises(ProtocolError, match="call init_train before train"):
        ours._train()


def test_a_policy_that_took_another_role_does_not_act_before_it_is_initialised_for_it():
    policy = learner()
    change_role(policy, PolicyRole.EVAL)
    with pytest.raises(ProtocolError, match="call init_eval before rollout"):
        policy._rollout(request(1))


def test_a_state_that_is_no_tensor_is_refused_by_name():
    class Counting(nn.Linear):
        def get_extra_state(self):
            return torch.tensor(1)

    ours = learner(Bare)
    ours.net = nn.Sequential(Counting(2, 2))
    with pytest.raises(ProtocolError, match=r"get_extra_state \(0\._extra_state\), which does not travel"):
        ours.export_bundle()


def test_what_an_actor_builds_after_its_start_is_refused_since_no_weights_come_for_it():
    ours, theirs = learner(Bare), actor(Bare)
    ours.target, theirs.activation = nn.Linear(2, 2), nn.Tanh()  # what only training needs, and what has no weights
    theirs.import_bundle(ours.export_bundle())
    theirs.head = nn.Linear(2, 2)
    with pytest.raises(ProtocolError, match="built head after init_eval, and no weights come for that"):
        theirs.import_bundle(ours.export_bundle())


def test_two_values_for_one_tensor_are_refused():
    ours, theirs = learner(EveryKind), actor(EveryKind)
    theirs.import_bundle(ours.export_bundle())
    ours.tied.weight = nn.Parameter(ours.net.weight.detach() + 1)
    before = theirs.get_bundle_digest()
    with pytest.raises(WeightSyncError, match=r"net\.weight and tied\.weight are one tensor, and two values are given"):
        theirs.import_bundle(ours.export_bundle())
    assert theirs.get_bundle_digest() == before
    # Who has two, gets two.
    theirs.tied.weight = nn.Parameter(torch.zeros(2, 2))
    theirs.import_bundle(ours.export_bundle())
    assert torch.equal(theirs.tied.weight, theirs.net.weight + 1)
    assert torch.equal(theirs.net.weight, ours.net.weight)


def test_what_is_answered_belongs_to_who_asked():
    class Keeping(Bare):
        def construct_network(self, env_meta, *args, **kwargs):
            self.net, self.mean, self.state = nn.Linear(2, 2), nn.Parameter(torch.ones(2)), torch.zeros(3, 1)
            self.known = np.zeros(3)

        def rollout_step(self, env_ret):
            self.state += 1
            return PolicyResponse(self.mean.expand(3, 2), extras={"state": self.state, "known": self.known})

    ours, theirs = learner(Keeping), actor(Keeping)
    theirs.import_bundle(ours.export_bundle())
    first, second = (theirs._rollout(request(3)) for _ in range(2))
    # The policy goes on writing into its state, and whoever asked into what was answered.
    first.action[0] = 7
    first.extras["known"][0] = 7
    assert first.action.tolist() == [[7.0, 7.0], [1.0, 1.0], [1.0, 1.0]]
    assert second.action.tolist() == [[1.0, 1.0]] * 3
    assert (first.extras["state"].tolist(), second.extras["state"].tolist()) == ([[1.0]] * 3, [[2.0]] * 3)
    assert (theirs.mean.tolist(), theirs.known.tolist()) == ([1.0, 1.0], [0.0] * 3)


def test_load_state_dict_takes_what_get_trainable_parameters_gives():
    source, policy = learner(), learner(seed=8)
    policy.load_state_dict(source.get_trainable_parameters())
    assert digests(values(policy)) == digests(values(source))
    assert policy.net.weight.requires_grad


def test_a_policy_and_its_tensors_end_with_their_last_user():
    source = learner()
    policy = actor(weights_from=source)
    policy.init_weight_buffer()
    policy.recv_weights(source.export_bundle())
    policy.update_weights_from_buffer()
    trained(source, 1)
    ends = [weakref.ref(held) for held in (source, source.net.weight, policy, policy.net.weight)]
    gc.disable()
    try:
        del source, policy
        assert [end() for end in ends] == [None] * 4
    finally:
        gc.enable()


# Training and its state


def test_training_counts_epochs_and_versions():
    policy = learner()
    assert (policy.epoch, policy.version) == (0, 0)
    trained(policy, 3)
    assert (policy.epoch, policy.version, int(policy.seen)) == (3, 3, 3 * 6)


def test_reset_brings_networks_optimizer_and_counters_back_and_keeps_versions_growing():
    policy, fresh = learner(), learner()
    trained(policy, 3)
    policy.reset_training_state(TRAIN, LINE_META, seed=3)
    assert policy.get_bundle_digest()[1] == fresh.get_bundle_digest()[1]
    assert (policy.epoch, policy.dataset, policy.optimizer.state_dict()["state"]) == (0, None, {})
    assert policy.optimizer.param_groups[0]["params"][0] is policy.net.weight
    # An eval policy that acts with version 3 takes what comes next.
    assert policy.version == 4
    assert trained(policy, 3) == trained(fresh, 3)


def test_reset_without_a_seed_repeats_the_initial_networks():
    policy = learner()
    trained(policy, 2)
    policy.reset_training_state(TRAIN)
    assert policy.get_bundle_digest()[1] == learner().get_bundle_digest()[1]
    policy.reset_training_state(TRAIN, seed=8)
    assert policy.get_bundle_digest()[1] == learner(seed=8).get_bundle_digest()[1]


def test_a_run_that_resumes_equals_one_that_was_not_stopped(tmp_path):
    whole, stopped = learner(), learner()
    expected = trained(whole, 8)
    got = trained(stopped, 4)
    stopped.save_checkpoint(tmp_path / "c")
    trained(stopped, 2)
    resumed = learner(seed=99)
    resumed.load_checkpoint(tmp_path / "c")
    assert (resumed.epoch, resumed.version) == (4, 4)
    # The learning rate falls from 0.1 to 0 in 10 epochs: after 4 of them it is 0.06.
    assert resumed.optimizer.param_groups[0]["lr"] == pytest.approx(0.06)
    assert got + trained(resumed, 4) == expected
    assert resumed.get_bundle_digest() == whole.get_bundle_digest()
    assert torch.equal(torch.rand(3, generator=resumed.generator), torch.rand(3, generator=whole.generator))


@pytest.mark.parametrize("container", [dict, OrderedDict, list, tuple])
def test_optimizers_that_lie_in_a_container_are_kept_too(container, tmp_path):
    class Several(LinearPolicy):
        optimizer = property(lambda self: self.steps["main"] if issubclass(container, dict) else self.steps[0])
        scheduler = property(lambda self: self.steps["falls"] if issubclass(container, dict) else self.steps[1])

        def setup_optimizer(self, optim_cfg):
            optimizer = torch.optim.Adam(self.net.parameters(), self.train_config.lr)
            pair = {"main": optimizer, "falls": torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, 10)}
            self.steps = container(pair if issubclass(container, dict) else pair.values())

    whole, stopped = learner(Several), learner(Several)
    expected = trained(whole, 5)
    got = trained(stopped, 3)
    stopped.save_checkpoint(tmp_path / "c")
    resumed = learner(Several, seed=99)
    resumed.load_checkpoint(tmp_path / "c")
    assert got + trained(resumed, 2) == expected
    assert resumed.get_bundle_digest() == whole.get_bundle_digest()
    change_role(resumed, PolicyRole.EVAL)
    assert not hasattr(resumed, "steps")


def test_training_does_not_change_a_state_that_was_taken(tmp_path):
    policy = learner()
    trained(policy, 2)
    state = policy.get_training_state()
    save_state(tmp_path / "c", {"before": state})
    trained(policy, 2)
    one, other = learner(seed=8), learner(seed=9)
    one.load_training_state(state)
    other.load_training_state(load_state(tmp_path / "c")["before"])
    assert one.get_bundle_digest() == other.get_bundle_digest() != policy.get_bundle_digest()
    assert trained(one, 2) == trained(other, 2)


def test_a_policy_may_keep_more_and_gets_it_back(tmp_path):
    class Keeping(LinearPolicy):
        exploration = 1.0

        def extra_training_state(self):
            return {"exploration": self.exploration}

        def load_extra_training_state(self, state):
            self.exploration = state["exploration"]

    policy = learner(Keeping)
    policy.exploration = 0.25
    policy.save_checkpoint(tmp_path / "c")
    resumed = learner(Keeping)
    resumed.load_checkpoint(tmp_path / "c")
    assert resumed.exploration == 0.25


def test_the_state_of_another_network_or_role_or_optimizer_changes_nothing(tmp_path):
    class TwoOptimizers(LinearPolicy):
        def setup_optimizer(self, optim_cfg):
            super().setup_optimizer(optim_cfg)
            self.second = torch.optim.SGD(self.net.parameters(), 0.1)

    class Wider(LinearPolicy):
        def construct_network(self, env_meta, *args, **kwargs):
            super().construct_network(env_meta)
            self.net = nn.Linear(2, 3)

    class OtherGroups(LinearPolicy):
        def setup_optimizer(self, optim_cfg):
            super().setup_optimizer(optim_cfg)
            self.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})

    class OtherOptimizer(LinearPolicy):
        def setup_optimizer(self, optim_cfg):
            self.optimizer = torch.optim.SGD(self.net.parameters(), 0.5, momentum=0.9)
            self.scheduler = torch.optim.lr_scheduler.LinearLR(self.optimizer, 1.0, 0.0, 10)

    policy = learner()
    trained(policy, 2)
    before, rate = policy.get_bundle_digest(), policy.optimizer.param_groups[0]["lr"]
    others = {
        r"unexpected self\.optimizer\.1\.0": learner(OtherGroups, seed=8),
        r"another optimizer .* \(KeyError": learner(OtherOptimizer, seed=8),
        r"net\.weight": learner(Wider),
        "role 'eval'": actor(seed=8, weights_from=learner(seed=8)),
        "optimizers": learner(TwoOptimizers, seed=8),
    }
    trained(others[r"another optimizer .* \(KeyError"], 3)
    for words, other in others.items():
        with pytest.raises(CheckpointError, match=words):
            policy.load_training_state(other.get_training_state())
        assert policy.get_bundle_digest() == before
    assert (policy.optimizer.param_groups[0]["lr"], policy.epoch) == (rate, 2)
    with pytest.raises(CheckpointError, match="role"):
        policy.load_training_state({})
    with pytest.raises(CheckpointError, match="no checkpoint folder"):
        policy.load_checkpoint(tmp_path / "nowhere")
    assert policy.get_bundle_digest() == before
    assert trained(policy, 1) == trained(learner(), 3)[2:]  # the optimizer goes on as if nothing had been


def test_an_eval_policy_takes_just_what_acts_from_a_learners_state():
    source = learner()
    trained(source, 3)
    policy = actor()
    policy.load_training_state(source.get_training_state(), act_only=True)
    assert policy.get_bundle_digest() == source.get_bundle_digest()
    policy._rollout(request(1))


def test_an_abstract_method_that_is_missing_is_named():
    class Incomplete(BasePolicy):
        def construct_network(self, env_meta, *args, **kwargs):
            self.net = nn.Linear(1, 1)

    with pytest.raises(TypeError, match="rollout_step"):
        Incomplete(PolicyConfig(), "train")


def test_what_a_user_writes_into_is_his_own():
    policy = actor(Scribbling, weights_from=learner(Scribbling))
    asked = request(2)
    answer = policy._rollout(asked)
    assert (asked.observation.tolist(), asked.reward.tolist()) == ([[0, 0], [1, 1]], [0, 0])
    # (0, 0) + 1 and (1, 1) + 1; the env gets twice that; the reward 0 + 1.
    assert answer.action.tolist() == [[1, 1], [2, 2]]
    assert answer.env_action.tolist() == [[2, 2], [4, 4]]
    assert answer.extras["r"].tolist() == [1, 1]


def test_the_optimizer_section_reaches_setup_optimizer():
    seen = []

    class Asking(Bare):
        def setup_optimizer(self, optim_cfg):
            seen.append((optim_cfg, self.train_config))

    learner(Asking, optim_cfg=OptimConfig(name="sgd"))
    assert seen == [(OptimConfig(name="sgd"), TRAIN)]


@pytest.mark.parametrize("anything", [None, 3, [1, 2], "piece", torch.ones(2), {"version": 4}])
def test_a_policy_that_is_fed_by_hand_may_be_given_anything(anything):
    policy = learner()
    assert policy._update_dataset(anything) == 0
    assert policy.dataset is anything


def test_an_answer_in_bfloat16_comes_with_the_same_values_in_float32():
    class Coarse(Bare):
        def rollout_step(self, env_ret):
            return PolicyResponse(env_ret.observation.bfloat16() + 0.5)

    action = actor(Coarse, weights_from=learner(Coarse))._rollout(request(2)).action
    assert action.dtype == np.float32
    assert action.tolist() == [[0.5, 0.5], [1.5, 1.5]]


def test_postprocess_may_give_anything_and_a_new_answer_keeps_its_version():
    class Finishing(Bare):
        def postprocess(self, env_ret=None, policy_resp=None):
            return {"sum": env_ret.observation.sum(1)} if policy_resp is None else PolicyResponse(policy_resp.action)

    policy = actor(Finishing, weights_from=learner(Finishing))
    assert policy._postprocess(request(2))["sum"].tolist() == [0.0, 2.0]
    assert policy._postprocess(None, policy._rollout(request(2))).version == 0


def test_what_is_asked_of_networks_that_are_not_there_yet_says_so(tmp_path):
    policy = LinearPolicy(PolicyConfig(), PolicyRole.TRAIN)
    for ask, args in [
        (policy.get_param_fingerprint, ()),
        (policy.get_bundle_digest, ()),
        (policy.save_checkpoint, (tmp_path / "c",)),
        (policy.load_checkpoint, (tmp_path / "c",)),
    ]:
        with pytest.raises(ProtocolError, match="call init_train before"):
            ask(*args)
    assert list(tmp_path.iterdir()) == []


def test_the_norm_of_complex_numbers_is_that_of_both_parts():
    class Complex(Bare):
        def construct_network(self, env_meta, *args, **kwargs):
            self.register_buffer("phase", torch.tensor([3.0 + 4.0j]))

    assert learner(Complex).get_param_fingerprint() == {"self.phase": 5.0}


def test_the_lag_is_that_of_the_oldest_known_weights_and_nothing_lags_in_an_empty_piece():
    policy = learner()
    policy.version = 7
    versions = torch.tensor([[5, -1], [6, 7]])  # -1: who acted is not known
    observation = torch.zeros(2, 2, 2)
    assert policy._update_dataset(TensorDict({"observation": observation, "version": versions}, [2, 2])) == 2
    assert versions_behind(TensorDict({"version": versions[:, :0]}, [2, 0]), 7) == 0
    assert versions_behind(TensorDict({"version": torch.full((2, 1), -1)}, [2, 1]), 7) == 0


class Answers(Bare):
    """Answers what it was told."""

    def rollout_step(self, env_ret):
        return self.answer


ROWS = torch.zeros(3)


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (ROWS, ProtocolError, r"Answers\.rollout_step must return a PolicyResponse, .* and returned a Tensor"),
        (None, ProtocolError, "and returned a NoneType"),
        (PolicyResponse(ROWS[:2]), ShapeError, r"asked for 3 rows, \[3, \.\.\.\], and action of its answer .* \[2\]"),
        (PolicyResponse(ROWS, ROWS[:1]), ShapeError, r"and env_action of its answer has shape \[1\]"),
        (PolicyResponse(ROWS, extras={"x": ROWS, "y": ROWS.sum()}), ShapeError, r"and extras\['y'\] .* shape \[\]"),
        (PolicyResponse([0, 1, 0]), ShapeError, "and action of its answer has a int and not a tensor"),
        (PolicyResponse(ROWS, extras={"x": 1.5}), ShapeError, r"and extras\['x'\] of its answer has a float"),
        (PolicyResponse(ROWS, extras={"x": None}), ShapeError, r"and extras\['x'\] of its answer has a NoneType"),
        (PolicyResponse(ROWS, extras={"x": {"h": ROWS[:1]}}), ShapeError, r"and extras\['x'\] .* shape \[1\]"),
    ],
)
def test_an_answer_that_is_none_says_what_it_should_have_been(answer, error, message):
    policy = actor(Answers, weights_from=learner(Bare))
    policy.answer = answer
    with pytest.raises(error, match=message):
        policy._rollout(request(3))
