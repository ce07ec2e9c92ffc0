"""An exported policy acts without this package and without torch: python act_onnx.py policy.onnx [EPISODES]."""

import json
import sys

import gymnasium as gym
import numpy as np
import onnxruntime


def main(file: str, episodes: int = 3) -> None:
    """Run whole episodes of the env that the file names."""
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    about = session.get_modelmeta().custom_metadata_map
    dtype, _ = json.loads(about["inputs"])["observation"].split(" ", 1)
    print(f"{about['env']}, version {about['weights_version']}, {about['rate_hz']} Hz")
    env = gym.make(about["env"])
    for seed in range(episodes):
        observation, _ = env.reset(seed=seed)
        total, over = 0.0, False
        while not over:
            action = session.run(None, {"observation": np.asarray(observation, dtype)[None]})[0][0]
            observation, reward, terminated, truncated, _ = env.step(action)
            total += float(reward)
            over = terminated or truncated
        print(f"episode {seed}: return {total:.1f}")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
