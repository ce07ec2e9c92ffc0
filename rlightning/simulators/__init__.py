"""Envs that come with the package, selected by name and imported on first use."""
