"""Which Ringfence this is, for whoever must say so and may not import the whole of it."""

__version__ = "0.1.0"
