"""How a profile came about, as the table that `ringfence policy explain` prints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ringfence.authority.layers import OnExcess, Row
from ringfence.authority.levels import NetMode
from ringfence.authority.limit_names import shown

_COLUMNS = ("setting", "default", "ceiling", "policy", "manifest", "grant", "request", "value", "why")

# Who holds each setting once it is decided; the rest is held by the guard before anything runs.
_KERNEL = "kernel"
_HOST = "host"
_HELD_BY = {
    "wall_seconds": _HOST,
    "cpu_seconds": _KERNEL,
    "cpus": _KERNEL,
    "memory_bytes": _KERNEL,
    "pids": _KERNEL,
    "disk_bytes": _KERNEL,
    "inodes": _KERNEL,
    "open_files": _KERNEL,
    "file_bytes": _KERNEL,
    "stdout_bytes": _HOST,
    "stderr_bytes": _HOST,
    "artifact_bytes": _HOST,
    "artifact_count": _HOST,
    "artifact_depth": _HOST,
    "safety": "guard",
    "isolation": _KERNEL,
    "net_mode": _KERNEL,
}


@dataclass(frozen=True, slots=True)
class Explanation:
    """Every setting of one call: what each layer said, the value, and why it is that one."""

    tool: str
    role: str | None
    policy_version_hash: str
    on_excess: OnExcess
    rows: tuple[Row, ...]

    def row(self, setting: str) -> Row:
        """Return one row by its name."""
        return next(row for row in self.rows if row.setting == setting)

    @property
    def refused(self) -> tuple[Row, ...]:
        """The rows for which the call would be refused."""
        return tuple(row for row in self.rows if row.excess) if self.on_excess is OnExcess.REFUSE else ()

    def outcome(self, row: Row) -> str:
        """Return the value as people read it, or that it is refused."""
        if row.excess and self.on_excess is OnExcess.REFUSE:
            return "refused"
        return shown(row.setting, row.value)

    def to_json(self) -> dict[str, Any]:
        """Return the table as plain values."""
        return {
            "tool": self.tool,
            "role": self.role,
            "policy_version_hash": self.policy_version_hash,
            "rows": [
                {
                    **{column: _plain(getattr(row, column)) for column in _COLUMNS},
                    "layer": row.layer,
                    "origin": row.origin,
                    "refused": bool(row.excess) and self.on_excess is OnExcess.REFUSE,
                    "held_by": held_by(row.setting),
                }
                for row in self.rows
            ],
        }

    def render(self) -> str:
        """Return the table as text, with who holds each value in the last column."""
        head = (*_COLUMNS, "held by")
        lines = [head] + [
            (
                row.setting,
                *(shown(row.setting, getattr(row, column)) for column in _COLUMNS[1:7]),
                self.outcome(row),
                row.why + (f" ({row.origin})" if row.origin else ""),
                held_by(row.setting),
            )
            for row in self.rows
        ]
        widths = [max(len(line[at]) for line in lines) for at in range(len(head))]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
        )


def held_by(setting: str) -> str:
    """Return what holds a setting once it is decided: kernel, host or proxy; the guard refuses the rest beforehand."""
    if setting == "net.http":
        return "proxy"
    return _HELD_BY.get(setting, "guard")


def is_dangerous(setting: str, value: Any) -> bool:
    """Whether a setting opens what no standard profile opens: the host's files, any network, secrets kept for long."""
    return (setting == "fs.host" and bool(value)) or (setting == "net_mode" and value == str(NetMode.UNRESTRICTED))


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
