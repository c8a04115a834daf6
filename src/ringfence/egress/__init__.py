"""The way out: what leaves this host for a network, decided on canonical names and resolved addresses only."""
