"""A Python interpreter that keeps its variables from one cell to the next, inside one long-running box."""
