"""The same PPO run by this package, through the interface that scripts use.

python benchmarks/rlightning_ppo.py --env-id HalfCheetah-v5 --normalise 1
"""

from __future__ import annotations

from report import IterationClock, print_run
from settings import Settings

from rlightning import Config, build_data_buffer, build_engine, build_env_group, build_policy_group
from rlightning.launch import launch

PRESETS = {"CartPole-v1": "ppo_cartpole", "HalfCheetah-v5": "ppo_halfcheetah"}


def overrides(settings: Settings) -> list[str]:
    """Turn the settings of the benchmark into arguments for a preset."""
    normalise = str(bool(settings.normalise)).lower()
    return [
        f"seed={settings.seed}",
        f"train.max_epochs={settings.iterations}",
        f"train.max_rollout_steps={settings.rollout_steps}",
        f"train.batch_size={settings.batch_size}",
        f"train.lr={settings.learning_rate}",
        f"train.torch_threads={settings.threads or 1}",
        "train.eval_interval=0",
        "train.save_interval=0",
        f"policy.model_cfg.hidden_sizes=[{settings.hidden},{settings.hidden}]",
        "policy.model_cfg.activation=tanh",
        "policy.model_cfg.share_encoder=false",
        "policy.model_cfg.box_actions=clip",
        "policy.model_cfg.log_std_init=0.0",
        f"policy.model_cfg.normalize_observation={normalise}",
        f"policy.algo_cfg.scale_reward={normalise}",
        f"policy.algo_cfg.gamma={settings.gamma}",
        f"policy.algo_cfg.lam={settings.gae_lambda}",
        f"policy.algo_cfg.clip_range={settings.clip}",
        "policy.algo_cfg.clip_schedule=constant",
        f"policy.algo_cfg.update_epochs={settings.epochs}",
        f"policy.algo_cfg.value_coef={settings.value_coef}",
        "policy.algo_cfg.entropy_coef=0.0",
        "policy.algo_cfg.target_kl=null",
        "policy.algo_cfg.value_clip=null",
        "policy.algo_cfg.normalize_advantage=true",
        "policy.optim_cfg.schedule=constant",
        f"policy.optim_cfg.max_grad_norm={settings.max_grad_norm}",
        "log.progress=false",
        *([f"env.backend={settings.backend}"] if settings.backend else []),
        *([f"train.learn_threads={settings.learn_threads}"] if settings.learn_threads else []),
        f"policy.compile={str(bool(settings.compile)).lower()}",
        *places(settings),
    ]


def places(settings: Settings) -> list[str]:
    """Return the options of workers: how many, and where; on Ray, actors and envs have processes of their own."""
    sizes = [f"env.num_workers={settings.workers}", f"env.num_envs={settings.num_envs // settings.workers}"]
    if settings.collect == "local":
        return sizes
    strategy = {"steps": "default", "fragments": "process-colocate"}[settings.collect]
    return [
        *sizes,
        f"cluster.eval_worker_num={settings.workers}",
        "cluster.remote_env=true",
        "cluster.remote_eval=true",
        f"cluster.placement.env_strategy={strategy}",
    ]


def run(config: Config, clock: IterationClock) -> float:
    """Train, metrics and their log included, evaluation and checkpoint left out; returns the mean of 100 returns."""
    env_group = build_env_group(config)
    policy_group = build_policy_group(config, env_group.env_meta)
    with build_engine(config, env_group, policy_group, build_data_buffer(config)) as engine:
        engine.start()
        clock.restart()
        for _ in range(config.train.max_epochs):
            before = engine.env_steps
            metrics = engine.run_epoch()
            engine.recorder.log(engine.epoch, engine.env_steps, metrics)
            returns = [metrics["episode/return_mean_100"]] if "episode/return_mean_100" in metrics else []
            clock.tick(engine.env_steps - before, metrics["time/collect_s"], returns)
        return engine.return_mean


def main() -> None:
    settings = Settings.from_command_line(__doc__)
    clock = IterationClock()
    results: list[float] = []
    launch(lambda config: results.append(run(config, clock)), PRESETS[settings.env_id], overrides(settings))
    mean_return = round(results[0], 2) if results[0] == results[0] else None
    packages = ["rlightning", "torch", "numpy", "gymnasium"]
    print_run("rlightning", settings, clock, packages, mean_return=mean_return)


if __name__ == "__main__":
    main()
