"""Counting what evidence records say happened: one recorder a fact, under the names of both metric sets."""
