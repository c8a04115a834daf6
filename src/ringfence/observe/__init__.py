"""Telling the world outside what the journal already holds: never in the way of a run, never instead of the journal."""
