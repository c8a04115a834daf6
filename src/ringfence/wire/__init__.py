"""Connections to services of others: bounded in time and bytes, never led elsewhere, closed when nobody waits."""
