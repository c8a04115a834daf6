"""Long-running processes: one run of the pipeline each, with somebody attached to it while it runs."""
