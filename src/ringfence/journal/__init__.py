"""Evidence on disk: who writes which log, what is in it, and which calls are over."""
