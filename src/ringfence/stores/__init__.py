"""Where things are kept: each module implements a port of the core on one kind of storage."""
