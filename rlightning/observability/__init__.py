"""What a run tells: log lines, metrics, progress, times, and the folder that keeps them."""
