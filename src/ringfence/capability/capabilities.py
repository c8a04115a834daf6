"""A set of capabilities: it allows what one of them allows, and two sets meet in what both allow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from ringfence.capability.canonical import canonical, digest
from ringfence.capability.form import from_json, to_json
from ringfence.capability.kind import REFUSALS, Kind, invalid
from ringfence.dataclass import dataclass, field
from ringfence.errors import InvalidRequest

if TYPE_CHECKING:
    from ringfence.capability.form import Capability
    from ringfence.operation.form import Operation


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Capabilities in normal form: none that allows nothing, none that another covers, always in the same order."""

    items: tuple[Capability, ...] = ()
    _by_name: dict[str, tuple[Capability, ...]] = field(init=False, repr=False, compare=False)
    _by_host: dict[str, list[Any]] = field(init=False, repr=False, compare=False)
    _hash: int = field(init=False, repr=False, compare=False)

    def __init__(self, items: Iterable[Capability] = ()) -> None:
        """Take capabilities in any order, written any way."""
        grouped: dict[str, list[Capability]] = {}
        for item in items:
            if not isinstance(item, Kind):
                raise invalid("capability", f"{item!r} is none")
            kept = item.normal()
            if kept is not None:
                grouped.setdefault(item.name, []).append(kept)
        normal = {
            name: tuple(sorted(cast("type[Any]", type(group[0])).unite(group), key=_order))
            for name, group in sorted(grouped.items())
        }
        object.__setattr__(self, "items", tuple(item for group in normal.values() for item in group))
        object.__setattr__(self, "_by_name", normal)
        by_host: dict[str, list[Any]] = {}
        web: Any
        for web in normal.get("net.http", ()):
            by_host.setdefault(web.host, []).append(web)
        object.__setattr__(self, "_by_host", by_host)
        object.__setattr__(self, "_hash", hash(self.items))

    def __hash__(self) -> int:
        # kept, because profiles are found again by what they were made from
        return self._hash

    def __iter__(self) -> Iterator[Capability]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def meet(self, other: Capabilities) -> Capabilities:
        """Return what allows exactly what both allow.

        Raises:
            InvalidRequest: That takes more capabilities than anybody could have meant.
        """
        if self == other:
            return self
        met: list[Any] = []
        for name in self._by_name.keys() & other._by_name.keys():
            met.extend(_meets(self._by_name[name], other._by_name[name]))
        return Capabilities(met)

    def join(self, other: Capabilities) -> Capabilities:
        """Return what allows what either allows; only ever within one authority."""
        return Capabilities((*self.items, *other.items))

    def allows(self, operation: Operation) -> bool:
        """Whether everything `operation` demands is allowed by one of these."""
        return self.refusal(operation) is None

    def refusal(self, operation: Operation) -> str | None:
        """Return why `operation` is not allowed, by the capability that came closest; nothing when it is."""
        asks = operation.kind == "code_run" and (operation.ports or operation.secrets or operation.domains)  # type: ignore[union-attr]
        if asks or operation.kind == "browser_nav" or (operation.kind == "net_http" and operation.headers):  # type: ignore[union-attr]
            from ringfence.operation.form import demands

            reasons = [self._refusal(demand) for demand in demands(operation)]
            return next((reason for reason in reasons if reason is not None), None)
        return self._refusal(operation)

    def _refusal(self, operation: Operation) -> str | None:
        closest = 0
        judges: Iterable[Any] = self._by_name.get(_JUDGE_OF.get(operation.kind, ""), ())
        if operation.kind == "net_http" and len(self._by_host) > _FEW:
            judges = _hosts_above(self._by_host, operation)
            closest = REFUSALS.index("host")
        for item in judges:
            reason = item.refusal(operation)
            if reason is None:
                return None
            closest = max(closest, REFUSALS.index(reason))
        return REFUSALS[closest]

    def covers(self, other: Capabilities) -> bool:
        """Whether `other` asks for nothing beyond these."""
        return self.meet(other) == other

    def of(self, name: str) -> tuple[Capability, ...]:
        """Return those of one `domain.action`, such as `fs.read`."""
        return self._by_name.get(name, ())

    def to_json(self) -> list[dict[str, Any] | str]:
        """Return them as a list, always in the same order."""
        return [to_json(item) for item in self.items]

    def digest(self) -> str:
        """Return the hash of the normal form."""
        return digest(self.to_json())


NO_CAPABILITIES: Final = Capabilities()
MOST_MET: Final = 512


def read_capabilities(form: object) -> Capabilities:
    """Read a list of capabilities.

    Raises:
        InvalidRequest: One of them is unknown or wrong.
    """
    if not isinstance(form, list):
        raise invalid("capabilities", "must be a list")
    return Capabilities(map(from_json, form))


# Each operation is one kind's to judge, or the meet of two kinds, which is nothing, would lose what both allow.
_JUDGE_OF = {
    "fs_read": "fs.read",
    "fs_write": "fs.write",
    "fs_mkdir": "fs.write",
    "fs_delete": "fs.write",
    "fs_list": "fs.list",
    "fs_stat": "fs.list",
    "ws_pending": "fs.read",
    "ws_commit": "fs.write",
    "ws_discard": "fs.write",
    "ws_diff": "fs.read",
    "ws_snapshots": "fs.read",
    "ws_snapshot": "fs.write",
    "ws_restore": "fs.write",
    "ws_reset": "fs.write",
    "ws_snapshot_delete": "fs.write",
    "ws_checkout": "fs.write",
    "net_http": "net.http",
    "host_reach": "net.http",
    "browser_nav": "browser.use",
    "browser_extract": "browser.use",
    "browser_screenshot": "browser.use",
    "browser_click": "browser.use",
    "browser_type": "browser.use",
    "browser_close": "browser.use",
    "proc_exec": "proc.exec",
    "tmp_alloc": "tmp.use",
    "tmp_free": "tmp.use",
    "code_run": "code.run",
    "secret_use": "secret.use",
    "port_open": "port.open",
    "gpu_use": "sys.gpu",
    "host_use": "fs.host",
}
_FEW = 8


def _hosts_above(by_host: dict[str, list[Any]], operation: Any) -> list[Any]:
    """Return the capabilities for a request's host: a thousand listed domains must not cost a thousand looks."""
    from ringfence.capability.host import above
    from ringfence.operation.target import target

    try:
        host = target(operation.url).host
    except InvalidRequest:
        return []
    return [item for pattern in above(host) for item in by_host.get(pattern, ())]


def _order(item: Capability) -> bytes:
    return canonical(item.fields())


def _meets(ours: Sequence[Any], theirs: Sequence[Any]) -> list[Any]:
    if ours[0].name == "net.http":
        # an allow-list of a thousand domains must not cost a million meets
        return cast("list[Any]", type(ours[0]).meet_all(ours, theirs))
    # what both have is met by itself, and whatever else it meets is within it
    shared = set(ours).intersection(theirs)
    met = set(shared)
    rest = [other for other in theirs if other not in shared]
    # Directories and names are nested or apart, so two lists of them meet in no more than both have. Globs and
    # templates add up instead: lists of them multiply, and a holder narrows a grant as often as he likes.
    most = max(len(ours) + len(theirs), MOST_MET)
    for one in ours:
        if one in shared:
            continue
        met.update(found for other in rest if (found := one.meet(other)) is not None)
        if len(met) > most:
            raise invalid(
                ours[0].tag,
                f"two lists of them have more than {most} in common",
                fix="narrow to fewer globs or templates",
            )
    return list(met)
