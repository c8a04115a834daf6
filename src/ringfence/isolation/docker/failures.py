"""What an engine's complaint means: the one line it prints, as a reason with the fix.

An engine says in words what went wrong, and says it differently in every version, so this is a table of telling
fragments. The first row that matches wins; what no row knows is passed on as it was said.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from ringfence.dataclass import dataclass
from ringfence.errors import IsolationUnavailable
from ringfence.isolation.docker.settings import EngineSettings

_LONGEST: Final = 300
_HINTS: Final = ("See '", "Run '", "Usage:", "WARNING:")


@dataclass(frozen=True, slots=True)
class Complaint:
    """One kind of failure: how it is recognised, and the error it becomes, given the names to put in."""

    says: re.Pattern[str]
    error: Callable[[Mapping[str, str]], IsolationUnavailable]


def _complaint(says: str, reason: str, message: str, fix: str) -> Complaint:
    return Complaint(
        re.compile(says, re.IGNORECASE),
        lambda names: IsolationUnavailable(message.format(**names), reason=reason, fix=fix.format(**names)),
    )


COMPLAINTS: Final = (
    _complaint(
        r"permission denied while trying to connect|dial unix [^:]*: connect: permission denied",
        "engine_unreachable",
        "the container engine does not let this user in",
        "use a rootless engine, or have an administrator let this user talk to the engine (that makes it root's equal)",
    ),
    _complaint(
        r"no space left on device|disk quota exceeded",
        "engine_full",
        "the container engine has no disk space left",
        "free some: `{program} system prune` removes what no container uses",
    ),
    _complaint(
        r"unknown (or invalid )?runtime|invalid runtime|runtime .{0,80}not found|default OCI runtime .* not found",
        "isolation_unavailable",
        "the container engine knows no runtime {runtime}",
        "register it with the engine, or leave out docker.runtime",
    ),
    _complaint(
        r"cannot run with network enabled in root network namespace",
        "isolation_unavailable",
        "the container engine starts gVisor as if containers had a network",
        'give the runtime "runtimeArgs": ["--network=none"] in the engine\'s daemon.json',
    ),
    _complaint(
        r"no such image|unable to find image|image not known|not found: manifest|failed to resolve reference"
        r"|image .{0,200}not available with reference|short-name .{0,200}did not resolve",
        "image_missing",
        "the container engine has no image {image}",
        "`ringfence image build` makes it without a registry; or `{program} pull` another and name it in docker.image",
    ),
    _complaint(
        r"bind source path does not exist|statfs [^:]*: no such file",
        "engine_elsewhere",
        "the container engine does not see this machine's files",
        "say so with `remote = true` under [docker] in config.toml",
    ),
    _complaint(
        r"cannot connect to|connection refused|error during connect|is the docker daemon running|dial (unix|tcp)"
        r"|connection reset|broken pipe|unexpected EOF|\bEOF$|server closed|context canceled|name resolution"
        r"|failed to dial|unable to connect",
        "engine_unreachable",
        "the container engine does not answer",
        "start it (`systemctl start docker`), or name where it listens with docker.url",
    ),
    _complaint(
        r"requires API version|too (new|old)\. (maximum|minimum)|unknown flag|unknown shorthand flag"
        r"|flag provided but not defined",
        "engine_too_old",
        "the container engine is too old for this",
        "use Docker 20.10, podman 4 or nerdctl 1, or newer",
    ),
)
_NO_INTERPRETER: Final = re.compile(
    r"exec: \\?\"?python3\\?\"?: (executable file not found|no such file)"
    r"|python3.{0,60}(executable file not found|no such file or directory)",
    re.IGNORECASE,
)


def explain(said: str, settings: EngineSettings) -> IsolationUnavailable:
    """Return the error for what the engine's command printed."""
    names = {"program": settings.program, "image": settings.image, "runtime": settings.runtime or "of that name"}
    for complaint in COMPLAINTS:
        if complaint.says.search(said):
            return complaint.error(names)
    return IsolationUnavailable(
        f"the container engine refuses: {one_line(said) or 'without a word'}", fix="`ringfence doctor` looks at it"
    )


def lacks_interpreter(said: str) -> bool:
    """Whether the container could not start for want of python3 in its image."""
    return _NO_INTERPRETER.search(said) is not None


def one_line(said: str) -> str:
    """Return the telling part of a complaint: its last line that says something, without the control characters."""
    lines = [line.strip() for line in said.splitlines() if line.strip() and not line.startswith(_HINTS)]
    text = lines[-1] if lines else ""
    return "".join(each if each.isprintable() else " " for each in text)[:_LONGEST]
