"""From a configuration to a run: which workers it has, where each goes, and the parts that are built on them."""
