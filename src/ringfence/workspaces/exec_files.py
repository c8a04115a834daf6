"""The files of one execution beside its evidence: `artifacts/<exec_id>/` of its project, as 003 lays it out.

Four names in it are ours: `stdout.txt`, `stderr.txt`, `manifest.json` and `meta.json`. The guest's artifacts lie
beside them under their own paths. One that begins with a name of ours has the first letter of it written as `%XX`,
which no harmless name ever has and which `names.original` undoes; one that no directory could hold is named by the
digest of its path. `manifest.json` says under `path` where each one lies, and under `name` what the guest called it
where that differs.

The directory is written under a name that nobody knows and then takes its own: it is there whole, or not at all.
A run of no project leaves nothing here, and nothing anywhere unless somebody asks for its artifacts.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Final

from ringfence.authority.caller import LOCAL, check_tenant
from ringfence.capability.limits import MIB
from ringfence.dataclass import dataclass
from ringfence.errors import CapabilityBlocked, InvalidRequest, QuotaExceeded, Unavailable
from ringfence.outcome import Artifact, ExecutionResult
from ringfence.workspaces.artifact_quota import reserved
from ringfence.workspaces.beneath import MAX_NAME_BYTES, make_parents, open_beneath, open_regular
from ringfence.workspaces.free_space import KEEP_FREE_BYTES, require_free_space
from ringfence.workspaces.names import harmless_path
from ringfence.workspaces.session import SessionWorkspace, is_plain_name, project_path

OURS: Final = ("stdout.txt", "stderr.txt", "manifest.json", "meta.json")
MOST_BYTES: Final = 2048 * MIB
MOST_DOCUMENT_BYTES: Final = 64 * MIB
MOST_OUTPUT_BYTES: Final = 65 * MIB  # the highest limit, and the line that says what was left out
"""What is left on the disk: the evidence lies on the same one, and guests must not be able to fill it."""

_SMALL = MIB
_PLENTY = 2048 * MIB
_NO_TURN = nullcontext()
_LONGEST_PATH = 2048
_ATTEMPTS = 8
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL


@dataclass(frozen=True, slots=True)
class ExecFiles:
    """What was kept of one execution; `path` is relative to the workspace directory of the home."""

    path: str
    stdout: bytes
    stderr: bytes
    manifest: Mapping[str, Any]
    meta: Mapping[str, Any]


def artifacts_path(project_id: str, exec_id: str, tenant: str = LOCAL) -> str:
    """Return where the files of an execution lie, relative to the workspace directory of the home."""
    return f"{project_path(project_id, tenant)}/artifacts/{exec_id}"


def stored_path(path: str) -> str:
    """Return where an artifact lies in the directory of its execution; no two harmless paths get the same place."""
    first, slash, rest = path.partition("/")
    if first.casefold() in OURS:  # also where a file system takes `META.JSON` for the same
        path = f"%{ord(first[0]):02X}{first[1:]}{slash}{rest}"
    parts = os.fsencode(path).split(b"/")
    if len(b"/".join(parts)) > _LONGEST_PATH or any(len(part) > MAX_NAME_BYTES for part in parts):
        return f"%long-{hashlib.sha256(os.fsencode(path)).hexdigest()}"
    return path


def write_exec_files(
    home: Path,
    project_id: str,
    exec_id: str,
    result: ExecutionResult,
    *,
    manifest: Mapping[str, Any],
    meta: Mapping[str, Any],
    tenant: str = LOCAL,
    max_bytes: int = MOST_BYTES,
    keep_free_bytes: int = KEEP_FREE_BYTES,
    durable: bool = True,
) -> str:
    """Keep what came of a run in its project, and return where, relative to the workspace directory of the home.

    What `manifest` says of `artifacts`, `uncollected`, `complete`, `stdout` and `stderr` is replaced by what is so.
    `durable` waits for the disk. Whatever lay under the execution's name before is kept beside it under another one.

    Raises:
        InvalidRequest: An id is no plain name.
        PathTraversalError: Something in the way was replaced by a link.
        QuotaExceeded: It is more than `max_bytes`, or more than the project may keep, or less than `keep_free_bytes`
            would be left on the disk; nothing was written.
        Unavailable: It cannot be written; nothing was.
    """
    _require_name(exec_id)
    files = _ours(result, manifest, meta)
    size = sum(map(len, files.values())) + sum(len(artifact.content) for artifact in result.artifacts)
    if size > max_bytes:
        raise QuotaExceeded(f"the files of a run are more than {max_bytes} bytes", reason="disk", limit=max_bytes)
    with (
        _places_of(home, project_id, tenant) as (project, artifacts),
        _counted(home, artifacts, size, keep_free_bytes),
        # five entries are ours: the directory and four files
        reserved(project, artifacts, size, 5 + len(result.artifacts)),
    ):
        draft = f".{exec_id}.{secrets.token_hex(8)}"
        try:
            os.mkdir(draft, 0o700, dir_fd=artifacts)
            try:
                _fill(artifacts, draft, files, result.artifacts, durable=durable)
                _take_name(artifacts, draft, exec_id)
            except BaseException:
                shutil.rmtree(draft, dir_fd=artifacts, ignore_errors=True)
                raise
            if durable:
                os.fsync(artifacts)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise QuotaExceeded("the disk is too full for the files of a run", reason="disk") from error
            raise Unavailable(
                f"the files of {exec_id} cannot be written: {error.strerror}", reason="artifacts_not_written"
            ) from error
    return artifacts_path(project_id, exec_id, tenant)


def read_exec_files(home: Path, project_id: str, exec_id: str, *, tenant: str = LOCAL) -> ExecFiles | None:
    """Return what was kept of a run, or None where nothing was.

    Raises:
        InvalidRequest: An id is no plain name.
        PathTraversalError: Something in the way is a link.
        Unavailable: A file is missing, too large, or not what was written.
    """
    directory = _open_exec(home, project_id, exec_id, tenant)
    if directory is None:
        return None
    try:
        stdout = _read(directory, "stdout.txt", MOST_OUTPUT_BYTES)
        stderr = _read(directory, "stderr.txt", MOST_OUTPUT_BYTES)
        manifest, meta = _read_document(directory, "manifest.json"), _read_document(directory, "meta.json")
    finally:
        os.close(directory)
    for name, content in (("stdout", stdout), ("stderr", stderr)):
        described = manifest.get(name)
        if not isinstance(described, dict) or described.get("sha256") != hashlib.sha256(content).hexdigest():
            raise _damaged(f"{name}.txt", "is not what was written")
    return ExecFiles(artifacts_path(project_id, exec_id, tenant), stdout, stderr, manifest, meta)


def read_artifact(
    home: Path, project_id: str, exec_id: str, path: str, *, tenant: str = LOCAL, most: int = MOST_BYTES
) -> bytes | None:
    """Return one artifact by the path the guest gave it, or None where there is none.

    Raises:
        PathTraversalError: The path leads out of the execution's directory, or something in the way is a link.
        Unavailable: It is larger than `most`, or not what was written.
    """
    directory = _open_exec(home, project_id, exec_id, tenant)
    if directory is None:
        return None
    try:
        sha256 = _sha256_of(_read_document(directory, "manifest.json"), stored_path(path))
        if sha256 is None:
            return None
        content = _read(directory, stored_path(path), most)
    finally:
        os.close(directory)
    if hashlib.sha256(content).hexdigest() != sha256:
        raise _damaged(path, "is not what was written")
    return content


# --- writing ---


@contextmanager
def _places_of(home: Path, project_id: str, tenant: str) -> Iterator[tuple[int, int]]:
    """Open a project and the directory of its runs' files in it; only the first of them has to make it."""
    _require_name(project_id)
    check_tenant(tenant)
    directory = f"workspace/{project_path(project_id, tenant)}"
    with ExitStack() as opened:
        project = open_in(home, directory)
        if project is not None:
            opened.callback(os.close, project)
        artifacts = None if project is None else _open_at(project, "artifacts")
        if artifacts is not None:
            opened.callback(os.close, artifacts)
        if project is None or artifacts is None:
            workspace = opened.enter_context(SessionWorkspace.create(home, project_id, tenant=tenant))
            project, artifacts = workspace.directory_fd, workspace.artifacts_fd
        yield project, artifacts


def _counted(home: Path, artifacts: int, size: int, keep: int) -> AbstractContextManager[None]:
    """Let one at a time count on the same free space; small files on a disk with plenty of it need no turn.

    Raises:
        QuotaExceeded: They would leave less of it than `keep`.
    """
    disk = os.fstatvfs(artifacts)
    if size <= _SMALL and disk.f_bavail * disk.f_frsize > max(_PLENTY, size + keep):
        return _NO_TURN
    return _in_turn(home, artifacts, size, keep)


@contextmanager
def _in_turn(home: Path, artifacts: int, size: int, keep: int) -> Iterator[None]:
    turn = os.open(home / "workspace", _DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(turn, fcntl.LOCK_EX)
        try:
            require_free_space(artifacts, size, keep=keep)
            yield
        finally:
            fcntl.flock(turn, fcntl.LOCK_UN)
    finally:
        os.close(turn)


def _ours(result: ExecutionResult, manifest: Mapping[str, Any], meta: Mapping[str, Any]) -> dict[str, bytes]:
    described = {
        **manifest,
        "artifacts": [_described(artifact) for artifact in result.artifacts],
        "uncollected": [{"path": path, "reason": reason} for path, reason in result.changes.uncollected],
        "complete": result.changes.complete,
        "stdout": _stream("stdout.txt", result.stdout_raw, result.stdout_bytes, truncated=result.stdout_truncated),
        "stderr": _stream("stderr.txt", result.stderr_raw, result.stderr_bytes, truncated=result.stderr_truncated),
    }
    return {
        "stdout.txt": result.stdout_raw,
        "stderr.txt": result.stderr_raw,
        "manifest.json": _document(described),
        "meta.json": _document(meta),
    }


def _described(artifact: Artifact) -> dict[str, Any]:
    path = stored_path(artifact.path)
    named = {} if path == artifact.path else {"name": artifact.path}
    return {"path": path, **named, "size": artifact.size, "sha256": artifact.sha256}


def _stream(path: str, kept: bytes, written: int, *, truncated: bool) -> dict[str, Any]:
    sha256 = hashlib.sha256(kept).hexdigest()
    return {"path": path, "size": len(kept), "sha256": sha256, "bytes": written, "truncated": truncated}


def _document(value: Mapping[str, Any]) -> bytes:
    content = json.dumps(value, sort_keys=True, separators=(",\n", ": ")).encode() + b"\n"  # indenting is slow
    if len(content) > MOST_DOCUMENT_BYTES:
        raise QuotaExceeded("the description of a run is too large", reason="disk", limit=MOST_DOCUMENT_BYTES)
    return content


def _fill(
    parent: int, draft: str, files: Mapping[str, bytes], artifacts: tuple[Artifact, ...], *, durable: bool
) -> None:
    directory = open_beneath(parent, draft, _DIRECTORY)
    try:
        os.fchmod(directory, 0o700)  # whatever the umask of the host application
        for name, content in files.items():
            # one name, and new: no link at it is followed, and no check of a path is needed
            _write_new(os.open(name, _NEW_FILE | os.O_CLOEXEC, 0o600, dir_fd=directory), content, durable=durable)
        for artifact in artifacts:
            path = stored_path(artifact.path)
            holder = make_parents(directory, path, 0o700)
            try:
                fd = open_beneath(holder, path.rpartition("/")[2], _NEW_FILE, 0o600)
                _write_new(fd, artifact.content, durable=durable)
                if durable:
                    os.fsync(holder)
            finally:
                os.close(holder)
        if durable:
            os.fsync(directory)
    finally:
        os.close(directory)


def _write_new(fd: int, content: bytes, *, durable: bool) -> None:
    try:
        os.fchmod(fd, 0o600)
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(fd, rest) :]
        if durable:
            os.fsync(fd)
    finally:
        os.close(fd)


def _take_name(parent: int, draft: str, exec_id: str) -> None:
    """Give the finished directory its name; what was put there first keeps its content, and loses the name.

    A directory replaces nothing but an empty directory, and follows no link: the kernel answers with an error.
    """
    for _ in range(_ATTEMPTS):
        try:
            os.rename(draft, exec_id, src_dir_fd=parent, dst_dir_fd=parent)
        except OSError as error:
            if error.errno not in (errno.ENOTDIR, errno.EEXIST, errno.ENOTEMPTY):
                raise
            aside = f".displaced.{exec_id}.{secrets.token_hex(8)}"
            with suppress(FileNotFoundError):
                os.rename(exec_id, aside, src_dir_fd=parent, dst_dir_fd=parent)
        else:
            return
    raise FileExistsError(errno.EEXIST, "somebody takes its name again and again")


# --- reading ---


def _open_exec(home: Path, project_id: str, exec_id: str, tenant: str) -> int | None:
    check_tenant(tenant)
    _require_name(project_id)
    _require_name(exec_id)
    return open_in(home, f"workspace/{artifacts_path(project_id, exec_id, tenant)}")


def open_in(home: Path, path: str) -> int | None:
    """Return a directory of the home, or nothing where there is none."""
    try:
        home_fd = os.open(home, _DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        return _open_at(home_fd, path)
    finally:
        os.close(home_fd)


def _open_at(directory: int, path: str) -> int | None:
    try:
        return open_beneath(directory, path, _DIRECTORY)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _read(directory: int, path: str, most: int) -> bytes:
    try:
        fd = open_regular(directory, path)
    except (OSError, CapabilityBlocked) as error:
        raise _damaged(path, "is no file any more") from error
    try:
        content = bytearray()
        while len(content) <= most and (chunk := os.read(fd, min(MIB, most + 1 - len(content)))):
            content += chunk
    finally:
        os.close(fd)
    if len(content) > most:
        raise _damaged(path, f"is larger than {most} bytes")
    return bytes(content)


def _read_document(directory: int, name: str) -> dict[str, Any]:
    try:
        value = json.loads(_read(directory, name, MOST_DOCUMENT_BYTES))
    except (ValueError, RecursionError) as error:
        raise _damaged(name, "is not JSON any more") from error
    if not isinstance(value, dict):
        raise _damaged(name, "is not what was written")
    return value


def _sha256_of(manifest: Mapping[str, Any], path: str) -> str | None:
    entries = manifest.get("artifacts")
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and entry.get("path") == path:
            return str(entry.get("sha256"))
    return None


def _damaged(path: str, how: str) -> Unavailable:
    return Unavailable(f"{harmless_path(os.fsencode(path))[:100]} of a run {how}", reason="damaged")


def _require_name(name: str) -> None:
    if not is_plain_name(name):
        raise InvalidRequest(f"{name[:100]!a} is not a plain name", reason="invalid_name")
