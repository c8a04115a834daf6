"""The guard: an operation and a profile in, a verdict out; every rule is asked and the strictest answer counts."""
