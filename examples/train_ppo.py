"""Train PPO with a script of a handful of lines; the same run as ``rlightning train ppo_cartpole``.

    python examples/train_ppo.py
    python examples/train_ppo.py seed=7 train.lr=5e-4 cluster=ray env.num_workers=2

The configuration decides where the workers run: the script is the same in one process and on Ray.
"""

from rlightning import Config, build_data_buffer, build_engine, build_env_group, build_policy_group, launch


def main(config: Config) -> None:
    """Build the four parts and run them."""
    envs = build_env_group(config)
    policies = build_policy_group(config, envs.env_meta)
    buffer = build_data_buffer(config)
    with build_engine(config, envs, policies, buffer) as engine:
        engine.run()


if __name__ == "__main__":
    launch(main, "ppo_cartpole")
