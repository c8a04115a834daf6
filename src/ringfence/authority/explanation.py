"""How a profile came about, as the table that `ringfence policy explain` prints."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

from ringfence.authority.layers import OnExcess, Row
from ringfence.authority.limit_names import shown
from ringfence.dataclass import dataclass

_AUTHORITIES = ("policy", "manifest", "grant")
_FOLD_AT = 24
_COLUMNS = ("setting", "default", "ceiling", "policy", "manifest", "grant", "request", "value", "why")

# Who holds each setting once it is decided; what is not here the guard refuses before anything runs.
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
    "max_concurrency": _HOST,
    "changed_paths": _HOST,
    "changed_bytes": _HOST,
    "safety": "guard",
    "isolation": _KERNEL,
    "critical_isolation": _KERNEL,
    "require_cgroups": _HOST,
    "net_mode": _KERNEL,
    "net.http": "proxy",
    "mime_allow": "proxy",
    "env_allow": _HOST,
    "output_inline": _HOST,
    "intercept_tls": "proxy",
    "commit": _HOST,
    "denied_changes": _HOST,
    # what a program is called says little about what it does
    "denied_commands": "best-effort",
    "allowed_commands": "best-effort",
    "denied_domains": "proxy",
    "denied_networks": "proxy",
    "denied_ports": "proxy",
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
        """Return the table as text, with who holds each value in the last column; long lists take several lines."""
        rows = [[[column] for column in (*_COLUMNS, "held by")], *(self._cells(row) for row in self.rows)]
        widths = [max(len(text) for row in rows for text in row[at]) for at in range(len(rows[0]))]
        return "\n".join(
            "  ".join(text.ljust(width) for text, width in zip(texts, widths, strict=True)).rstrip()
            for row in rows
            for texts in zip_longest(*row, fillvalue="")
        )

    def _cells(self, row: Row) -> list[list[str]]:
        value = [self.outcome(row)] if row.excess else _folded(row.setting, row.value)
        where = ": ".join(part for part in (row.layer if row.layer in _AUTHORITIES else "", row.origin) if part)
        why = row.why + (f" ({where})" if where and not row.excess else "")
        said = (_folded(row.setting, getattr(row, column)) for column in _COLUMNS[1:7])
        return [[row.setting], *said, value, [why], [held_by(row.setting)]]


def held_by(setting: str) -> str:
    """Return what holds a setting once it is decided: kernel, host or proxy; the guard refuses the rest beforehand."""
    return _HELD_BY.get(setting, "guard")


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _folded(setting: str, value: Any) -> list[str]:
    """Put a list on as many lines as it takes to keep its column narrow; no entry is ever broken."""
    lines = [""]
    for entry in value if isinstance(value, tuple) and value else (shown(setting, value),):
        together = f"{lines[-1]}, {entry}".removeprefix(", ")
        if lines[-1] and len(together) > _FOLD_AT:
            lines[-1] += ","
            lines.append(entry)
        else:
            lines[-1] = together
    return lines
