"""Boxes made by a container engine, driven through its command: `docker`, or any other that takes the same words."""
