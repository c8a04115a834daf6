"""What a browser sees when it looks around its box: its program, fonts, and nothing of whose machine it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from ringfence.browser.chromium import ENVIRONMENT, HOME, POLICY_PATH, policy

_DEVICES: Final = ("null", "zero", "full", "random", "urandom")
# Not /usr/bin: there is no shell in the box, and no program but those that live among libraries.
_TREES: Final = ("/usr/lib", "/usr/lib64", "/usr/lib32", "/usr/share/fonts", "/usr/share/fontconfig", "/usr/share/mime")
_TREES_IF_ANY: Final = ("/etc/fonts", "/etc/ld.so.cache", "/usr/share/chromium", "/usr/local/share/fonts")
_SHARED: Final = ("lib", "lib64", "lib32")
_DIRECTORIES: Final = (
    *("proc", "dev", "dev/shm", "tmp", "run", "var", "var/empty", "etc", "usr", "home", HOME.lstrip("/")),
    str(Path(POLICY_PATH).parent),
)
_WRITABLE: Final = (("tmp", "tmp"), ("shm", "dev/shm"), ("home", HOME.lstrip("/")))
_LINKS: Final = (
    ("/tmp", "var/tmp"),
    ("/proc/self/fd", "dev/fd"),
    ("/proc/self/fd/0", "dev/stdin"),
    ("/proc/self/fd/1", "dev/stdout"),
    ("/proc/self/fd/2", "dev/stderr"),
)
_FILES: Final = {
    "etc/passwd": f"browser:x:1000:1000:browser:{HOME}:/nowhere\n",
    "etc/group": "browser:x:1000:\n",
    "etc/hosts": "127.0.0.1 localhost\n",
    "etc/hostname": "browser\n",
    "etc/machine-id": "0" * 32 + "\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    POLICY_PATH: policy(),
}


def view() -> dict[str, Any]:
    """Return it as the launcher is told, with what of it this machine has."""
    links = list(_LINKS)
    trees = [tree for tree in (*_TREES, *_TREES_IF_ANY) if Path(tree).exists() and not Path(tree).is_symlink()]
    for name in _SHARED:
        top = Path(f"/{name}")
        if top.is_symlink():  # merged into /usr, as nearly everywhere
            links.append((str(top.readlink()), name))
        elif top.exists():
            trees.append(str(top))
    return {
        "trees": trees,
        "devices": _DEVICES,
        "directories": _DIRECTORIES,
        "writable": _WRITABLE,
        "links": links,
        "files": _FILES,
        "environment": ENVIRONMENT,
    }
