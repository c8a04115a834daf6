"""Talks to a container engine through its command; every question has a deadline, every failure one line."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
from collections.abc import Iterable, Sequence
from typing import Any, Final

from ringfence.dataclass import dataclass
from ringfence.errors import IsolationUnavailable
from ringfence.isolation.docker.argv import dialect_of
from ringfence.isolation.docker.failures import explain
from ringfence.isolation.docker.settings import EngineSettings

PATIENCE_SECONDS: Final = 15.0
"""How long the engine may take to answer a question; one that takes longer counts as hung."""

_HERE: Final = ("unix://", "npipe://", "fd://")
_GONE: Final = re.compile(r"no such container|already in progress|no container with", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Container:
    """What the engine says of one container that it made for us."""

    id: str
    pid: int
    """Of its first process, as the engine's machine counts them."""
    image_id: str
    own_namespaces: tuple[str, ...] = ()
    """Which namespaces the engine says it made for it."""
    mounted: tuple[str, ...] = ()
    """Where the engine says that it mounted directories of its machine."""


@dataclass(frozen=True, slots=True)
class Listed:
    """One container in the engine's list, with its labels."""

    id: str
    labels: dict[str, str]


class Engine:
    """One engine, as its command reaches it."""

    def __init__(self, settings: EngineSettings, *, patience: float = PATIENCE_SECONDS) -> None:
        """Ask nothing yet."""
        self.settings = settings
        self.dialect = dialect_of(settings)
        self._patience = patience

    def version(self) -> str:
        """Return the version of the engine, not of its command.

        Raises:
            IsolationUnavailable: It is not there, does not answer, or is too old.
        """
        said = self.ask("version", "--format", self.dialect.version_format)
        found = re.search(r"(\d+)\.(\d+)", said)
        if found is None:
            raise IsolationUnavailable(f"the container engine gives no version but {said[:80]!r}")
        if (int(found[1]), int(found[2])) < self.dialect.oldest:
            oldest = ".".join(map(str, self.dialect.oldest))
            raise IsolationUnavailable(
                f"{self.settings.program} {found[0]} is too old",
                reason="engine_too_old",
                fix=f"use {self.settings.program} {oldest} or newer",
            )
        return said.strip()

    def is_remote(self) -> bool:
        """Whether the engine is on another machine, by the operator's word or by its address.

        Raises:
            IsolationUnavailable: Its command does not say where it is.
        """
        settings = self.settings
        if settings.remote is not None:
            return settings.remote
        if settings.url is not None:
            return not settings.url.startswith(_HERE)
        said = self.ask(*self.dialect.is_remote).strip() if self.dialect.is_remote else ""
        return said == "true" or ("://" in said and not said.startswith(_HERE))

    def attach(self, argv: Sequence[str], stdin: int, stdout: int, complaints: int) -> subprocess.Popen[bytes]:
        """Run a command of the engine in the foreground, on these descriptors.

        Raises:
            IsolationUnavailable: There is no such command.
        """
        try:
            # what interrupts us must not take the containers of runs that are still to be ended properly
            return subprocess.Popen(argv, stdin=stdin, stdout=stdout, stderr=complaints, start_new_session=True)
        except OSError as error:
            raise self._no_command(error) from error

    def container(self, name: str) -> Container:
        """Return what the engine says of a container that runs.

        Raises:
            IsolationUnavailable: The engine does not answer, or knows no such container.
        """
        form = self._form(self.ask("inspect", "--type", "container", name))
        try:
            return Container(
                str(form["Id"]),
                int(form["State"]["Pid"]),
                _with_algorithm(str(form["Image"])),
                _namespaces(form["HostConfig"]),
                tuple(str(mount["Destination"]) for mount in form["Mounts"] or ()),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise IsolationUnavailable(f"the container engine describes {name} without {error}") from error

    def image_digest(self, image: str) -> str:
        """Return the digest of the image that a name stands for now.

        Raises:
            IsolationUnavailable: There is no such image, or the engine does not answer.
        """
        form = self._form(self.ask("image", "inspect", image))
        return _with_algorithm(str(form.get("Id", "")))

    def listed(self, label: str) -> list[Listed]:
        """Return the containers with a label, whatever their state."""
        ids = self.ask("ps", "--all", "--quiet", "--no-trunc", "--filter", f"label={label}").split()
        if not ids:
            return []
        try:
            forms = json.loads(self.ask("inspect", "--type", "container", *ids))
        except IsolationUnavailable:  # one of them went away in between; the others are asked for on their own
            forms = [form for each in ids for form in self._forms_if_there(each)]
        return [Listed(str(form["Id"]), dict(form["Config"].get("Labels") or {})) for form in forms]

    def remove(self, names: Iterable[str]) -> None:
        """End and remove containers, with everything in them; one that is gone already is fine.

        Raises:
            IsolationUnavailable: The engine does not answer, or keeps one of them.
        """
        for name in names:
            try:
                self.ask("rm", "--force", "--volumes", name)
            except IsolationUnavailable as refusal:
                if not _GONE.search(str(refusal)):
                    raise

    def ran_out_of_memory(self, name: str, since: float, until: float) -> bool:
        """Whether the engine saw the container reach its memory limit, in a span of wall-clock time."""
        words = ("--since", f"{since:.3f}", "--until", f"{until:.3f}", "--filter", f"container={name}")
        with contextlib.suppress(IsolationUnavailable):
            return bool(self.ask("events", *words, "--filter", "event=oom", "--format", "{{.Status}}").strip())
        return False

    def ask(self, *words: str) -> str:
        """Run one command of the engine and return what it prints.

        Raises:
            IsolationUnavailable: It failed, or did not answer in time.
        """
        command = (*self.dialect.base(self.settings), *words)
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, timeout=self._patience, check=False
            )
        except subprocess.TimeoutExpired:
            raise hung(words[0], self._patience) from None
        except OSError as error:
            raise self._no_command(error) from error
        if done.returncode:
            raise explain(done.stderr.decode("utf-8", "replace"), self.settings)
        return done.stdout.decode("utf-8", "replace")

    def _forms_if_there(self, container: str) -> list[dict[str, Any]]:
        with contextlib.suppress(IsolationUnavailable):
            return [self._form(self.ask("inspect", "--type", "container", container))]
        return []

    def _form(self, said: str) -> dict[str, Any]:
        try:
            form = json.loads(said)
            return dict(form[0])
        except (ValueError, TypeError, LookupError) as error:
            raise IsolationUnavailable(f"the container engine answers with no description: {error}") from error

    def _no_command(self, error: OSError) -> IsolationUnavailable:
        return IsolationUnavailable(
            f"{self.settings.command[0]} cannot be run: {error.strerror or error}",
            reason="engine_missing",
            fix="install docker, podman or nerdctl, or name one with docker.command",
        )


def hung(word: str, seconds: float) -> IsolationUnavailable:
    """Return the error for an engine that took a command and did nothing about it."""
    return IsolationUnavailable(
        f"the container engine did not answer `{word}` within {seconds:g} s",
        reason="engine_hung",
        fix="look at the engine's own log; restart it if it hangs",
    )


def _namespaces(config: dict[str, Any]) -> tuple[str, ...]:
    """Read off what the engine was told which namespaces a container does not share with its host or another."""
    modes = {"net": "NetworkMode", "pid": "PidMode", "ipc": "IpcMode", "uts": "UTSMode", "cgroup": "CgroupnsMode"}
    shared = re.compile(r"host|container:|ns:")
    return ("mnt", *(kind for kind, mode in modes.items() if not shared.match(str(config.get(mode) or ""))))


def _with_algorithm(digest: str) -> str:
    """Return a digest as all engines but podman write it."""
    return digest if ":" in digest or not digest else f"sha256:{digest}"
