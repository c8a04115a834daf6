"""The durable side of evidence: one log for each process, its signing key, and what recovery makes of a dead one's."""
