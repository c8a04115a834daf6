"""Linux namespaces, seccomp, Landlock and cgroups, driven by system calls; no daemon, no helper binary."""
