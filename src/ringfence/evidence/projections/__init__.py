"""The views of the evidence that others ask for, each made from the records and from nothing else."""
