"""The `ringfence` command."""
