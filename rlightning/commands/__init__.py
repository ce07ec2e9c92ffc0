"""What can be done with a configuration or a run: the command line, and the entry point of a user's script."""
