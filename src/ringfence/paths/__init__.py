"""One workspace under two names: what Windows and WSL each call it, and what the docker command is told."""
