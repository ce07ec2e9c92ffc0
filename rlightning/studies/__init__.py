"""Many runs: compared."""
