"""The loops: collect, learn, publish, evaluate."""
