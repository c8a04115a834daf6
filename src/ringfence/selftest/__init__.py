"""Tries to get out of a box of this machine, with programs that ship for it, and says of each whether it was held."""
