"""Skills: directories with a manifest, each a tool whose calls are checked by its own schemas and run in a box."""
