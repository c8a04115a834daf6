"""Which Ringfence this is, for whoever must say so and may not import the whole of it."""

VERSION = "0.1.0"
