"""The worker: what runs inside the box, waits for one job, and becomes the guest.

Standard library only. It is imported by the zygote before anything is sealed, and by the time it holds a job every
privilege is gone; nothing here is a security boundary.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import resource
import signal
import sys
import types

from ringfence.isolation.protocol import Decoder, Kind, encode

TYPE_CHECKING = False  # `typing` and `threading` are not imported here: every page of the zygote costs every fork
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType
    from typing import Any, NoReturn

    Program = CodeType | BaseException

_CANNOT_START = 126
_READY = encode(Kind.READY)
_REHEARSAL = encode(
    Kind.JOB,
    json.dumps(
        {
            "language": "python",
            "code": "try:\n    {}[1]\nexcept KeyError:\n    print('', end='', flush=True)\n",
            "args": [],
            "env": {},
            "cpu_seconds": None,
            "data_bytes": None,
        }
    ).encode(),
)
_STARTED = encode(Kind.STARTED)
_TIOCSCTTY, _TIOCSWINSZ, _TIOCGPTN, _TIOCSPTLCK, _TIOCGPTPEER = 0x540E, 0x5414, 0x80045430, 0x40045431, 0x5441


def warm() -> None:
    """Do once what a small job does, so that the copy-on-write faults happen before anybody waits."""
    Decoder().feed(_READY)
    for _, payload in Decoder().feed(_REHEARSAL):
        job = json.loads(payload)
        get_ready(job)
        _execute(_read(job["code"]), job["args"])
    gc.disable()  # a collection would write into every object, and so copy every page


def serve(job_fd: int) -> NoReturn:
    """Say ready, take one job from `job_fd`, get ready for it, and become the guest when told to."""
    os.write(job_fd, _READY)
    words = _words(job_fd)
    job = json.loads(_next(words, Kind.JOB))
    if "attached" in job:
        _attach(job_fd, job["attached"]["terminal"])
    # before its text is looked at: what that does to this process is its own doing
    os.write(job_fd, _STARTED)
    get_ready(job)
    program = None if job["language"] == "bash" else _read(job["code"])
    _next(words, Kind.START)
    os.close(job_fd)
    become_guest(job, program)


def _words(job_fd: int) -> Iterator[tuple[Kind, bytes]]:
    decoder = Decoder()
    while True:
        data = os.read(job_fd, 1 << 16)
        if not data:
            os._exit(0)  # the host let go of this worker without using it
        yield from decoder.feed(data)


def _next(words: Iterator[tuple[Kind, bytes]], due: Kind) -> bytes:
    kind, payload = next(words)
    if kind is not due:
        os._exit(1)
    return payload


def get_ready(job: dict[str, Any]) -> None:
    """Put the limits and the variables of `job` in force, of which nothing runs yet."""
    tighten(job)
    os.environ.update(job["env"])


def _read(code: str) -> Program:
    """Return what the interpreter makes of a text, or what is wrong with it, to be told when it would run."""
    try:
        return compile(code, "<string>", "exec", dont_inherit=True)
    except BaseException as error:  # noqa: BLE001  whatever a text can cause
        return error.with_traceback(None)


def _attach(job_fd: int, terminal: list[int] | None) -> None:
    """Lead a session, so that what is sent to the guest reaches all of it; with a size, on a terminal of its own."""
    if os.getsid(0) != os.getpid():
        os.setsid()
    if terminal is None:
        return
    import fcntl
    import socket

    outer = os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    fcntl.ioctl(outer, _TIOCSPTLCK, b"\0\0\0\0")
    inner = _inner_end(outer)
    rows, columns = terminal
    fcntl.ioctl(inner, _TIOCSWINSZ, b"".join(n.to_bytes(2, sys.byteorder) for n in (rows, columns, 0, 0)))
    fcntl.ioctl(inner, _TIOCSCTTY, 0)
    channel = socket.socket(fileno=job_fd)
    rights = outer.to_bytes(4, sys.byteorder)
    channel.sendmsg([encode(Kind.TERMINAL)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    channel.detach()
    for number in range(3):
        os.dup2(inner, number)
    os.close(inner)
    os.close(outer)
    os.environ.setdefault("TERM", "xterm-256color")


def _inner_end(outer: int) -> int:
    """Open what a terminal's outer end leads to: from the end itself, or by its name where the kernel cannot."""
    import fcntl

    flags = os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC
    try:
        return fcntl.ioctl(outer, _TIOCGPTPEER, flags)
    except OSError:
        number = int.from_bytes(fcntl.ioctl(outer, _TIOCGPTN, bytes(4)), sys.byteorder)
        return os.open(f"/dev/pts/{number}", flags)


def become_guest(job: dict[str, Any], program: Program | None) -> NoReturn:
    """Run `program`, or where there is none have a shell run the job's code, in this very process."""
    _start_in(job.get("cwd"))
    if program is None:
        # CPython ignores these two; a shell's children expect the default
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        try:
            os.execve("/bin/bash", ["bash", "-c", job["code"], "bash", *job["args"]], os.environ)  # noqa: S606  the job itself
        except OSError as error:  # an image without it, or a script longer than an argument may be
            _cannot_start("/bin/bash", error)
    # not before: whatever the interpreter imports to read a text would be looked for among the guest's files first
    sys.path.insert(0, "")
    _reseed()
    _finish(_execute(program, job["args"]))


def _start_in(cwd: str | None) -> None:
    """Go to the directory that the job starts in; where there is none, it has failed as a program without one does."""
    if cwd is None:
        return
    try:
        os.chdir(cwd)
    except OSError as error:
        _cannot_start(cwd, error)


def _cannot_start(what: str, error: OSError) -> NoReturn:
    sys.stderr.write(f"ringfence: {what}: {error.strerror}\n")
    sys.stderr.flush()
    os._exit(_CANNOT_START)


def tighten(job: dict[str, Any]) -> None:
    """Lower the limits of this process to the job's own."""
    cpu = job.get("cpu_seconds")
    if cpu is not None:
        # the soft limit asks with SIGXCPU, the hard one, a second later, kills
        _lower(resource.RLIMIT_CPU, cpu, cpu + 1)
    data = job.get("data_bytes")
    if data is not None:
        _lower(resource.RLIMIT_DATA, data, data)


def _lower(what: int, soft: int, hard: int) -> None:
    """Set a limit, or leave it where whoever started us has put it lower still."""
    most = resource.getrlimit(what)[1]
    if most != resource.RLIM_INFINITY:
        soft, hard = min(soft, most), min(hard, most)
    resource.setrlimit(what, (soft, hard))


def _execute(program: Program, args: list[str]) -> int:
    """Run `program` as the main module of this interpreter and return the exit status it asks for."""
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main
    sys.argv[:] = ["-c", *args]
    gc.enable()
    try:
        if isinstance(program, BaseException):
            raise program
        exec(program, main.__dict__)  # noqa: S102  what the box is for
    except SystemExit as end:
        return _exit_status(end.code)
    except BaseException as error:  # noqa: BLE001  whatever the guest raises is its own
        _report(error)
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _reseed() -> None:
    """Give each guest random numbers of its own; `random` does so by itself after a fork."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.seed()


def _exit_status(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    sys.stderr.write(f"{code}\n")
    return 1


def _report(error: BaseException) -> None:
    """Print the traceback as `python -c` would, without the frame of this file."""
    ours = error.__traceback__
    theirs = ours.tb_next if ours is not None else None
    sys.excepthook(type(error), error.with_traceback(theirs), theirs)


def _finish(status: int) -> NoReturn:
    """End like an interpreter does, but without tearing down what the kernel frees anyway."""
    try:
        threading = sys.modules.get("threading")
        if threading is not None:
            threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # noqa: BLE001  the guest's exit handlers may raise anything
        status = status or 120  # what CPython answers when standard output cannot be flushed
    os._exit(status)
