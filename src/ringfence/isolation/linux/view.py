"""What every guest sees when it looks around, whichever backend built its box."""

from __future__ import annotations

GUEST_ID = 1000
"""The user and the group that a guest is, in its own eyes."""
DEVICES = ("null", "zero", "full", "random", "urandom")
DIRECTORIES = (
    "proc",
    "dev",
    "dev/shm",
    "dev/pts",
    "dev/terminal",
    "etc",
    "tmp",
    "run",
    "run/terminal",
    "var",
    "var/empty",
    "home",
    "home/sandbox",
    "opt",
    "opt/ringfence",
    "opt/ringfence/bin",
    "workspace",
    "workspace/inputs",
    "workspace/work",
    "workspace/artifacts",
)
LINKS = (
    ("/tmp", "var/tmp"),
    ("/workspace/artifacts", "output"),
    ("artifacts", "workspace/output"),
    ("work", "workspace/code"),
    ("work", "workspace/data"),
    # these two lead nowhere but in a box with terminals
    ("pts/ptmx", "dev/ptmx"),
    ("terminal/tty", "dev/tty"),
    ("/proc/self/fd", "dev/fd"),
    ("/proc/self/fd/0", "dev/stdin"),
    ("/proc/self/fd/1", "dev/stdout"),
    ("/proc/self/fd/2", "dev/stderr"),
)
GENERATED = {
    "etc/passwd": "sandbox:x:1000:1000:sandbox:/home/sandbox:/bin/bash\nnobody:x:65534:65534:nobody:/:/bin/false\n",
    "etc/group": "sandbox:x:1000:\nnogroup:x:65534:\n",
    "etc/hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "etc/hostname": "ringfence\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
