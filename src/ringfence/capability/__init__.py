"""What a run may use and how much of it."""
