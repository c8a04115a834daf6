"""Judgements about what surrounds the box: limits, the container around us, interpreters, state, room to work."""

from __future__ import annotations

from ringfence.doctor import fixes
from ringfence.doctor.facts import Facts
from ringfence.doctor.finding import Finding, Health

_MIB = 1024 * 1024
_NEEDED_CONTROLLERS = frozenset({"memory", "pids"})


def limits_can_be_enforced(facts: Facts) -> Finding:
    """Only a cgroup bounds a group of processes; without one each process is bounded for itself."""
    cgroups = facts.cgroups
    if cgroups.writable and cgroups.controllers >= _NEEDED_CONTROLLERS:
        return Finding(
            "cgroup", "cgroups", Health.OK, f"{cgroups.kind}, writable, {', '.join(sorted(cgroups.controllers))}"
        )
    missing = sorted(_NEEDED_CONTROLLERS - cgroups.controllers)
    if cgroups.kind == "none":
        found = "no cgroup file system is mounted"
    elif not cgroups.writable:
        found = f"{cgroups.kind}, and {cgroups.path or 'its directory'} is not ours to write"
    else:
        found = f"{cgroups.kind}, delegated without {', '.join(missing)}"
    return Finding(
        "cgroup",
        "cgroups",
        Health.WARN,
        found,
        "memory and processes are limited per process and by a sampler, so a run can briefly exceed its memory limit; "
        "each result says by how much at most",
        _delegation(facts),
    )


def _delegation(facts: Facts) -> str:
    # systemd delegates no controller of v1 to a user, and no container has to be started anew
    if facts.cgroups.kind == "v1" and facts.uid != 0 and not facts.cgroups.read_only:
        return fixes.CGROUP_V1_BY_HAND
    if facts.inside in fixes.CGROUP_IN_CONTAINER:
        return fixes.CGROUP_IN_CONTAINER[facts.inside]
    if not facts.systemd:
        return fixes.CGROUP_BY_HAND
    if facts.uid == 0:
        return fixes.DELEGATE_SERVICE
    return f"once: {fixes.DELEGATE_ONCE}\nfor good:\n{fixes.DELEGATE_USER}"


def container_has_room_for_a_box(facts: Facts) -> Finding:
    """A container engine's own filter and masked /proc keep a box from being built inside."""
    if facts.inside is None:
        return Finding("inside", "surroundings", Health.OK, "not inside a container")
    if facts.box.available:
        return Finding("inside", "surroundings", Health.OK, f"inside {facts.inside}, and a box fits in")
    return Finding(
        "inside",
        "surroundings",
        Health.WARN if facts.bwrap.usable else Health.FAIL,
        f"inside {facts.inside}",
        "its system call filter, masked /proc or kernel keeps a box from being built inside it",
        fixes.container_flags(facts.inside),
    )


def second_tier_is_usable(facts: Facts) -> Finding:
    """Bwrap is exempt from Ubuntu's restriction by its path, which makes it the way out there."""
    bwrap = facts.bwrap
    if bwrap.usable:
        return Finding("box.bwrap", "bwrap (second tier)", Health.OK, f"{bwrap.path} {bwrap.version} builds a sandbox")
    needed = Health.OK if facts.box.available else Health.FAIL
    spare = "not needed: the native box works" if facts.box.available else "there is no second tier to fall back to"
    if bwrap.path is None:
        return Finding(
            "box.bwrap",
            "bwrap (second tier)",
            needed,
            "not installed",
            spare,
            None if facts.box.available else fixes.install("bubblewrap", facts.os_id),
        )
    return Finding("box.bwrap", "bwrap (second tier)", needed, f"{bwrap.path} fails: {bwrap.problem}", spare)


def third_tier_is_usable(facts: Facts) -> Finding:
    """Containers are taken where somebody asks for them, and by `auto` where no other box can be built."""
    engine = facts.engine
    check, title = "box.docker", "containers (third tier)"
    if engine.usable:
        return Finding(check, title, Health.OK, f"{engine.path} {engine.version}")
    spare = "isolation=docker is refused"
    if engine.path is None:
        return Finding(check, title, Health.OK, engine.problem or "not installed", spare)
    return Finding(check, title, Health.WARN, f"{engine.path}: {engine.problem}", spare)


def gvisor_usable(facts: Facts) -> Finding:
    """What `isolation="gvisor"`, and a policy that asks for that class, would get."""
    check, title, tool = "box.gvisor", "gVisor boxes", facts.gvisor
    if tool.usable:
        return Finding(check, title, Health.OK, f"{tool.path} of {tool.version}")
    means = "only needed for isolation gvisor: a call that asks for it is refused"
    status = Health.OK if tool.path is None else Health.WARN
    return Finding(check, title, status, tool.problem or "not installed", means)


def interpreter_is_readable(facts: Facts) -> Finding:
    """The guest runs as another user, so what it starts from must be readable to others."""
    if not facts.interpreter_unreadable:
        return Finding("python", "python", Health.OK, facts.interpreter)
    unreadable = " ".join(facts.interpreter_unreadable)
    return Finding(
        "python",
        "python",
        Health.OK if facts.uid != 0 or facts.box.available else Health.FAIL,
        f"not readable to others: {unreadable}",
        "the guest is never root, so it cannot start this interpreter when the host process is root",
        f"chmod -R o+rX {unreadable}",
    )


def runtimes_are_there(facts: Facts) -> tuple[Finding, ...]:
    """A missing runtime only takes its language away."""
    return _bash(facts), _node(facts)


def _bash(facts: Facts) -> Finding:
    if facts.bash.usable:
        return Finding("runtime.bash", "bash", Health.OK, f"{facts.bash.path} {facts.bash.version}".strip())
    return Finding(
        "runtime.bash",
        "bash",
        Health.WARN,
        facts.bash.problem or "not installed",
        "'ringfence shell' and language bash are unavailable",
        fixes.install("bash", facts.os_id),
    )


def _node(facts: Facts) -> Finding:
    node = facts.node
    if node.usable and facts.node_strips_types:
        return Finding("runtime.node", "node", Health.OK, f"{node.path} {node.version}: javascript and typescript")
    return Finding(
        "runtime.node",
        "node",
        Health.WARN,
        f"{node.path} {node.version}" if node.usable else node.problem or "not installed",
        "javascript runs; typescript needs a node that strips types, 22.13 or newer"
        if node.usable
        else "javascript and typescript are unavailable",
        "pip install 'ringfence[node]'",
    )


def home_is_private(facts: Facts) -> Finding:
    """State holds environments and, later, evidence and keys: ours to write, nobody else's to read."""
    home = facts.home
    if not home.writable:
        return Finding(
            "home",
            "state directory",
            Health.WARN,
            f"{home.path} cannot be written",
            "package environments and projects cannot be kept",
            f'sudo install -d -m 700 -o "$(id -u)" {home.path}   (or set RINGFENCE_HOME to a directory of yours)',
        )
    if home.exists and not home.owned:
        return Finding(
            "home",
            "state directory",
            Health.WARN,
            f"{home.path} belongs to another user",
            "that user can change what runs here",
            "set RINGFENCE_HOME to a directory of yours",
        )
    if home.exists and home.mode & 0o077:
        return Finding(
            "home",
            "state directory",
            Health.WARN,
            f"{home.path} has mode {home.mode:04o}",
            "other users of this machine can read what runs leave there",
            f"chmod 700 {home.path}",
        )
    return Finding(
        "home", "state directory", Health.OK, home.path if home.exists else f"{home.path} (made when needed)"
    )


def there_is_room_to_work(facts: Facts) -> tuple[Finding, ...]:
    """Memory, descriptors and process ids for a pool and a few runs."""
    return (
        _at_least(
            "room.memory",
            "free memory",
            None if facts.memory_available_bytes is None else facts.memory_available_bytes // _MIB,
            256,
            "MiB",
            "runs may be killed before they reach their own limit",
            "stop other programs, or lower memory_bytes and the pool size",
        ),
        _at_least(
            "room.files",
            "open files",
            facts.open_files_limit,
            1024,
            "",
            "a large pool runs out of descriptors",
            "ulimit -n 65536",
        ),
        _at_least(
            "room.processes",
            "processes",
            facts.processes_limit,
            1024,
            "",
            "workers cannot be parked when the user's process count is used up",
            "ulimit -u 65536   (for good: /etc/security/limits.d/60-ringfence.conf)",
        ),
        _at_least(
            "room.pids",
            "process ids",
            _number(facts.sysctl.get("kernel.pid_max")),
            16_384,
            "",
            "many runs at once use up the machine's process ids",
            fixes.persistent_sysctl("kernel.pid_max", "4194304"),
        ),
    )


def _at_least(check: str, title: str, value: int | None, least: int, unit: str, means: str, fix: str) -> Finding:
    if value is None:
        return Finding(check, title, Health.UNKNOWN, "could not be read")
    shown = f"{value} {unit}".strip()
    if value >= least or value < 0:
        return Finding(check, title, Health.OK, "unlimited" if value < 0 else shown)
    return Finding(check, title, Health.WARN, f"{shown}, less than {least}", means, fix)


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


CHECKS = (
    limits_can_be_enforced,
    container_has_room_for_a_box,
    second_tier_is_usable,
    third_tier_is_usable,
    gvisor_usable,
    interpreter_is_readable,
)
GROUPS = (runtimes_are_there, there_is_room_to_work)
