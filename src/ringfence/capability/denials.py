"""What is refused whoever allows it: deny lists only ever grow when authorities meet."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Self, cast

from ringfence.capability.canonical import digest
from ringfence.capability.glob import change_glob, denied_glob, matches_denied, matches_text
from ringfence.dataclass import dataclass, fields
from ringfence.errors import InvalidRequest
from ringfence.operation.path import workspace_path

if TYPE_CHECKING:
    import ipaddress

    from ringfence.operation import brokered
    from ringfence.operation.form import Operation

_ON_PATHS = frozenset(
    {
        *("fs_read", "fs_write", "fs_list", "fs_stat", "fs_mkdir", "fs_delete"),
        *("ws_diff", "ws_snapshots", "ws_snapshot", "ws_restore", "ws_reset", "ws_snapshot_delete"),
        *("ws_commit", "ws_discard", "ws_pending", "ws_checkout"),
    }
)
_CHANGING = frozenset({"fs_write", "fs_mkdir", "fs_delete"})
# Where a service that must not be reached from an agent usually is: this host, its neighbours, cloud metadata.
PRIVATE_NETWORKS = frozenset(
    {
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
        "192.168.0.0/16", "198.18.0.0/15", "224.0.0.0/4", "240.0.0.0/4",
        "::/128", "::1/128", "64:ff9b::/96", "fc00::/7", "fe80::/10", "ff00::/8",
    }
)  # fmt: skip


_IN_NAMES = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-_.*?")
_IN_ADDRESSES = frozenset("0123456789abcdef:*?")
_OF_A_SHELL = frozenset("|&;<>()$`\\\"'*?[]{}\0")


@dataclass(frozen=True, slots=True)
class Denials:
    """Globs of paths and domains, networks, ports and commands that nobody may use, or change."""

    paths: frozenset[str] = frozenset()
    domains: frozenset[str] = frozenset()
    networks: frozenset[str] = frozenset()
    ports: frozenset[int] = frozenset()
    commands: frozenset[str] = frozenset()
    changes: frozenset[str] = frozenset()
    """Globs of what no run and no broker may change in a work directory."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "paths", frozenset(map(denied_glob, self.paths)))
        object.__setattr__(self, "domains", frozenset(map(denied_domain, self.domains)))
        if self.changes:
            object.__setattr__(self, "changes", frozenset(map(change_glob, self.changes)))
        if not self.networks <= PRIVATE_NETWORKS:
            object.__setattr__(self, "networks", frozenset(str(_network(network)) for network in self.networks))
        object.__setattr__(self, "commands", frozenset(map(denied_command, self.commands)))
        if not all(type(port) is int and 0 < port < 65536 for port in self.ports):
            raise InvalidRequest("a denied port must be a number from 1 to 65535", reason="invalid_denial")

    def meet(self, other: Denials) -> Self:
        """Return what either denies."""
        return type(self)(*(getattr(self, f.name) | getattr(other, f.name) for f in fields(self)))

    def refusal(self, operation: Operation) -> str | None:
        """Return what about `operation` is denied, or nothing."""
        match operation.kind:
            case kind if kind in _ON_PATHS:
                path = cast("brokered.FsRead", operation).path
                if self.denies_path(path):
                    return "denied_path"
                return "denied_change" if operation.kind in _CHANGING and self._denies(self.changes, path) else None
            case "net_http" | "browser_nav":
                return self._refusal_of(cast("brokered.BrowserNav", operation).url)
            case "proc_exec":
                wanted = cast("brokered.ProcExec", operation)
                return "denied_command" if self.denies_command(wanted.tool, wanted.args) else None
            case _:
                return None

    def denies_path(self, path: str) -> bool:
        """Whether a path, or a directory above it, is denied; a path that leads nowhere is."""
        return self._denies(self.paths, path)

    def denied_changes(self, paths: Iterable[str]) -> tuple[str, ...]:
        """Return those of `paths`, relative to a work directory, that may not be changed."""
        return _in_work(self.changes, paths)

    def denied_writes(self, paths: Iterable[str]) -> tuple[str, ...]:
        """Return those of `paths`, relative to a work directory, that no broker may write or delete."""
        return _in_work(self.changes | self.paths, paths)

    @staticmethod
    def _denies(globs: frozenset[str], path: str) -> bool:
        try:
            place = workspace_path(path)
        except InvalidRequest:
            return True
        return any(matches_denied(glob, place) for glob in globs)

    def denies_domain(self, host: str) -> bool:
        """Whether the name of a host, in its one spelling, is denied."""
        return any(matches_text(glob, host) for glob in self.domains)

    def denies_address(self, address: str) -> bool:
        """Whether an address that a name resolved to is denied, also when it is written inside an IPv6 address."""
        import ipaddress

        found: ipaddress.IPv4Address | ipaddress.IPv6Address = ipaddress.ip_address(address)
        mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
        candidates = [found] if mapped is None else [found, mapped]
        return any(candidate in _network(network) for network in self.networks for candidate in candidates)

    def denies_command(self, tool: str, args: tuple[str, ...]) -> bool:
        """Whether a program with these arguments is denied; `rm -rf` denies `rm -f -r` too."""
        return any(_is_command(command.split(), tool, args) for command in self.commands)

    def _refusal_of(self, url: str) -> str | None:
        from ringfence.operation.target import is_address, target  # a run without network does not need it

        try:
            where = target(url)
        except InvalidRequest:
            return "denied_domain"
        if self.denies_domain(where.host):
            return "denied_domain"
        if where.port in self.ports:
            return "denied_port"
        return "denied_address" if is_address(where.host) and self.denies_address(where.host) else None

    def to_json(self) -> dict[str, Any]:
        """Return the lists that are not empty, sorted."""
        return {f.name: sorted(getattr(self, f.name)) for f in fields(self) if getattr(self, f.name)}

    def digest(self) -> str:
        """Return the hash of the normal form."""
        return digest(self.to_json())


def read_denials(form: object) -> Denials:
    """Read what `Denials.to_json` returns.

    Raises:
        InvalidRequest: A list is unknown or wrong.
    """
    if not isinstance(form, dict) or not form.keys() <= {f.name for f in fields(Denials)}:
        raise InvalidRequest("denials must be an object of known lists", reason="invalid_denial")
    if not all(isinstance(value, list) for value in form.values()):
        raise InvalidRequest("each of the denials must be a list", reason="invalid_denial")
    for name, values in form.items():
        if not all(type(value) is (int if name == "ports" else str) for value in values):
            raise InvalidRequest(f"denials: {name} holds a value of another type", reason="invalid_denial")
    return Denials(**{name: frozenset(values) for name, values in form.items()})


def _in_work(globs: frozenset[str], paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(path for path in paths if any(matches_denied(glob, f"/workspace/work/{path}") for glob in globs))


def denied_domain(pattern: object) -> str:
    """Return a glob of host names or addresses in its one spelling.

    Raises:
        InvalidRequest: No host is called so, as with a URL, a port or a network: it would deny nothing.
    """
    glob = pattern.lower().removesuffix(".") if isinstance(pattern, str) else ""
    if not glob or not any(known.issuperset(glob) for known in (_IN_NAMES, _IN_ADDRESSES)):
        raise InvalidRequest(
            f"{str(pattern)[:100]!a} is not a glob of host names",
            reason="invalid_glob",
            fix="write example.com, *.example.com or 10.*, without scheme, port or path",
        )
    return glob


def denied_network(text: object) -> str:
    """Return a network in its one spelling.

    Raises:
        InvalidRequest: It is none.
    """
    return str(_network(str(text)))


def denied_command(text: object) -> str:
    """Return a command that is denied, its words once apart: the name of a program, and words it must not have.

    Raises:
        InvalidRequest: No command has such words, as with a path, a glob or a pipe: it would deny nothing.
    """
    from ringfence.capability.process import is_program  # most runs are of policies that deny no command

    words = text.split() if isinstance(text, str) else []
    if not words or not is_program(words[0]) or not _OF_A_SHELL.isdisjoint(" ".join(words)):
        raise InvalidRequest(
            f"{str(text)[:100]!a} is not a program and words of its command line",
            reason="invalid_denial",
            fix="write the bare name, perhaps with words, as 'rm -rf'; nothing is a wildcard here",
        )
    return " ".join(words)


@lru_cache(maxsize=256)
def _network(network: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    import ipaddress  # costs a millisecond that a run without network does not need

    try:
        return ipaddress.ip_network(network)
    except ValueError as error:
        raise InvalidRequest(
            f"{network[:100]!r} is not a network: {error}", reason="invalid_denial", fix="write 10.0.0.0/8 or fc00::/7"
        ) from None


def _is_command(words: list[str], tool: str, args: tuple[str, ...]) -> bool:
    if tool != words[0]:
        return False
    letters = {letter for arg in args if _is_cluster(arg) for letter in arg[1:]}
    return all(word in args or (_is_cluster(word) and letters.issuperset(word[1:])) for word in words[1:])


def _is_cluster(word: str) -> bool:
    return len(word) > 1 and word[0] == "-" and word[1] != "-"


NO_DENIALS: Final = Denials()
