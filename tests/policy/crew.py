"""Groups of policies that live here, in processes of their own, or both."""

from __future__ import annotations

import pytest

from rlightning.config import PolicyConfig
from rlightning.distributed import Communicator
from rlightning.policy.base_policy import PolicyRole
from rlightning.policy.policy_group import PolicyGroup
from rlightning.runtime import as_handle
from rlightning.runtime.spawn import WorkerPool, WorkerSpec
from tests.policy.policies import build_anew

LOCAL, RAY, MIXED = "local", "ray", "mixed"
PLACES = {LOCAL: (False, False), RAY: (True, True), MIXED: (False, True)}
"""Whether the first and whether the other policies are remote."""
EVERYWHERE = [
    LOCAL,
    pytest.param(RAY, marks=pytest.mark.ray),
    pytest.param(MIXED, marks=pytest.mark.ray),
]
HERE_AND_THERE = [*EVERYWHERE[:2], pytest.param(MIXED, marks=[pytest.mark.ray, pytest.mark.exhaustive])]
"""For tests of what a group does once it is formed; that mixed groups form and act is tested with all places."""


def leave_groups(policies):
    """Have policies leave all communication groups."""
    for policy in policies:
        as_handle(policy).part("_communicator").call(Communicator.close).result(60)


class Held:
    """Remote policies that are kept for further tests, since processes start slowly.

    One that was built with another configuration is built anew, in the process that is there.
    """

    def __init__(self):
        self._pool, self._policies, self._configs = WorkerPool(), {}, {}

    def take(self, specs):
        """Give the policies of some specs; those that no test has asked for before are started together."""
        keys = [(spec.cls, spec.name) for spec in specs]
        missing = [(key, spec) for key, spec in zip(keys, specs, strict=True) if key not in self._policies]
        started = self._pool.start([spec for _, spec in missing])
        self._policies.update((key, policy) for (key, _), policy in zip(missing, started, strict=True))
        self._configs.update((key, spec.args[0]) for key, spec in missing)
        for key, spec in zip(keys, specs, strict=True):
            if self._configs[key] != spec.args[0]:
                as_handle(self._policies[key]).run(build_anew, *spec.args).result(60)
                self._configs[key] = spec.args[0]
        return [self._policies[key] for key in keys]

    def forget(self, policy):
        """Start another one where a test has ended one."""
        self._policies = {key: other for key, other in self._policies.items() if other is not policy}

    def stop(self):
        self._pool.stop()
        self._policies.clear()


class Crew:
    """Makes policies; remote ones are kept until ``stop``, or longer where they are ``held`` by somebody else."""

    def __init__(self, place, held=None):
        self.place, self._own = place, Held()
        self._held = self._own if held is None else held
        self._local = {}

    def policies(self, cls, learners=2, actors=2, config=None):
        config = PolicyConfig() if config is None else config
        first, others = PLACES[self.place]
        roles = [PolicyRole.TRAIN] * learners + [PolicyRole.EVAL] * actors
        specs = []
        for i, role in enumerate(roles):
            index = i if role is PolicyRole.TRAIN else i - learners
            remote = first if i == 0 else others
            specs.append(WorkerSpec(cls, (config, role), f"{role.value}[{index}]", remote, 0.01, 0.0, {"weights": 1}))
        remote = iter(self._held.take([spec for spec in specs if spec.remote]))
        policies = [next(remote) if spec.remote else self._make(spec) for spec in specs]
        return policies[:learners], policies[learners:]

    def _make(self, spec):
        key = (spec.cls, spec.args[0].model_dump_json(), spec.name)
        if key not in self._local:
            self._local[key] = spec.cls(*spec.args)
        return self._local[key]

    def group(self, cls, learners=2, actors=2, *, config=None, seed=7, timeout_s=100.0):
        config = PolicyConfig() if config is None else config
        policies = self.policies(cls, learners, actors, config)
        return PolicyGroup(*policies, config, seed=seed, call_timeout_s=timeout_s)

    def stop(self):
        self._own.stop()


def crews(request):
    """The body of a fixture that is parametrised by one of these lists of places."""
    crew = Crew(request.param, None if request.param == LOCAL else request.getfixturevalue("held_policies"))
    yield crew
    crew.stop()
