"""Which system calls a guest may make, compiled to the bytes that the zygote loads into the kernel."""
