"""Parts of this kernel that every backend on it builds with: system calls, filters, cgroups, and the parked worker."""
