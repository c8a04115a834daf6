"""The service from a program's side: the same operations and outcomes, over a connection that trusts nobody else."""
