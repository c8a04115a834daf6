"""The doctor: what this machine can isolate, what it cannot, and the command that changes that."""
