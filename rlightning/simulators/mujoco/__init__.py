"""MuJoCo: worlds in native batches, and support for Gymnasium's MuJoCo envs."""
