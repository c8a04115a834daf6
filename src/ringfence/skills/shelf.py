"""The directories that skills lie in: read anew for every call, following no link, and within bounds.

What was read is what runs: a skill whose files are replaced during a call is the old one or the new one in the next.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final

from ringfence.authority.finding import Finding, Severity, refuse_errors
from ringfence.authority.manifest_reader import ID
from ringfence.authority.manifest_reader import MAX_BYTES as MAX_MANIFEST_BYTES
from ringfence.capability.canonical import digest, digest_of
from ringfence.dataclass import dataclass, replace
from ringfence.errors import InvalidRequest, RingfenceError, Unavailable
from ringfence.skills.skill import Skill, read_skill
from ringfence.workspaces.beneath import open_beneath, open_regular
from ringfence.workspaces.place import check_names

MANIFEST: Final = "manifest.json"
TEMPLATE_ID: Final = "text.count"
SHIPPED: Final = Path(__file__).parent / "shipped"
MAX_SKILLS: Final = 1000
MAX_FILES: Final = 256
MAX_FILE_BYTES: Final = 16 * 1024 * 1024
MAX_DEPTH: Final = 8
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Shelved:
    """Everything found: the skills that can be called, and what is wrong with the others."""

    skills: Mapping[str, Skill]
    findings: tuple[Finding, ...] = ()


class Shelf:
    """The skills of some directories; an id that is there twice is nobody's."""

    def __init__(self, directories: tuple[Path, ...], *, home: Path | None = None, shipped: bool = True) -> None:
        """Look into `directories`, into `skills` of `home`, and at those of this package unless `shipped` says no."""
        self._named = ((SHIPPED,) if shipped else ()) + directories
        self._in_home = None if home is None else home / "skills"
        # while its files stay the same, a skill stays the same object: profiles are remembered by it
        self._known: dict[str, tuple[str, Skill | None, list[Finding]]] = {}

    @property
    def _directories(self) -> tuple[Path, ...]:
        if self._in_home is None or self._in_home in self._named or not self._in_home.is_dir():
            return self._named
        return (*self._named, self._in_home)

    def read(self) -> Shelved:
        """Read every skill; may block on the disk.

        Raises:
            InvalidRequest: A directory is not there.
        """
        skills: dict[str, Skill] = {}
        findings: list[Finding] = []
        places: dict[str, str] = {}
        for directory in self._directories:
            for name in _names(directory):
                file = f"{directory}/{name}/{MANIFEST}"
                if name in places:
                    findings.append(_taken(name, file, places[name]))
                    skills.pop(name, None)
                    continue
                places[name] = file
                skill, found = self._read(directory, name)
                findings += found
                if skill is not None:
                    skills[name] = skill
        return Shelved(dict(sorted(skills.items())), tuple(findings))

    def find(self, skill_id: object) -> Skill:
        """Return one skill, reading no other; may block on the disk.

        Raises:
            InvalidRequest: There is none of this id, it is there twice, or it has mistakes.
        """
        if not isinstance(skill_id, str) or not ID.match(skill_id):
            raise not_found()
        there = [directory for directory in self._directories if _is_there(directory, skill_id)]
        if not there:
            raise not_found()
        # whoever calls is told what is wrong, and not where on this machine skills lie
        if len(there) > 1:
            raise InvalidRequest(
                f"{skill_id} is there in {len(there)} directories, so none of them counts",
                reason="duplicate_skill",
                fix="'ringfence skill list' names them; remove one",
            )
        skill, findings = self._read(there[0], skill_id)
        if skill is None:
            file = f"{skill_id}/{MANIFEST}"
            refuse_errors([replace(finding, file=file) for finding in findings], reason="invalid_manifest")
            raise not_found()
        return skill

    def __contains__(self, skill_id: object) -> bool:
        """Whether there is a directory of this name; whether it is a skill, only reading it tells."""
        return (
            isinstance(skill_id, str)
            and ID.match(skill_id) is not None
            and any(_is_there(directory, skill_id) for directory in self._directories)
        )

    def look_at(self, name: str) -> tuple[Skill | None, list[Finding]]:
        """Return the skill of this name in the first directory, and what is wrong with it; may block on the disk."""
        return self._read(self._named[0], name)

    def _read(self, directory: Path, name: str) -> tuple[Skill | None, list[Finding]]:
        file = f"{directory}/{name}/{MANIFEST}"
        try:
            manifest, files = read_directory(directory, name)
        except (RingfenceError, OSError) as error:
            message = str(error) if isinstance(error, RingfenceError) else error.strerror or type(error).__name__
            fix = (error.fix if isinstance(error, RingfenceError) else None) or "put plain files there, and no links"
            return None, [Finding(Severity.ERROR, "unreadable", "", message, fix, file)]
        made_of = _digest(manifest, files)
        known = self._known.get(file)
        if known is None or known[0] != made_of:
            known = self._known[file] = made_of, *read_skill(manifest, files, directory=name, file=file)
        return known[1:]


@lru_cache(maxsize=64)
def shelf_of(home: Path, directories: tuple[Path, ...]) -> Shelf:
    """Return the shelf of whoever has `home` and names `directories`: the same one every time."""
    return Shelf(directories, home=home)


def make(skill_id: str, directory: Path) -> Path:
    """Make a skill from the template, and return where it lies.

    Raises:
        InvalidRequest: The id is none, or there is something of this name.
        Unavailable: The directory cannot be written to.
    """
    if not ID.match(skill_id):
        raise InvalidRequest(
            f"{skill_id[:100]!r} is not an id such as text.count",
            reason="invalid_name",
            fix="use lower-case words joined by dots",
        )
    made = directory / skill_id
    try:
        made.mkdir(mode=0o755, parents=True)
        for path in sorted((SHIPPED / "_template").iterdir()):
            if path.is_file():
                text = path.read_text()
                (made / path.name).write_text(text.replace(TEMPLATE_ID, skill_id) if path.name == MANIFEST else text)
    except FileExistsError:
        raise InvalidRequest(
            f"{made} is there already", reason="exists", fix="choose another id, or remove it"
        ) from None
    except OSError as error:
        raise Unavailable(f"{made} cannot be written: {error.strerror}", fix="choose a directory of yours") from error
    return made


def read_directory(directory: Path, name: str) -> tuple[bytes, dict[str, bytes]]:
    """Return the manifest of one skill, and its other files by path.

    Raises:
        InvalidRequest: There is too much of it, others may change it, or something in it is neither file nor directory.
        OSError: It cannot be read.
    """
    root = os.open(directory, _DIRECTORY)
    try:
        fd = open_beneath(root, name, os.O_RDONLY | os.O_DIRECTORY)
    finally:
        os.close(root)
    try:
        _require_ours(fd)
        files: dict[str, bytes] = {}
        left = MAX_FILE_BYTES
        for path in _walk(fd, "", 0):
            if len(files) > MAX_FILES:
                raise _refused(f"it has more than {MAX_FILES} files", "keep only what the skill needs")
            content = _read(fd, path, MAX_MANIFEST_BYTES if path == MANIFEST else left)
            left -= len(content)
            files[path] = content
    finally:
        os.close(fd)
    check_names((f"skill/{path}" for path in files), under="inputs")  # they are to lie in a box under these
    if MANIFEST not in files:
        raise _refused(f"there is no {MANIFEST}", "copy one from the template")
    return files.pop(MANIFEST), files


def not_found() -> InvalidRequest:
    """Return the one answer about a skill that is not there, whatever it was called."""
    return InvalidRequest(
        "there is no such skill", reason="not_found", fix="'ringfence skill list' names those there are"
    )


def _digest(manifest: bytes, files: Mapping[str, bytes]) -> str:
    return digest([digest_of(manifest), sorted((path, digest_of(content)) for path, content in files.items())])


def _names(directory: Path) -> list[str]:
    try:
        entries = sorted(os.listdir(directory))
    except OSError as error:
        raise InvalidRequest(
            f"{directory} cannot be read: {error.strerror}",
            reason="unreadable",
            fix="name a directory with skills that you may read",
        ) from error
    # what begins with `_` is about skills, and none: `_schema`, `_template`
    found = [name for name in entries if name[0] not in "._" and not _is_plain_file(directory / name)]
    if len(found) > MAX_SKILLS:
        raise InvalidRequest(f"{directory} has more than {MAX_SKILLS} entries", reason="too_many_files")
    return found


def _is_plain_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def _is_there(directory: Path, name: str) -> bool:
    return os.path.lexists(directory / name)


def _walk(fd: int, prefix: str, depth: int) -> Iterator[str]:
    if depth > MAX_DEPTH:
        raise _refused(f"its directories are more than {MAX_DEPTH} deep", "make it flatter")
    with os.scandir(fd) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        path = f"{prefix}{entry.name}"
        if entry.name == "__pycache__":
            continue
        if entry.is_dir(follow_symlinks=False):
            inner = open_beneath(fd, entry.name, os.O_RDONLY | os.O_DIRECTORY)
            try:
                yield from _walk(inner, f"{path}/", depth + 1)
            finally:
                os.close(inner)
        else:
            yield path


def _read(fd: int, path: str, most: int) -> bytes:
    file = open_regular(fd, path)
    try:
        _require_ours(file)
        with open(file, "rb", closefd=False) as stream:
            content = stream.read(most + 1)
    finally:
        os.close(file)
    if len(content) > most:
        raise _refused(f"{path[:100]!a} is too large: there may be {most} bytes of it", "keep only what is needed")
    return content


def _require_ours(fd: int) -> None:
    """Refuse what everybody on this machine may change: they would run in the skill's name."""
    if os.fstat(fd).st_mode & stat.S_IWOTH:
        raise _refused("everybody on this machine may write to it", "chmod -R o-w the skill's directory")


def _taken(name: str, file: str, first: str) -> Finding:
    return Finding(
        Severity.ERROR, "duplicate_skill", "id", f"{name!r} is also in {first}, so neither counts",
        "remove one of them", file,
    )  # fmt: skip


def _refused(problem: str, fix: str) -> InvalidRequest:
    return InvalidRequest(problem, reason="invalid_manifest", fix=fix)
