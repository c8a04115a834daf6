"""Parked workers: what to keep ready is decided in `decide`, and done in `keeper`."""
