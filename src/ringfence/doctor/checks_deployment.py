"""The deployment check-list, item by item: judged from what was observed, or said where else it is told."""

from __future__ import annotations

from ringfence.doctor.checks_evidence import evidence
from ringfence.doctor.checks_image import sandbox_image
from ringfence.doctor.facts import Facts
from ringfence.doctor.finding import Finding, Health

_NOT_SEEN_FROM_HERE = (
    ("S1-145", "policy file", "each call names its own; 'ringfence policy lint FILE' checks it"),
    ("S1-146", "pool health", "a running service tells: GET /sandbox/health"),
    ("S1-147", "resource use", "a running service tells of each sandbox: GET /metrics"),
    ("S1-148", "network connections", "a running service tells: sandbox_egress_total of GET /metrics"),
)


def deployment(facts: Facts) -> tuple[Finding, ...]:
    """Return one finding for every item of the list."""
    here = (
        _engine_socket(facts),
        _seccomp_applied(facts),
        _non_root(facts),
        _network_isolated(facts),
        _limits_set(facts),
        *evidence(facts),
        *sandbox_image(facts),
    )
    elsewhere = (Finding(check, title, Health.UNKNOWN, told) for check, title, told in _NOT_SEEN_FROM_HERE)
    return tuple(sorted((*here, *elsewhere), key=lambda finding: finding.id))


def _engine_socket(facts: Facts) -> Finding:
    """Who may speak to an engine of root's is root: it starts containers with the host's files in them."""
    check, title = "S1-128", "engine socket"
    if not facts.engine_sockets:
        return Finding(check, title, Health.OK, "no engine of root's can be reached")
    if facts.uid == 0 and facts.inside is None:
        return Finding(check, title, Health.OK, "reachable, and this process is root anyway")
    return Finding(
        check,
        title,
        Health.WARN,
        f"this process may speak to {', '.join(facts.engine_sockets)}",
        "whoever gets hold of it can start any container, and so is root on the host",
        "use a rootless engine (deploy/compose/docker-compose.rootless.yml), or the native boxes, which need none",
    )


def _seccomp_applied(facts: Facts) -> Finding:
    count = facts.box.layers.seccomp_filters
    return _observed(facts, "S1-140", "seccomp applied", count > 0, f"{count} filter(s) on the sealed worker")


def _non_root(facts: Facts) -> Finding:
    uid = facts.box.layers.host_uid
    return _observed(facts, "S1-141", "non-root user", uid > 0, f"the worker is host uid {uid}")


def _network_isolated(facts: Facts) -> Finding:
    isolated = "net" in facts.box.layers.namespaces
    return _observed(
        facts,
        "S1-142",
        "network isolation",
        isolated,
        "a network namespace with nothing in it" if isolated else "the worker shares the host's network",
    )


def _limits_set(facts: Facts) -> Finding:
    layers = facts.box.layers
    if facts.box.available and layers.cgroup == "none":
        return Finding(
            "S1-143",
            "resource limits",
            Health.WARN,
            f"per process and by a sampler (memory: {layers.memory_limit})",
            "a group of processes can briefly exceed the memory limit",
            "see the check 'cgroups'",
        )
    return _observed(facts, "S1-143", "resource limits", layers.cgroup != "none", f"cgroup {layers.cgroup}")


def _observed(facts: Facts, check: str, title: str, good: bool, found: str) -> Finding:
    if not facts.box.available:
        return Finding(check, title, Health.UNKNOWN, "no box could be built to observe it on")
    if good:
        return Finding(check, title, Health.OK, f"observed: {found}")
    return Finding(
        check, title, Health.FAIL, f"observed: {found}", "the box lacks a layer it must have", "report this as a bug"
    )
