"""What this machine's kernel says about a gVisor box: read from outside, of the processes that the guest is made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ringfence.dataclass import replace
from ringfence.errors import IsolationUnavailable
from ringfence.isolation.linux import observe
from ringfence.isolation.linux.metering import children, read_proc
from ringfence.isolation.stream.parking import Hello
from ringfence.outcome import Layers

SENTRY: Final = b"boot"
GOFER: Final = b"gofer"
_ROLES: Final = {SENTRY: "kernel", GOFER: "file server"}
_NO_CAPABILITIES: Final = 0
HELD_CAPABILITIES: Final = (
    "gVisor's kernel keeps the capabilities by which it made its own empty root; they are good in its own user "
    "namespace alone"
)
ONE_ID: Final = (
    "started by an ordinary user: the box has that user's id and no other, and a guest is called root inside it, "
    "without any capability"
)


def part_of(pid: int, role: bytes) -> int:
    """Return the process that `runsc` of `pid` started in a role.

    Raises:
        IsolationUnavailable: There is none.
    """
    for child in children(pid):
        if role in read_proc(child, "cmdline").split(b"\0"):
            return child
    raise IsolationUnavailable(f"gVisor came up without its {_ROLES[role]}; nothing ran in it")


def layers_of(pid: int, hello: Hello, host: Mapping[str, str], *, cgroup: str, owns_ids: bool) -> Layers:
    """Return what holds the guest of the box whose first process is `pid`.

    Raises:
        IsolationUnavailable: The kernel does not report every layer that such a box has.
    """
    sentry, gofer = (observe.look(part_of(pid, role)) for role in (SENTRY, GOFER))
    for role, seen in ((SENTRY, sentry), (GOFER, gofer)):
        missing = missing_layers(seen, host)
        if missing:
            raise IsolationUnavailable(
                f"gVisor's {_ROLES[role]} came up without {', '.join(missing)}; nothing ran in the box"
            )
    if not hello.filters:
        raise IsolationUnavailable("the worker came up without our system call filter; nothing ran in it")
    empty = int(sentry.status["CapEff"], 16) == _NO_CAPABILITIES
    notes = (*(() if empty else (HELD_CAPABILITIES,)), *(() if owns_ids else (ONE_ID,)), *hello.notes)
    return Layers(
        namespaces=observe.NAMESPACES,
        capabilities_empty=empty,
        no_new_privs=True,
        seccomp_filters=int(sentry.status.get("Seccomp_filters", 1)),
        landlock_abi=hello.landlock_abi,
        cgroup=cgroup,
        host_uid=int(sentry.status["Uid"].split("\t")[0]),
        memory_limit="cgroup",
        notes=notes,
    )


def missing_layers(seen: observe.Observation, host: Mapping[str, str]) -> tuple[str, ...]:
    """Name every layer that a process of gVisor must have and this one has not; an empty answer is the only good one.

    Its capabilities are not among them: they are of a user namespace that it does not share with the host, and what it
    may ask of the kernel at all is in its filter.
    """
    without = {name: "0" if name.startswith("Cap") else value for name, value in seen.status.items()}
    return observe.missing_layers(replace(seen, status=without), host, filters=1)
