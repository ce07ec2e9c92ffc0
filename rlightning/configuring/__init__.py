"""From the name of a preset and ``key=value`` arguments to a validated configuration, or all that is wrong with it."""
