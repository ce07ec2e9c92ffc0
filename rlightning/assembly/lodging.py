"""Eval policies in whose processes env workers live, between the building of the env group and of the policy group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlightning.config import Config
from rlightning.errors import ProtocolError
from rlightning.runtime.spawn import WorkerPool

_OPEN: list[Lodging] = []
"""Those that no policy group has taken over yet."""


class Lodging:
    """Processes that two groups share; whoever holds them last ends them.

    Args:
        config: What they were started for.
        pool: Ends them.
        hosts: The eval policies, in their order.
    """

    def __init__(self, config: Config, pool: WorkerPool, hosts: Sequence[Any]) -> None:
        self.config, self.pool, self.hosts = config, pool, list(hosts)
        _OPEN.append(self)

    @classmethod
    def of(cls, config: Config) -> Lodging:
        """Find the one that was started last for a configuration.

        Raises:
            ProtocolError: If there is none.
        """
        for lodging in reversed(_OPEN):
            if lodging.config == config:
                return lodging
        raise ProtocolError(
            "with cluster.placement.env_strategy=process-colocate the eval policies start with the env group: call "
            "build_env_group before build_policy_group, with the same configuration"
        )

    def hand_over(self) -> None:
        """Let the policy group end the processes from now on."""
        _OPEN.remove(self)

    def close(self) -> None:
        """End the processes where no policy group has taken them over."""
        if self in _OPEN:
            _OPEN.remove(self)
            self.pool.stop()
