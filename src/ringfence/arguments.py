"""What callers may write where a choice, a text, bytes, a list or a mapping is meant; the rest is refused by name.

Each function raises `InvalidRequest` that says which argument is wrong, so that nothing untyped gets past the facade.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ringfence import wiring
from ringfence.authority.profile import Isolation, SecurityMode
from ringfence.capability.limits import MIB, Limits, as_limits
from ringfence.dataclass import replace
from ringfence.errors import InvalidRequest
from ringfence.evidence.correlation import Correlation
from ringfence.isolation.pool.decide import PoolPolicy
from ringfence.operation import WORKING_DIRECTORY

if TYPE_CHECKING:
    from ringfence.isolation.aio.pool import AIOSandboxPool
    from ringfence.outcome import OnOutput

# the usual types first: asking an abstract one is slow, and this is on the way of every run
_TEXTS = (str, bytes)
_LISTS = (tuple, list, Iterable)
_MAPPINGS = (dict, Mapping)
_BYTES = (bytes, bytearray, memoryview)
_AWAITED = 0x80 | 0x200  # CO_COROUTINE, CO_ASYNC_GENERATOR
_Choice = TypeVar("_Choice", SecurityMode, Isolation)


def choice(kind: type[_Choice], value: object, name: str) -> _Choice:
    """Return the choice that `value` is or names."""
    try:
        return kind(value)  # type: ignore[arg-type]
    except ValueError:
        known = ", ".join(kind)
        raise InvalidRequest(f"{name} must be one of {known}, not {value!r}", reason=f"unknown_{name}") from None


def pool_policy(pool_size: int | None) -> PoolPolicy:
    """Return how many workers to keep parked."""
    if pool_size is None:
        return PoolPolicy()
    if not _is_whole(pool_size) or pool_size < 0:
        raise InvalidRequest(f"pool_size must be a whole number from 0, not {pool_size!r}", reason="invalid_pool_size")
    return replace(
        PoolPolicy(), min_idle=min(PoolPolicy().min_idle, pool_size), max_idle=pool_size, crowd_idle=pool_size
    )


def directory(cwd: object) -> str:
    """Return where a program starts: a directory of its workspace, absolute or relative to the usual one."""
    if cwd is None:
        return WORKING_DIRECTORY
    from ringfence.operation.path import workspace_path  # not at the top: most programs start where all do

    return workspace_path(cwd if not isinstance(cwd, str) or cwd.startswith("/") else f"work/{cwd}")


def switched_off(executors: object) -> frozenset[str]:
    """Return the domains that are mapped to false."""
    if executors is None:
        return frozenset()
    if not isinstance(executors, _MAPPINGS) or not all(isinstance(wanted, bool) for wanted in executors.values()):
        raise InvalidRequest(f"executors must map domains to true or false, not {executors!r}", reason="invalid_name")
    if unknown := executors.keys() - set(wiring.DOMAINS):
        known = ", ".join(wiring.DOMAINS)
        raise InvalidRequest(f"executors: {min(map(str, unknown))!r} is not one of {known}", reason="invalid_name")
    off = frozenset(domain for domain, wanted in executors.items() if not wanted)
    # whoever wants no files touched by a broker wants no history of them either
    return off | {"workspace", "proposals"} if "fs" in off else off


def budget_service(url: object) -> str | None:
    """Return the URL of the quota service, or the environment's."""
    if url is None:
        return wiring.default_budget_service()
    if not isinstance(url, str):
        raise InvalidRequest(f"budget_service must be a URL, not {url!r}", reason="invalid_url")
    return url


def database(url: object) -> str | None:
    """Return the URL of the database, or the environment's."""
    if url is None:
        return wiring.default_database()
    if not isinstance(url, str):
        raise InvalidRequest("database must be a URL", reason="invalid_url")
    return url


def aio_pool(pool: object) -> AIOSandboxPool | None:
    """Return the pool of AIO instances that whoever makes a manager gave it.

    Raises:
        InvalidRequest: It is none.
    """
    if pool is None:
        return None
    from ringfence.isolation.aio.pool import AIOSandboxPool

    if not isinstance(pool, AIOSandboxPool):
        raise InvalidRequest(f"aio_pool must be an AIOSandboxPool, not {pool!r}", reason="invalid_value")
    return pool


def correlation(given: object) -> Correlation:
    """Return whose work it is, as whoever makes a manager said.

    Raises:
        InvalidRequest: It is no `Correlation`.
    """
    if not isinstance(given, Correlation):
        raise InvalidRequest(
            f"correlation must be a Correlation, not {given!r}",
            reason="invalid_value",
            fix='write Correlation(task_id="T-7")',
        )
    return given


def engine_address(url: object) -> str | None:
    """Return where the container engine listens, as whoever makes a manager says.

    Raises:
        InvalidRequest: It is no address of one.
    """
    if url is None:
        return None
    if not isinstance(url, str):
        raise InvalidRequest(f"docker_url must be an address, not {url!r}", reason="invalid_url")
    from ringfence.isolation.docker.settings import EngineSettings

    return EngineSettings(url=url).url


def _is_whole(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool)


def with_memory(limits: Limits | None, memory_mb: int | None) -> Limits | None:
    """Return the limits with so much memory."""
    if memory_mb is None:
        return limits
    if not _is_whole(memory_mb):
        raise InvalidRequest(f"memory_mb must be a whole number, not {memory_mb!r}", reason="invalid_limit")
    return replace(Limits() if limits is None else as_limits(limits), memory_bytes=memory_mb * MIB)


def place(name: str, where: object) -> Path | None:
    """Return a path as it lies now: a program that steps into somebody's project must not find another thing there.

    Raises:
        InvalidRequest: It is none, or relative to a directory that is gone.
    """
    if where is None:
        return None
    if not isinstance(where, str | Path) or not str(where) or "\0" in str(where) or not _can_be_a_name(str(where)):
        raise InvalidRequest(f"{name} must be a path, not {where!r}", reason="invalid_value")
    try:
        return Path(where).absolute()
    except FileNotFoundError:
        raise InvalidRequest(
            f"{name} {str(where)!r} is relative, and the current directory is gone",
            reason="invalid_value",
            fix="give an absolute path",
        ) from None


def _can_be_a_name(text: str) -> bool:
    """Whether the file system could be asked for it: half of a surrogate pair has no bytes."""
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True


def listener(on_output: OnOutput | None) -> OnOutput | None:
    """Return who listens to a run, if he can: he is called, and nobody waits for what he returns.

    Raises:
        InvalidRequest: It is no function, or one whose call does nothing before it is awaited.
    """
    if on_output is None:
        return None
    called: object = on_output  # whatever its type says
    if not callable(called) or _is_awaited(called):
        raise InvalidRequest(
            f"on_output must be a plain function of a name and bytes, not {on_output!r}",
            reason="invalid_value",
            fix="pass a `def`, or iterate over manager.stream(…)",
        )
    return on_output


def _is_awaited(called: object) -> bool:
    """Whether it was written with `async def`: `inspect` would say so, which takes every command a while to import."""
    while isinstance(called, partial):
        called = called.func
    return bool(getattr(getattr(called, "__code__", None), "co_flags", 0) & _AWAITED)


def text(code: object) -> str:
    """Return code as text."""
    if isinstance(code, bytes):
        try:
            return code.decode()
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"code is not UTF-8: {error}", reason="invalid_text") from None
    if not isinstance(code, str):
        raise InvalidRequest(f"code must be text, not {type(code).__name__}", reason="invalid_text")
    return code


def strings(name: str, values: object) -> tuple[str, ...]:
    """Return a list of texts as a tuple."""
    # a text is an iterable of texts too, and never what was meant
    if isinstance(values, _TEXTS) or not isinstance(values, _LISTS):
        raise InvalidRequest(f"{name} must be a list of texts, not {values!r}", reason=f"invalid_{name}")
    strings = tuple(values)
    for value in strings:
        if not isinstance(value, str):
            raise InvalidRequest(f"{name} must be a list of texts; {value!r} is none", reason=f"invalid_{name}")
    return strings


def directories(name: str, values: object) -> tuple[Path, ...]:
    """Return a list of directories, as they lie now: whoever changes directory later means the same ones."""
    if isinstance(values, (*_TEXTS, Path)) or not isinstance(values, _LISTS):
        raise InvalidRequest(f"{name} must be a list of directories, not {values!r}", reason="invalid_value")
    found = tuple(values)
    for value in found:
        if not isinstance(value, str | Path):
            raise InvalidRequest(f"{name} must be a list of directories; {value!r} is none", reason="invalid_value")
    return tuple(Path(value).absolute() for value in found)


def contents(name: str, files: object) -> dict[str, bytes]:
    """Return files by their names."""
    if not isinstance(files, _MAPPINGS):
        raise InvalidRequest(f"{name} must map names to contents, not {files!r}", reason="invalid_content")
    return {_name(name, path): as_bytes(path, content) for path, content in files.items()}


def environment(env: object) -> dict[str, str]:
    """Return variables by their names."""
    if not isinstance(env, _MAPPINGS):
        raise InvalidRequest(f"env must map names to texts, not {env!r}", reason="invalid_env")
    for variable, value in env.items():
        _name("env", variable)
        if not isinstance(value, str):
            raise InvalidRequest(f"env {variable} must be text, not {value!r}", reason="invalid_env")
    return dict(env)


def _name(where: str, name: object) -> str:
    if not isinstance(name, str):
        raise InvalidRequest(f"{where}: {name!r} is not a name", reason="invalid_name")
    return name


def as_bytes(name: str, content: object) -> bytes:
    """Return a content as bytes."""
    if isinstance(content, str):
        try:
            return content.encode()
        except UnicodeEncodeError:
            fix = "pass bytes" if name == "stdin" else "pass its content as bytes"
            raise InvalidRequest(f"{name} is not valid Unicode text", reason="invalid_text", fix=fix) from None
    if isinstance(content, _BYTES):
        return bytes(content)
    raise InvalidRequest(f"{name} must be bytes or text, not {type(content).__name__}", reason="invalid_content")
