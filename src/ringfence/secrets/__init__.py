"""Secrets that an agent's work needs and its output must not show: kept sealed, lent by name, masked on the way out."""
