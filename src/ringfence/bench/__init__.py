"""The bench: the speed and size that SPEC.md promises, measured as ratios to a bare subprocess in one run."""
