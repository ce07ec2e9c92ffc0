"""Envs that come with the package; found by name, imported only when used."""
