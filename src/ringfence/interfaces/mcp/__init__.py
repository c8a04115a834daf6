"""The Model Context Protocol door: the tools of a model's client, each of them an operation of the one pipeline."""
