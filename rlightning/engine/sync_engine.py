"""The engine whose learner waits for the data, and whose actors wait for the weights."""

from __future__ import annotations

from rlightning.engine.base_engine import BaseEngine, numbers
from rlightning.errors import ProtocolError


class SyncEngine(BaseEngine):
    """Collects, learns and publishes, one after the other (``engine: syncrl`` and ``rsl``)."""

    def _run_epoch(self) -> dict[str, float]:
        timer = self._timer
        timer.reset()
        with timer.measure("total"):
            with timer.measure("collect"):
                self.load_to_act()
                transitions = self.collect()
            with timer.measure("learn"):
                self.load_to_learn()
                metrics = self.learn()
            with timer.measure("publish"):
                version = self.publish()
        self.epoch += 1
        self.env_steps += transitions
        total = timer.total_s("total")
        metrics |= {f"time/{name}_s": timer.total_s(name) for name in ("collect", "learn", "publish", "total")}
        metrics |= {"time/env_steps_per_s": transitions / total, "policy/version": float(version)}
        return metrics | self._count_episodes() | self._count_faults()

    def collect(self) -> int:
        """Fill the buffer with the data of one epoch.

        Returns:
            Valid transitions.
        """
        return self.collector.collect(self.config.train.max_rollout_steps).transitions

    def learn(self) -> dict[str, float]:
        """Train on the buffer's data and empty it.

        Raises:
            ProtocolError: If the data were made by older weights than the learner has.
        """
        lag = self.policy_group.update_dataset(self.buffer.sample(len(self.policy_group.train_list)))
        if lag:
            raise ProtocolError(
                f"the data of epoch {self.epoch} were made by weights {lag} versions older than the learner's: publish "
                f"after every learn"
            )
        metrics = numbers(self.policy_group.train())
        self.buffer.clear()
        return {**metrics, "policy/version_lag": float(lag)}
