"""Grants on their way out of this process and back in: tokens, keys, revocation, replay."""
