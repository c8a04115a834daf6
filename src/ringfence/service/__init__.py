"""What stands between the doors and the pipeline: whose key it is, whose turn it is, and what was promised to whom."""
