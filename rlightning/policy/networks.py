"""The networks of a policy: built by its author's method from one seed, checked, and put on the device."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch

from rlightning.config import PolicyConfig
from rlightning.device import pick_device
from rlightning.policy.author_checks import check_attributes, framework_attributes
from rlightning.policy.memory import memory_of
from rlightning.policy.optimizers import steppers

if TYPE_CHECKING:
    from rlightning.policy.base_policy import BasePolicy, PolicyRole

_BUILDING = threading.Lock()
"""Held while networks are drawn from the global generator: several policies of a process may start at once."""


def build_networks(policy: BasePolicy, base: Any, *, training: bool) -> None:
    """Build the networks of a policy, in the place of those that there are.

    Args:
        policy: The policy; it is not initialised until all is there again, also after a failure.
        base: ``BasePolicy``.
        training: Whether the networks are set to training mode.
    """
    policy.is_init = False
    for name in [name for name, _ in policy.named_children()]:
        delattr(policy, name)
    policy._memory.forget()
    policy.model_list = []
    policy._weight_port.forget()
    # Networks are drawn from the global generator: lend it our seed and give it back as it was.
    policy._attributes = framework_attributes(policy, base)
    with _BUILDING, torch.random.fork_rng(devices=[]):
        if policy._generators.seed is not None:
            torch.manual_seed(policy._generators.seed)
        policy.construct_network(policy.env_meta)
    check_attributes(policy, policy._attributes)
    policy._tensors.name_models()
    for module in (policy, *(module for _, module in policy.model_list)):
        module.to(policy.device)
    set_mode(policy, training=training)


def device_of(config: PolicyConfig, role_type: PolicyRole) -> str:
    """Return the torch device on which a policy of a role computes."""
    return pick_device(config.train_num_gpus if role_type == "train" else config.eval_num_gpus)


def change_role(policy: BasePolicy, role_type: PolicyRole) -> None:
    """Change the role of a policy, which is to be initialised for it afterwards; all groups are left."""
    if policy.role_type is role_type:
        return
    policy._communicator.close()
    policy.role_type = role_type
    policy.device = device_of(policy.config, role_type)
    policy._generators.move(policy.device)
    policy._memory = memory_of(policy.device)
    policy.dataset, policy.is_init = None, False
    for name in {name.partition(".")[0] for held in steppers(policy).values() for name in held}:
        delattr(policy, name)


def set_mode(policy: BasePolicy, *, training: bool) -> None:
    """Set the training mode of all modules of a policy; ``nn.Module.train`` is its author's training step."""
    policy.training = training
    for module in (*policy.children(), *(module for _, module in policy.model_list)):
        module.train(training)
