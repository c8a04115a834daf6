"""Boxes: a backend starts parked single-use workers, and everything else is shared."""
