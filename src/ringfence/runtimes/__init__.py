"""What runs a language: interpreters found on this machine and package environments built for it."""
