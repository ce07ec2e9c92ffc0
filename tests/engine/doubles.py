"""Small real engines, and configurations of small runs; the policies and envs for them are registered, too."""

from __future__ import annotations

import tests.engine.envs
import tests.engine.policies  # noqa: F401 (both register what the configurations name)
from rlightning.config import ClusterConfig, Config, EnvConfig, EvalConfig, PolicyConfig, TrainConfig
from rlightning.engine.sync_engine import SyncEngine


class SpyEngine(SyncEngine):
    """Writes down what it does."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.did: list[str] = []

    def collect(self):
        self.did.append("collect")
        return super().collect()

    def learn(self):
        self.did.append("learn")
        return super().learn()

    def publish(self):
        self.did.append("publish")
        return super().publish()

    def evaluate(self):
        self.did.append("evaluate")
        return super().evaluate()


class LazyEngine(SpyEngine):
    """Forgets to publish after the first time."""

    def publish(self):
        return super().publish() if "publish" not in self.did else 0


class Notebook:
    """A recorder that keeps everything."""

    folder = None

    def __init__(self):
        self.rows: list[tuple[int, int, dict[str, float]]] = []
        self.saves: list[tuple[int, bool]] = []
        self.on_log = lambda epoch: None

    def log(self, epoch, env_steps, metrics):
        if self.rows and self.rows[-1][0] == epoch:  # those of an evaluation come by a second call
            self.rows[-1][2].update(metrics)
            return
        self.rows.append((epoch, env_steps, dict(metrics)))
        self.on_log(epoch)

    def save(self, epoch, states, *, best):
        if self.saves and self.saves[-1][0] == epoch:  # saved again, since an evaluation found it to be the best
            self.saves.pop()
        self.saves.append((epoch, best))


REMOTE = dict.fromkeys(("remote_env", "remote_eval", "remote_storage", "remote_train"), True)
CHEAP = {"train_num_cpus": 0.01, "eval_num_cpus": 0.01}


def config(*, env=None, policy=None, cluster=None, evaluation=None, engine="syncrl", seed=0, **train):
    """Build a small configuration; each section takes what differs from the usual one."""
    envs = env if isinstance(env, list) else [env or {}]
    usual = {"name": "uneven", "backend": "uneven", "num_envs": 2, "num_cpus": 0.01}
    return Config(
        seed=seed,
        engine=engine,
        env=[EnvConfig(**{**usual, **kind}) for kind in envs],
        policy=PolicyConfig(**{"type": "coin", **CHEAP, **(policy or {})}),
        cluster=ClusterConfig(**(cluster or {})),
        evaluation=EvalConfig(**{"episodes": 2, "num_envs": 2, **(evaluation or {})}),
        train=TrainConfig(**{"max_epochs": 3, "max_rollout_steps": 5, "batch_size": 5, "lr": 0.01, **train}),
    )
