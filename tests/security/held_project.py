"""A project under two policies, one that holds and one that does not, and all that could be seen to change in it."""

from __future__ import annotations

from pathlib import Path

from ringfence import SandboxManager


def written(home: Path, held: str) -> Path:
    """Write both policies; `held` is what the one that holds says of everybody."""
    (home / "held.yaml").write_text(f"policies: {{default: {{{held}}}}}\n")
    (home / "open.yaml").write_text("policies: {}\n")
    return home


def manager(home: Path, policy: str = "held") -> SandboxManager:
    """Open the project under one of them."""
    return SandboxManager("p", home=home / "home", policy_file=home / f"{policy}.yaml", pool_size=1)


def seen(home: Path) -> dict[str, object]:
    """Return what every path of the project is, so that another file of the same content is another."""
    root = home / "home/workspace/projects/p/work"
    return {
        str(path.relative_to(root)): (path.lstat().st_mode, path.lstat().st_ino, path.lstat().st_ctime_ns)
        for path in sorted(root.rglob("*"))
    }
