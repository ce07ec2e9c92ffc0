"""Groups of policies that live here, in processes of their own, or both."""

from __future__ import annotations

import pytest

from rlightning.config import PolicyConfig
from rlightning.policy.base_policy import PolicyRole
from rlightning.policy.policy_group import PolicyGroup
from rlightning.runtime.spawn import WorkerPool, WorkerSpec

LOCAL, RAY, MIXED = "local", "ray", "mixed"
PLACES = {LOCAL: (False, False), RAY: (True, True), MIXED: (False, True)}
"""Whether the first and whether the other policies are remote."""
EVERYWHERE = [
    LOCAL,
    pytest.param(RAY, marks=pytest.mark.ray),
    pytest.param(MIXED, marks=[pytest.mark.ray, pytest.mark.slow]),
]


class Crew:
    """Makes policies; remote ones are kept for all tests, since processes start slowly."""

    def __init__(self, place):
        self.place, self._pool, self._held = place, WorkerPool(), {}

    def policies(self, cls, learners=2, actors=2, config=None):
        config = PolicyConfig() if config is None else config
        key = (cls, learners, actors, config.model_dump_json())
        if key not in self._held:
            first, others = PLACES[self.place]
            roles = [PolicyRole.TRAIN] * learners + [PolicyRole.EVAL] * actors
            specs = [
                WorkerSpec(cls, (config, role), f"{role.value}[{i}]", first if i == 0 else others, num_cpus=0.01)
                for i, role in enumerate(roles)
            ]
            self._held[key] = self._pool.start(specs)
        return self._held[key][:learners], self._held[key][learners:]

    def group(self, cls, learners=2, actors=2, *, config=None, seed=7, timeout_s=100.0):
        config = PolicyConfig() if config is None else config
        policies = self.policies(cls, learners, actors, config)
        return PolicyGroup(*policies, config, seed=seed, call_timeout_s=timeout_s)

    def stop(self):
        self._pool.stop()


def crews(request):
    """The body of a fixture that is parametrised by ``EVERYWHERE``."""
    if request.param != LOCAL:
        request.getfixturevalue("ray_cluster")
    crew = Crew(request.param)
    yield crew
    crew.stop()
