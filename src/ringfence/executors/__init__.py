"""One executor turns one kind of operation into an outcome."""
