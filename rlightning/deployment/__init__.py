"""What was trained, without the run: acting in plain Python, and files for other programs."""
