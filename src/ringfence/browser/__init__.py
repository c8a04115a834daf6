"""A browser for pages nobody trusts: in a box of its own, whose only way out is the egress proxy."""
