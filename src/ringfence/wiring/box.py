"""Puts together what runs code: the backend that the settings name, and the pool of parked workers in front of it."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ringfence.authority.profile import Isolation
from ringfence.dataclass import replace
from ringfence.executors.code import CodeExecutor
from ringfence.isolation.pool.decide import PoolPolicy, affordable
from ringfence.isolation.pool.keeper import Keeper
from ringfence.isolation.pool.pools import Pools
from ringfence.isolation.tiers import FirstAvailable
from ringfence.ports import Backend, WorkerSpec
from ringfence.wiring.settings import Settings
from ringfence.workspaces.run_directory import session_in

if TYPE_CHECKING:
    from ringfence.executors.ways_out import WaysOut
    from ringfence.operation.secret import SecretAsk
    from ringfence.secrets.lending import Lent
    from ringfence.secrets.registry import Registry


_MEMORY_LIMITS = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")

OnTrouble = Callable[[str, Exception], None]
"""Told which kind of box could not be had, and why."""


def build_box(
    settings: Settings,
    ways_out: Callable[[], WaysOut] | None = None,
    on_trouble: OnTrouble = lambda _kind, _error: None,
) -> tuple[CodeExecutor, Pools]:
    """Put together what runs code and the pool behind it; whoever judges calls stands in front."""
    pools = Pools(settings.isolation, lambda kind: _make_keeper(settings, kind, partial(on_trouble, str(kind))))

    def environment(packages: tuple[str, ...], tenant: str) -> str:
        return build_environment(packages, settings.home, tenant)

    return CodeExecutor(pools, environment, ways_out, partial(_lend, settings.home)), pools


def _lend(home: Path, tenant: str, asks: tuple[SecretAsk, ...]) -> Lent:
    from ringfence.secrets.lending import lend  # not at the top: most runs need none

    return lend(registry_of(home), tenant, asks)


def registry_of(home: Path) -> Registry:
    """Return the secrets that are kept in a home."""
    from ringfence.clock import SystemClock
    from ringfence.secrets.registry import Registry

    return Registry(home, SystemClock())


def make_ways_out(settings: Settings) -> WaysOut:
    """Return the proxy through which code reaches what it was granted."""
    from ringfence.egress.proxy.proxy import Proxy
    from ringfence.executors.ways_out import WaysOut

    lookup = settings.net.lookup
    proxy = Proxy() if lookup is None else Proxy(resolve=lookup)
    return WaysOut(proxy, settings.net.nat64, settings.net.ca_file)


def _make_keeper(settings: Settings, kind: Isolation, on_failure: Callable[[Exception], None]) -> Keeper:
    """Return the pool of boxes of `kind`; only that of the usual kind has workers parked before anybody asks."""
    pool = settings.pool if kind is settings.isolation else replace(settings.pool, min_idle=0)
    backend = make_backend(replace(settings, isolation=kind))
    spec = _default_spec(settings)
    if backend.fixes_limits:
        spec = replace(spec, memory_bytes=settings.limits.memory_bytes, cpus=settings.limits.cpus)
        # to start one of these keeps a processor busy for a good while: half of them are left to whoever runs
        pool = replace(pool, refills_at_once=max(1, len(os.sched_getaffinity(0)) // 2))
    return Keeper(backend, _affordable(pool), default=spec, on_failure=on_failure)


def _affordable(pool: PoolPolicy) -> PoolPolicy:
    if pool.crowd_idle <= pool.max_idle:
        return pool
    import resource  # not at the top: a single command keeps nothing for a crowd

    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        descriptors = sys.maxsize
    return affordable(pool, memory_bytes=_memory_bytes(), descriptors=descriptors)


def _memory_bytes() -> int:
    """Return the memory of this machine, or of the container that this process is in."""
    most = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in _MEMORY_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
            most = min(most, int(path.read_text(encoding="ascii")))
    return most


def build_environment(packages: tuple[str, ...], home: Path, tenant: str) -> str:
    """Return the directory of the environment with `packages` for `tenant`, building it once."""
    from ringfence.runtimes.python import python_runtime
    from ringfence.runtimes.tenants import environment_for

    return str(environment_for(tenant, packages, home / "environments", python_runtime().executable).path)


def make_backend(settings: Settings) -> Backend:
    """Return the backend that `isolation` names; `auto` is native, then bwrap, then docker, then a refusal."""
    match settings.isolation:
        case Isolation.NATIVE:
            return native_backend(settings)
        case Isolation.BWRAP:
            return bwrap_backend(settings)
        case Isolation.AUTO:
            tiers = native_backend, bwrap_backend, docker_backend
            return FirstAvailable(tuple(partial(tier, settings) for tier in tiers))
        case Isolation.DOCKER:
            return docker_backend(settings)
        case Isolation.GVISOR:
            return gvisor_backend(settings)
        case Isolation.AIO:
            return aio_backend(settings)


def aio_backend(settings: Settings) -> Backend:
    """Return the backend of AIO services: of the pool that was given, else of the instances the environment names."""
    from ringfence.isolation.aio.backend import AIOBackend
    from ringfence.isolation.aio.pool import AIOSandboxPool

    given = settings.aio_pool
    session = partial(session_in, settings.files_home)
    return AIOBackend(given or AIOSandboxPool(), session, owns_pool=given is None)


def native_backend(settings: Settings) -> Backend:
    """Return the backend made of this kernel's own parts, with what of it was started ahead."""
    from ringfence.isolation.native import ahead
    from ringfence.isolation.native.backend import backend_in

    started = ahead.take(settings.home)
    if started is not None:
        return started.backend_for(settings.files_home, settings.limits)
    return backend_in(settings.home, settings.files_home, settings.limits)


def docker_backend(settings: Settings) -> Backend:
    """Return the backend that has a container engine build the box.

    Raises:
        InvalidRequest: What the home or the environment says of the engine is none.
    """
    from ringfence.isolation.docker.backend import DockerBackend
    from ringfence.isolation.docker.configured import engine_settings
    from ringfence.workspaces.declared import read_only_mounts

    return DockerBackend(
        engine_settings(settings.home, os.environ, settings.docker_url),
        home=settings.home,
        session=partial(session_in, settings.files_home),
        limits=settings.limits,
        shown=lambda: read_only_mounts(settings.home),
    )


def bwrap_backend(settings: Settings) -> Backend:
    """Return the backend that lets the distribution's bubblewrap build the box."""
    from ringfence.isolation.bwrap.backend import BwrapBackend
    from ringfence.isolation.linux.outfit import outfit_in
    from ringfence.runtimes.node import node_command

    return BwrapBackend(
        outfit=partial(outfit_in, settings.home),
        node_command=partial(node_command, cache=settings.home / "node.json"),
        limits=settings.limits,
    )


def gvisor_backend(settings: Settings) -> Backend:
    """Return the backend that puts gVisor's kernel between a guest and this one."""
    from ringfence.images.archive import default_cache
    from ringfence.isolation.gvisor.backend import GvisorBackend
    from ringfence.isolation.gvisor.rootfs import unpacked
    from ringfence.workspaces.declared import read_only_mounts

    return GvisorBackend(
        home=settings.home,
        rootfs=lambda: unpacked(default_cache()),
        session=partial(session_in, settings.files_home),
        limits=settings.limits,
        shown=lambda: read_only_mounts(settings.home),
    )


def _default_spec(settings: Settings) -> WorkerSpec:
    limits = settings.limits
    return WorkerSpec(
        preload=settings.preload,
        disk_bytes=limits.disk_bytes,
        inodes=limits.inodes,
        open_files=limits.open_files,
        file_bytes=limits.file_bytes,
        pids=limits.pids,
    )
