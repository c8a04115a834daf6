"""The second tier: the same worker inside the distribution's bubblewrap."""
