"""Gymnasium's MuJoCo tasks, version 5, in batches.

What they observe, what is rewarded and what ends an episode follows Gymnasium's own envs
(``gymnasium/envs/mujoco/*_v5.py``), with the same options and numbers; the tests step both side by side.
"""
