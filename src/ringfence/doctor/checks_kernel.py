"""Judgements about the kernel: is everything there that a box is built from, and may this user use it."""

from __future__ import annotations

from ringfence.doctor import fixes
from ringfence.doctor.facts import Facts
from ringfence.doctor.finding import Finding, Health

FLOOR = (5, 13)
# What a newer kernel adds; below it the box stands, with the named thing done another way or not at all.
_GAINS = {
    (5, 14): "cgroup.kill and a process limit per user namespace",
    (5, 19): "memory.peak",
    (6, 2): "a switch against pushing keys into a terminal (legacy_tiocsti)",
    (6, 3): "memory files that cannot be executed (memfd_noexec)",
    (6, 6): "user attributes and quotas on tmpfs",
    (6, 7): "Landlock rules for TCP (ABI 4)",
    (6, 12): "Landlock scopes for signals and abstract sockets (ABI 6)",
}
_NAMESPACES = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")
_COMFORTABLE_NAMESPACES = 1024


def box_was_built(facts: Facts) -> Finding:
    """The only check that proves anything: the box was built in a throwaway child and observed from outside."""
    if facts.box.available:
        layers = facts.box.layers
        return Finding(
            "box.native",
            "native box",
            Health.OK,
            f"built and observed: {', '.join(layers.namespaces) or 'no'} namespaces, "
            f"{layers.seccomp_filters} seccomp filter(s), Landlock ABI {layers.landlock_abi}, cgroup {layers.cgroup}",
        )
    return Finding(
        "box.native",
        "native box",
        Health.WARN if facts.bwrap.usable else Health.FAIL,
        facts.box.reason or "could not be built",
        "the bwrap tier is used instead" if facts.bwrap.usable else "code cannot run in a box on this machine",
        facts.box.fix or "see the checks below that are not ok",
    )


def kernel_is_new_enough(facts: Facts) -> Finding:
    """Kernel 5.13 is the floor; newer ones add layers."""
    version = facts.kernel_version
    if version is None:
        return Finding("kernel.version", "kernel", Health.UNKNOWN, f"cannot read the version {facts.kernel!r}")
    if version < FLOOR:
        return Finding(
            "kernel.version",
            "kernel",
            Health.FAIL,
            f"{facts.kernel} is older than {FLOOR[0]}.{FLOOR[1]}",
            "Landlock and the mount calls that the box is built from are missing",
            f"boot a kernel {FLOOR[0]}.{FLOOR[1]} or newer (6.12 or newer has every layer)",
        )
    missing = [gain for needed, gain in _GAINS.items() if version < needed]
    return Finding(
        "kernel.version",
        "kernel",
        Health.OK,
        facts.kernel,
        f"a newer kernel adds: {'; '.join(missing)}" if missing else "",
    )


def user_namespaces_are_allowed(facts: Facts) -> Finding:
    """Three switches can forbid them: the kernel's count, Debian's old switch, Ubuntu's AppArmor restriction."""
    most = facts.sysctl.get("user.max_user_namespaces")
    if most == "0":
        return _forbidden_userns(
            "user.max_user_namespaces is 0", fixes.persistent_sysctl("user.max_user_namespaces", "65536")
        )
    if most is None and not facts.box.available:
        return _forbidden_userns(
            "the kernel has no user namespaces", "boot a kernel built with CONFIG_USER_NS=y; every distribution's is"
        )
    # root's too: a run gets its namespace from a worker that has given root's privileges up
    if facts.sysctl.get("kernel.unprivileged_userns_clone") == "0" and not facts.box.available:
        return _forbidden_userns(
            "kernel.unprivileged_userns_clone is 0", fixes.persistent_sysctl("kernel.unprivileged_userns_clone", "1")
        )
    return Finding("userns.allowed", "user namespaces", Health.OK, f"up to {most or 'an unknown number'}")


def _forbidden_userns(found: str, fix: str) -> Finding:
    return Finding(
        "userns.allowed", "user namespaces", Health.FAIL, found, "no box can be built without a user namespace", fix
    )


def apparmor_lets_us_through(facts: Facts) -> Finding:
    """Ubuntu >= 23.10 lets the namespace be made and then takes its capabilities away, so only doing it tells."""
    restricted = facts.sysctl.get("kernel.apparmor_restrict_unprivileged_userns", "0") != "0"
    if not restricted:
        return Finding("userns.apparmor", "AppArmor restriction", Health.OK, "does not restrict user namespaces")
    if facts.uid == 0:
        return Finding("userns.apparmor", "AppArmor restriction", Health.OK, "on, and does not concern root")
    if facts.box.available:
        return Finding("userns.apparmor", "AppArmor restriction", Health.OK, f"on, and {facts.interpreter} is exempt")
    return Finding(
        "userns.apparmor",
        "AppArmor restriction",
        Health.WARN if facts.bwrap.usable else Health.FAIL,
        "kernel.apparmor_restrict_unprivileged_userns is 1",
        "user namespaces of ordinary users get no capabilities (Ubuntu 23.10 and later); "
        + ("the bwrap tier is used instead" if facts.bwrap.usable else "no box can be built"),
        fixes.apparmor_profile(facts.interpreter),
    )


def namespaces_are_plenty(facts: Facts) -> Finding:
    """Each run takes one namespace of each kind, and the kernel frees network ones late."""
    counts = {kind: facts.sysctl.get(f"user.max_{kind}_namespaces") for kind in _NAMESPACES}
    known = {kind: int(count) for kind, count in counts.items() if count is not None and count.isdecimal()}
    if not known:
        return Finding("namespaces.count", "namespace counts", Health.UNKNOWN, "cannot read user.max_*_namespaces")
    kind, least = min(known.items(), key=lambda item: item[1])
    if least >= _COMFORTABLE_NAMESPACES:
        return Finding("namespaces.count", "namespace counts", Health.OK, f"at least {least} of each kind")
    return Finding(
        "namespaces.count",
        "namespace counts",
        Health.FAIL if least == 0 else Health.WARN,
        f"user.max_{kind}_namespaces is {least}",
        "no box can be built" if least == 0 else "many runs at once will be refused",
        fixes.persistent_sysctl(f"user.max_{kind}_namespaces", "65536"),
    )


def landlock_is_there(facts: Facts) -> Finding:
    """Landlock repeats the mount policy on purpose: one hole is then not enough."""
    if facts.landlock_abi > 0:
        errata = f", errata {facts.landlock_errata:#x} fixed" if facts.landlock_errata else ""
        scopes = "" if facts.landlock_abi >= 6 else "signals and abstract sockets are kept apart by namespaces alone"
        return Finding("landlock", "Landlock", Health.OK, f"ABI {facts.landlock_abi}{errata}", scopes)
    return Finding(
        "landlock",
        "Landlock",
        Health.WARN,
        "not active in this kernel",
        "files are kept apart by the mount namespace alone, without the second layer",
        fixes.landlock_boot(facts.sysctl.get("security.lsm", "")),
    )


def seccomp_is_there(facts: Facts) -> Finding:
    """Without filters a guest reaches the whole kernel, so the box is refused."""
    needed = {"errno", "kill_process", "allow"}
    if facts.seccomp_actions is None:
        if facts.box.available:
            return Finding("seccomp", "seccomp", Health.OK, "the box loads its filters; the list of actions is hidden")
        return Finding(
            "seccomp",
            "seccomp",
            Health.FAIL,
            "/proc/sys/kernel/seccomp is missing",
            "system calls cannot be filtered, so nothing runs",
            "boot a kernel built with CONFIG_SECCOMP_FILTER=y; every distribution's is",
        )
    missing = sorted(needed - facts.seccomp_actions)
    if missing:
        return Finding(
            "seccomp",
            "seccomp",
            Health.FAIL,
            f"no {', '.join(missing)} action",
            "the filter cannot be loaded, so nothing runs",
            "boot a kernel 5.13 or newer",
        )
    return Finding("seccomp", "seccomp", Health.OK, "filters with every action the box uses")


def overlay_works(facts: Facts) -> Finding:
    """A project's work directory is a capped overlay."""
    match facts.overlay_in_userns:
        case True:
            return Finding("overlay", "overlayfs", Health.OK, "mounts inside a user namespace")
        case False:
            return Finding(
                "overlay",
                "overlayfs",
                Health.WARN,
                "cannot be mounted inside a user namespace",
                "work directories are copied instead of layered: slower with large projects",
                "sudo modprobe overlay   (kernel 5.11 or newer)",
            )
        case None:
            return Finding("overlay", "overlayfs", Health.UNKNOWN, "could not be tried: no user namespace to try it in")


def tmpfs_keeps_attributes(facts: Facts) -> Finding:
    """User attributes on tmpfs came with 6.6; an overlay on tmpfs marks opaque directories with them."""
    match facts.tmpfs_user_xattr:
        case True:
            return Finding("tmpfs.xattr", "tmpfs attributes", Health.OK, "user attributes are kept")
        case False:
            return Finding(
                "tmpfs.xattr",
                "tmpfs attributes",
                Health.WARN,
                "no user attributes on tmpfs",
                "a directory that a guest deletes and makes again shows its old files in a layered work directory",
                "boot a kernel 6.6 or newer",
            )
        case None:
            return Finding("tmpfs.xattr", "tmpfs attributes", Health.UNKNOWN, "could not be tried")


def hardening(facts: Facts) -> tuple[Finding, ...]:
    """Switches of the host that matter to other programs; the box does not rest on them."""
    return (
        _switch(facts, "dev.tty.legacy_tiocsti", "0", "keys cannot be pushed into a terminal"),
        _switch(facts, "kernel.yama.ptrace_scope", "123", "processes of one user cannot read each other"),
        _switch(facts, "kernel.io_uring_disabled", "12", "io_uring is off for ordinary users"),
        Finding(
            "host.vsock",
            "vsock",
            Health.OK,
            "present; refused inside the box" if facts.vsock else "not present",
        ),
    )


def _switch(facts: Facts, name: str, good: str, meaning: str) -> Finding:
    value = facts.sysctl.get(name)
    short = name.rpartition(".")[2]
    if value is None:
        return Finding(f"host.{short}", short, Health.OK, "not in this kernel; the box does not rest on it")
    if value in good:
        return Finding(f"host.{short}", short, Health.OK, f"{name}={value}: {meaning}")
    return Finding(
        f"host.{short}",
        short,
        Health.OK,
        f"{name}={value}; the box does not rest on it",
        f"for other programs on this host, with {good[0]}: {meaning}",
        fixes.persistent_sysctl(name, good[0]),
    )


CHECKS = (
    box_was_built,
    kernel_is_new_enough,
    user_namespaces_are_allowed,
    apparmor_lets_us_through,
    namespaces_are_plenty,
    seccomp_is_there,
    landlock_is_there,
    overlay_works,
    tmpfs_keeps_attributes,
)
