"""What makes a log of runs evidence: sealed records, the tree over them, signed checkpoints, and the check of them."""
