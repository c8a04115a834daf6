"""Evidence: what a record must hold so that a decision can be made again, and what can be read back from records."""
