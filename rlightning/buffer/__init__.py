"""Where transitions wait for the learner."""
