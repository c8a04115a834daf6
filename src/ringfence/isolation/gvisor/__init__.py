"""Boxes behind gVisor's own kernel, started with nothing but its `runsc` program."""
