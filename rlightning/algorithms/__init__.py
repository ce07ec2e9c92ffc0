"""Algorithms: subclasses of ``BasePolicy``, selected by name."""
