"""Pid 1 of a container: furnishes it, parks one worker in it, stands between it and the host, and outlives it.

Of what it holds, its two ends of the stream, the worker has nothing and can open nothing: what it reports cannot be
forged from inside.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time

from ringfence.isolation import worker
from ringfence.isolation.linux import interpreter
from ringfence.isolation.protocol import Decoder, Kind, encode
from ringfence.isolation.stream import inside_seal as sealing
from ringfence.isolation.stream.inside_files import Trees
from ringfence.isolation.stream.inside_meter import Meter
from ringfence.isolation.stream.inside_ports import DOOR_WORDS, Doors, listening
from ringfence.isolation.stream.inside_relay import Guest, Stream, listen_for_deaths
from ringfence.isolation.stream.wire import AREAS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

_JOB = 3
_LOOK_SECONDS = 0.25
_HOME = "/home/sandbox"
_ALIASES = (
    ("/workspace/artifacts", "/output"),
    ("artifacts", "/workspace/output"),
    ("work", "/workspace/code"),
    ("work", "/workspace/data"),
)
_PROBE = (
    "console.log(JSON.stringify([process.versions.node.split('.').map(Number),"
    " typeof require('module').stripTypeScriptTypes === 'function']))"
)
_OLDEST_NODE = [20, 12, 0]


class Refused(RuntimeError):
    """The host asked for what this image cannot give; the word says which kind of fault that is."""

    def __init__(self, word: str, reason: str) -> None:
        super().__init__(reason)
        self.word = word


def main() -> NoReturn:
    """Be the init of this container until the host is done with it."""
    stream = _take_stream()
    stage = "start"
    try:
        if os.getpid() != 1:
            raise Refused("not_first", "the worker's init has to be the first process of its container")
        kind, payload = stream.next()
        if kind is not Kind.SETUP:
            os._exit(1)
        setup: dict[str, Any] = json.loads(payload)
        stage = "workspace"
        apart = sealing.Apart(setup["guest_id"])
        notes = _furnish(setup)
        trees = Trees()
        if setup["session"]:
            trees.receive(stream, from_session=True)
        stage = "interpreter"
        command = None if setup["node"] is None else _node(setup["node"])
        if setup["site"]:
            _see_packages()
        interpreter.prepare(setup)
        stage = "sealing"
        way_out = None if setup["way_out"] is None else listening(setup["way_out"])
        sys.stdout.flush()
        sealing.shut_to_guest()
        deaths = listen_for_deaths()
        guest, job, told = _park(stream, setup, command, apart)
        told["notes"] += notes
        told["python"] = ".".join(map(str, sys.version_info[:3]))
        apart.withdraw()
        stream.say(Kind.READY, json.dumps(told).encode())
        stage = "run"
        _Run(stream, guest, job, deaths, trees, apart, Doors(stream, way_out)).serve()
    except BaseException as error:  # noqa: BLE001  reported to the host, whatever it is
        _fail(stream, stage, error)


def _take_stream() -> Stream:
    """Move the stream to where nothing that is imported here reads or prints."""
    inlet, outlet = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    if nothing > 2:
        os.close(nothing)
    return Stream(inlet, outlet)


def _fail(stream: Stream, stage: str, error: BaseException) -> NoReturn:
    word = error.word if isinstance(error, Refused) else ""
    if isinstance(error, interpreter.PreloadFailed):
        word = "preload_failed"
    said = {"stage": stage, "word": word, "error": f"{error}"[:1000] or type(error).__name__}
    stream.say(Kind.FAILED, json.dumps(said).encode())
    stream.flush()
    os._exit(1)


def _furnish(setup: dict[str, Any]) -> list[str]:
    """Make this image's directories what a guest expects, as far as they can be; return words for what cannot."""
    notes = []
    for path in AREAS[:2]:
        if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
            raise Refused("no_workspace", f"{path} cannot be written")
    if not all(0 < os.statvfs(path).f_files <= setup["inodes"] for path in AREAS[:2]):
        notes.append("no_inodes")
    for says, where in _ALIASES:
        if not os.path.lexists(where):
            try:
                os.symlink(says, where)
            except OSError:
                notes.append("no_alias")
    environment = setup["environment"]
    environment["PATH"] = os.environ.get("PATH") or environment["PATH"]
    if not os.access(_HOME, os.W_OK | os.X_OK):
        environment["HOME"] = environment["TMPDIR"]
        notes.append("no_home")
    os.environ.clear()
    os.environ["PATH"] = environment["PATH"]
    os.chdir(AREAS[0])
    return sorted(set(notes))


def _see_packages() -> None:
    """Find what is installed in the image, as an interpreter that was started in it would."""
    import site

    site.main()


def _node(wanted: dict[str, Any]) -> list[str]:
    """Return the command that parks this image's own Node.

    Raises:
        Refused: There is none, or none that is new enough.
    """
    try:
        done = subprocess.run(
            ["node", "-e", _PROBE],  # noqa: S607  whichever the image would start
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=True,
        )
        version, strips = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        raise Refused("no_node", "the image has no Node that works") from None
    if version < _OLDEST_NODE or (wanted["typescript"] and not strips):
        least = "22.13" if wanted["typescript"] else "20.12"
        raise Refused("no_node", f"the image's Node is {'.'.join(map(str, version))}; {least} or newer is needed")
    # in a function of its own: the top of what is evaluated is the same scope as the guest's
    program = f"(function () {{{wanted['bootstrap']}\n}})()"
    language = "typescript" if wanted["typescript"] else "javascript"
    return ["node", "--disable-warning=ExperimentalWarning", "-e", program, "parked", language]


def _park(
    stream: Stream, setup: dict[str, Any], command: list[str] | None, apart: sealing.Apart
) -> tuple[Guest, socket.socket, dict[str, Any]]:
    """Fork the worker, and wait until it is sealed and waits for its job."""
    apart.anchors = apart.anchors and command is None  # what is executed has other memory
    ours, its = socket.socketpair()
    stdin, stdout, stderr = os.pipe(), os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        streams = (stdin[0], stdout[1], stderr[1])
        _become_worker(setup, command, apart, its.fileno(), streams, (stream.inlet, stream.outlet))
    its.close()
    for inner in (stdin[0], stdout[1], stderr[1]):
        os.close(inner)
    decoder = Decoder()
    told: dict[str, Any] = {}
    while True:
        data = ours.recv(1 << 16)
        if not data:
            raise RuntimeError("the worker ended before it was ready")
        for kind, payload in decoder.feed(data):
            if kind is Kind.FAILED:
                raise Refused(*json.loads(payload))
            if kind is Kind.SEALED:
                told = json.loads(payload)
            elif kind is Kind.READY:
                told["pid"] = pid
                outputs = {stdout[0]: Kind.STDOUT, stderr[0]: Kind.STDERR}
                return Guest(pid, stdin[1], outputs, anchored=apart.anchors), ours, told


def _become_worker(
    setup: dict[str, Any],
    command: list[str] | None,
    apart: sealing.Apart,
    job: int,
    streams: tuple[int, ...],
    of_init: tuple[int, ...],
) -> NoReturn:
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.setsid()
        # none of these is below 4: 0, 1 and 2 were open, and 3 is the stream's
        for number, fd in enumerate((*streams, job)):
            os.dup2(fd, number)
        sealing.close_all_from(_JOB + 1)
        told = sealing.give_up_everything(setup, setup["environment"]["HOME"], of_init, apart)
        os.write(_JOB, encode(Kind.SEALED, json.dumps(told).encode()))
        if command is not None:
            os.set_inheritable(_JOB, True)
            os.execvp(command[0], command)  # noqa: S606  a parked interpreter of the image
        worker.warm()
        worker.serve(_JOB)
    except BaseException as error:  # noqa: BLE001  told to the host, whatever it is
        word = "exposed" if isinstance(error, sealing.Exposed) else ""
        os.write(_JOB, encode(Kind.FAILED, json.dumps([word, f"{type(error).__name__}: {error}"]).encode()))
    finally:
        os._exit(1)


class _Run:
    """The life of one parked worker: given files, started, heard, ended, harvested."""

    def __init__(
        self,
        stream: Stream,
        guest: Guest,
        job: socket.socket,
        deaths: int,
        trees: Trees,
        apart: sealing.Apart,
        doors: Doors,
    ) -> None:
        self._stream = stream
        self._guest = guest
        self._job = job
        self._hears_worker = False
        self._deaths = deaths
        self._trees = trees
        self._doors = doors
        self._apart = apart
        self._meter = Meter()
        self._decoder = Decoder()
        self._handed_over: bytes | None = None
        self._most_cpu_us: float | None = None
        self._next_look = 0.0
        self._over = 0

    def serve(self) -> NoReturn:
        """Do what the host says until the guest is dead and its files are taken, or the host is gone."""
        while not self._step():
            pass
        self._bid_farewell()
        while True:
            kind, payload = self._stream.next()
            if kind is Kind.HARVEST:
                self._apart.approach()
                self._trees.send(self._stream, json.loads(payload))

    def _step(self) -> bool:
        """Wait for something and see to it; True when the guest has ended."""
        stream, guest = self._stream, self._guest
        poll = select.poll()
        poll.register(stream.inlet, select.POLLIN)
        poll.register(self._deaths, select.POLLIN)
        if not stream.is_empty:
            poll.register(stream.outlet, select.POLLOUT)
        if guest.wants_input:
            poll.register(guest.stdin, select.POLLOUT)
        if not stream.is_full:
            for fd in guest.outputs:
                poll.register(fd, select.POLLIN | (select.POLLOUT if fd == guest.stdin and guest.wants_input else 0))
        if self._hears_worker:
            poll.register(self._job, select.POLLIN)
        self._doors.watch(poll)
        timeout = None if self._most_cpu_us is None else _LOOK_SECONDS * 1000
        ready = dict(poll.poll(timeout))
        if self._hears_worker and self._job.fileno() in ready:
            self._hear_worker()  # first: that it has become the guest comes before what the guest says
        if stream.outlet in ready:
            stream.send()
        ending = self._deaths in ready
        for fd in [fd for fd in guest.outputs if ready.get(fd, 0) & ~select.POLLOUT]:
            if ready[fd] & select.POLLIN:
                self._hear_guest(fd)
            else:
                self._forget(fd)
                ending = True  # mostly because the guest has
        if guest.stdin in ready and guest.wants_input:
            self._took(guest.write())
        self._doors.see_to(ready)  # before what the host says: a number that it closes may be another's afterwards
        if stream.inlet in ready:
            for kind, payload in stream.heard():
                self._obey(kind, payload)
        self._look()
        if ending and guest.reap():
            return True
        if self._deaths in ready:
            os.read(self._deaths, 4096)
            return guest.reap()  # whoever died before it was empty
        return False

    def _hear_worker(self) -> None:
        """Take its terminal; whoever has none has nothing to say."""
        if not self._hears_worker:
            return
        data, ancillary, _, _ = self._job.recvmsg(4096, socket.CMSG_SPACE(4))
        for _, _, rights in ancillary:
            self._guest.take_terminal(int.from_bytes(rights[:4], sys.byteorder))
        for kind, _ in self._decoder.feed(data):
            if kind is Kind.STARTED:
                self._stream.say(Kind.STARTED)
        self._hears_worker = bool(data)

    def _hear_guest(self, fd: int) -> None:
        data = self._guest.read(fd)
        if data:
            self._stream.say(self._guest.outputs[fd], data)
        else:
            self._forget(fd)

    def _forget(self, fd: int) -> None:
        del self._guest.outputs[fd]
        if fd == self._guest.terminal:
            self._guest.end_input()
            self._guest.terminal = -1
            os.close(fd)

    def _took(self, count: int | None) -> None:
        if count != 0:
            self._stream.say(Kind.TAKEN, b"" if count is None else b"%d" % count)

    def _obey(self, kind: Kind, payload: bytes) -> None:
        if kind is Kind.STDIN:
            self._took(self._guest.feed(payload))
        elif kind is Kind.JOB and self._handed_over is None:
            self._handed_over = payload
        elif kind is Kind.START and self._handed_over is not None and self._most_cpu_us is None:
            self._start(self._handed_over)
        elif kind is Kind.SIGNAL:
            self._guest.signal(int(payload))
        elif kind is Kind.RESIZE:
            self._guest.resize(*map(int, payload.split()))
        elif kind in DOOR_WORDS:
            self._doors.obey(kind, payload)
        elif kind is Kind.END:
            self._guest.kill()
        elif kind in (Kind.ENTRY, Kind.PIECE, Kind.PLACED) and self._most_cpu_us is None:
            self._apart.approach()
            self._trees.take(self._stream, kind, payload)
        else:
            os._exit(1)

    def _start(self, payload: bytes) -> None:
        job = json.loads(payload)
        self._most_cpu_us = job["cpu_us"]
        self._next_look = time.monotonic() + _LOOK_SECONDS
        self._apart.withdraw()
        if job.get("attached", {}).get("terminal") is not None:
            self._guest.await_terminal()
            self._hears_worker = True
        else:
            self._stream.say(Kind.STARTED)  # before it is true: a job that may have run is nobody else's any more
        with contextlib.suppress(OSError):  # that it has ended comes next
            self._job.sendall(encode(Kind.JOB, payload) + encode(Kind.START))

    def _look(self) -> None:
        now = time.monotonic()
        if self._most_cpu_us is None or self._over or now < self._next_look:
            return
        self._next_look = now + _LOOK_SECONDS
        if self._meter.cpu_us() > self._most_cpu_us:
            self._over = 1
            self._guest.kill()

    def _bid_farewell(self) -> None:
        """Leave nobody behind, pass on what is still in the pipes, and only then tell the end."""
        self._guest.bury()
        self._hear_worker()
        for fd in list(self._guest.outputs):
            while fd in self._guest.outputs:
                self._hear_guest(fd)
                self._stream.flush(1 << 18)
        numbers = (
            self._guest.wait_status or 0,
            *self._meter.of_the_dead(),
            self._over,
            int(self._trees.has_files()),
        )
        self._stream.say(Kind.EXIT, b" ".join(b"%d" % number for number in numbers))
        self._stream.flush()
