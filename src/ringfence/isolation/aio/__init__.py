"""Boxes that are somebody else's: AIO Sandbox services, spoken to over their HTTP interface and believed in nothing."""
