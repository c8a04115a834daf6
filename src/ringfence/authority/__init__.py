"""Who allows what: the layers that are resolved into the one profile of a run."""
