"""What a skill's `runtime` means here: which image it asks for, and how its entrypoint becomes code of a language.

`["python", "main.py"]` runs a file of the skill's own directory. `["bash", "-lc"]`, `["python", "-c"]` and
`["node", "-e"]` run what the call brings in its input `command`, `code` or `script`: the guard then judges that very
script, as it would without the skill.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from ringfence.dataclass import dataclass
from ringfence.errors import InvalidRequest, Unavailable
from ringfence.operation.code import Language

if TYPE_CHECKING:
    from ringfence.authority.manifest import Manifest, Runtime

DIRECTORY: Final = "/workspace/inputs/skill"
"""Where a skill finds its own files, for reading only."""
SOURCES: Final = ("command", "code", "script")
# The image of 003 is built on python:3.12-slim with bash and coreutils; boxes of this machine are in its place.
DEFAULT_IMAGES: Final = frozenset({"ringfence/sandbox", "ringfence/sandbox:latest", "python:3.12-slim"})
_PROGRAMS = {
    "bash": Language.BASH,
    "sh": Language.BASH,
    "python": Language.PYTHON,
    "python3": Language.PYTHON,
    "node": Language.JAVASCRIPT,
}
_INLINE = frozenset({"-c", "-lc", "-e"})


@dataclass(frozen=True, slots=True)
class Entry:
    """What runs: a file of the skill with fixed arguments, or the text that a call brings under `source`."""

    language: Language
    file: str | None = None
    args: tuple[str, ...] = ()
    source: str | None = None


def entry_of(manifest: Manifest, files: Mapping[str, bytes]) -> Entry:
    """Return what the manifest's entrypoint means beside the skill's files.

    Raises:
        InvalidRequest: It means nothing that can be run here.
    """
    words = manifest.runtime.entrypoint if manifest.runtime else ()
    program, rest = (words[0], words[1:]) if words else ("", ())
    language = _PROGRAMS.get(program.removeprefix("/usr/bin/").removeprefix("/bin/"))
    if language is None:
        raise _wrong(f"{program[:100]!r} is not a program of the default image", f"begin with {', '.join(_PROGRAMS)}")
    if not rest:
        raise _wrong("does not say what to run", 'write ["python", "main.py"], or ["bash", "-lc"]')
    if rest[0] in _INLINE and len(rest) == 1:
        return Entry(language, source=_source(manifest))
    file = rest[0].removeprefix(f"{DIRECTORY}/")
    if file not in files:
        raise _wrong(f"{file[:100]!r} is not a file of this skill", "name one, relative to the manifest")
    try:
        files[file].decode()
    except UnicodeDecodeError:
        raise _wrong(f"{file[:100]!r} is not UTF-8", "write it as UTF-8") from None
    return Entry(language, file, rest[1:])


def require_image(runtime: Runtime | None) -> None:
    """Refuse a skill whose image is not the one that boxes of this machine stand for.

    Raises:
        Unavailable: Nothing here runs that image.
    """
    if runtime is None or runtime.image not in DEFAULT_IMAGES:
        raise Unavailable(
            "the skill asks for an image that nothing here runs",
            reason="image_unavailable",
            fix=f"ask for {min(DEFAULT_IMAGES)}; other images arrive with the docker backend",
        )


def _source(manifest: Manifest) -> str:
    properties = manifest.input_schema.get("properties")
    required = manifest.input_schema.get("required")
    named = [name for name in SOURCES if isinstance(properties, Mapping) and name in properties]
    if len(named) != 1 or not isinstance(required, list) or named[0] not in required:
        raise _wrong(
            "runs what the call brings, and interface.inputs does not say under which name",
            f"require one property of {', '.join(SOURCES)}",
        )
    return named[0]


def _wrong(problem: str, fix: str) -> InvalidRequest:
    return InvalidRequest(problem, reason="invalid_manifest", fix=fix)
