"""Algorithms, found by name: subclasses of ``BasePolicy``."""
