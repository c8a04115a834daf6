"""Makes a container that was just started a parked worker: sends it its init and files, waits until it is sealed."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ringfence.capability.limits import Limits
from ringfence.dataclass import dataclass
from ringfence.errors import InternalError, InvalidRequest, IsolationUnavailable, QuotaExceeded, RuntimeMissing
from ringfence.isolation.linux import egress_door
from ringfence.isolation.linux.seccomp import filters
from ringfence.isolation.protocol import Kind, ProtocolError
from ringfence.isolation.stream.boot import bundle
from ringfence.isolation.stream.files import send_session
from ringfence.isolation.stream.host import StreamWorker
from ringfence.isolation.stream.line import HungUp, Line, Silence, Talk
from ringfence.isolation.stream.way_out import WayOut
from ringfence.operation import Language
from ringfence.outcome import Layers, SandboxType
from ringfence.ports import WorkerSpec
from ringfence.runtimes import node
from ringfence.runtimes.places import BOX_PACKAGES
from ringfence.workspaces.session import SessionWorkspace

START_SECONDS = 60.0
"""How long a container may take to say that it is ready, with everything it has to load and to be sent."""

_MACHINES = ("x86_64", "aarch64")
_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin",
    "HOME": "/home/sandbox",
    "USER": "sandbox",
    "LOGNAME": "sandbox",
    "LANG": "C.UTF-8",
    "TMPDIR": "/tmp",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONNOUSERSITE": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
_NOTES = {
    "no_landlock": "no Landlock in this container: only its mounts keep the rest of it from being written",
    "no_filter": "no system call filter of ours in this container: only its engine's",
    "oom_score": "when memory is short in this container, its init may be killed instead of the program",
    "no_inodes": "the number of files is not limited in this container, but by its memory",
    "no_alias": "the image has no /output, /workspace/output, /workspace/code or /workspace/data",
    "no_home": "the image has no home directory that can be written: HOME is the temporary directory",
}


@dataclass(frozen=True, slots=True)
class Hello:
    """What the init says of its container; believed only where it makes the host trust the container less."""

    worker_pid: int
    """The worker's number inside the container, where its init is 1."""
    python: str
    landlock_abi: int
    filters: int
    """How many filters of ours the worker loaded, on top of the engine's."""
    notes: tuple[str, ...]


def park(
    line: Line,
    spec: WorkerSpec,
    *,
    sandbox_id: str,
    backend: str,
    sandbox_type: SandboxType,
    limits: Limits,
    inputs: Path | None,
    session: SessionWorkspace | None,
    observe: Callable[[Hello], Layers],
    on_discard: Callable[[], None],
    guest_id: int | None = None,
    seconds: float = START_SECONDS,
) -> StreamWorker:
    """Make the container at the end of `line`, which runs `boot.COMMAND`, a parked worker; it takes over the line.

    `inputs` is the directory of the host that the container shows, read-only, as `/workspace/inputs`; where there is
    none, inputs travel through the stream, and Landlock alone keeps the guest from changing them. `limits` are those of
    a session's files. A `guest_id` is for a container that starts as root, with the capabilities to become another: its
    init stays apart from the guest, who has that id. What is not as it should be is killed, and its descriptors are
    closed, when this raises.

    Raises:
        IsolationUnavailable: The container is not what a box has to be, or `observe` says so.
        InvalidRequest: A module cannot be preloaded.
        RuntimeMissing: The image lacks the language.
        InternalError: The container ended, or was silent, or spoke nonsense.
    """
    talk = Talk(line)
    deadline = time.monotonic() + seconds
    try:
        talk.send(memoryview(bundle()))
        talk.say(Kind.SETUP, json.dumps(_setup(spec, session=session is not None, guest_id=guest_id)).encode())
        generation = 0
        if session is not None:
            try:
                generation = send_session(talk, session, deadline, inodes=limits.inodes)
            except Silence:
                raise InternalError(f"the container did not take its session's files{_said(talk)}") from None
            _require_placed(talk, deadline)
        hello = _hello(_await(talk, Kind.READY, deadline))
        layers = observe(hello)
        way_out = _way_out() if spec.egress else None
    except BaseException:
        talk.close()
        line.kill()
        if session is not None:
            session.close()
        raise
    return StreamWorker(
        sandbox_id=sandbox_id,
        backend=backend,
        sandbox_type=sandbox_type,
        spec=spec,
        layers=layers,
        line=line,
        talk=talk,
        inputs=inputs,
        session=session,
        generation=generation,
        takes_inputs=hello.landlock_abi > 0,
        on_discard=on_discard,
        way_out=way_out,
    )


def _way_out() -> WayOut:
    try:
        return WayOut()
    except OSError as error:
        raise InternalError(f"the way out of the container cannot be made: {error.strerror}") from error


def _setup(spec: WorkerSpec, *, session: bool, guest_id: int | None) -> dict[str, Any]:
    environment = dict(_ENVIRONMENT)
    if spec.packages is not None:
        environment["PYTHONPATH"] = str(BOX_PACKAGES)
    if spec.egress:
        environment |= egress_door.ENVIRONMENT
    parked_node = None
    if spec.runtime in (Language.JAVASCRIPT, Language.TYPESCRIPT):
        bootstrap = node.BOOTSTRAP.read_text(encoding="utf-8")
        parked_node = {"typescript": spec.runtime is Language.TYPESCRIPT, "bootstrap": bootstrap}
    return {
        "source": "",
        "environment": environment,
        "sys_path": [str(BOX_PACKAGES)] if spec.packages is not None else [],
        "site": True,
        "preload": spec.preload,
        "node": parked_node,
        "open_files": spec.open_files,
        "file_bytes": spec.file_bytes,
        "inodes": spec.inodes,
        "filters": {machine: _filters(machine) for machine in _MACHINES},
        "session": session,
        "guest_id": guest_id,
        "way_out": egress_door.PORT if spec.egress else None,
    }


def _filters(machine: str) -> list[str]:
    programs = (filters.base_filter(machine), filters.seal_filter(machine))
    return [base64.b64encode(program).decode() for program in programs]


def _require_placed(talk: Talk, deadline: float) -> None:
    if _await(talk, Kind.PLACED, deadline) != b"0":
        raise QuotaExceeded("the session's files do not fit into a container with these limits", reason="disk")


def _await(talk: Talk, due: Kind, deadline: float) -> bytes:
    try:
        kind, payload = talk.hear(deadline)
    except Silence:
        raise InternalError(f"the container did not become ready in time{_said(talk)}") from None
    except HungUp:
        raise InternalError(f"the container ended before it was ready{_said(talk)}") from None
    except ProtocolError as error:
        raise InternalError(f"the container does not speak our language: {error}{_said(talk)}") from None
    if kind is Kind.FAILED:
        raise _failure(payload)
    if kind is not due:
        raise InternalError(f"the container said {kind.name} where {due.name} was due")
    return payload


def _said(talk: Talk) -> str:
    words = talk.last_words()
    return f"; it said: {words}" if words else ""


def _failure(payload: bytes) -> Exception:
    try:
        report = json.loads(payload)
        stage, word, why = (str(report[name])[:1000] for name in ("stage", "word", "error"))
    except (ValueError, KeyError, TypeError, RecursionError):
        return InternalError("the container failed without saying why")
    why = "".join(character if character.isprintable() else " " for character in why)
    match word:
        case "preload_failed":
            return InvalidRequest(why, reason="preload_failed")
        case "no_node":
            return RuntimeMissing(why, fix="use an image with a newer Node")
        case "not_first" | "no_workspace":
            return IsolationUnavailable(why, fix="use the image and the engine options of the manual")
        case "exposed":
            return IsolationUnavailable(
                f"the guest could speak for its init: {why}",
                fix='if the engine starts its containers in gVisor, say so: `runtime = "runsc"` under [docker]',
            )
        case _:
            return InternalError(f"the container could not be sealed ({stage}): {why}")


def _hello(payload: bytes) -> Hello:
    try:
        said = json.loads(payload)
        version = [int(number) for number in said["python"].split(".")]
        return Hello(
            worker_pid=int(said["pid"]),
            python=".".join(map(str, version)),
            landlock_abi=int(said["landlock"]),
            filters=int(said["filters"]),
            notes=tuple(_NOTES[word] for word in said["notes"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        raise InternalError("the container said that it is ready in words that nobody understands") from None
