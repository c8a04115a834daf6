"""Doors: parse, call, render."""
