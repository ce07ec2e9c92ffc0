"""Mathematics of tensors: pure functions and small values, each with its source."""
