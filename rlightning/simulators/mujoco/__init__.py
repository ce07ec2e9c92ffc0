"""MuJoCo: worlds stepped in native batches, and what Gymnasium's own envs need beyond Gymnasium."""
