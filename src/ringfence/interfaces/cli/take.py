"""What the command takes from the host for a run: the program's text, standard input, and `--input` files."""

from __future__ import annotations

import os
import select
import stat
import sys

from ringfence.errors import InvalidRequest
from ringfence.operation import MAX_CODE_BYTES, MAX_INPUT_BYTES, MAX_INPUT_FILES, MAX_STDIN_BYTES

_MAX_DEPTH = 64
_PATIENCE_SECONDS = 2.0


def take_code(file: str) -> str:
    """Return the program in `file`, where `-` is standard input.

    Raises:
        InvalidRequest: It cannot be read, is too large or is not UTF-8.
    """
    try:
        if file == "-":
            data = _read_up_to(0, MAX_CODE_BYTES)
        else:
            fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
            try:
                data = _read_up_to(fd, MAX_CODE_BYTES)
            finally:
                os.close(fd)
    except OSError as error:
        raise _unreadable(file, error) from error
    if len(data) > MAX_CODE_BYTES:
        raise InvalidRequest(f"{file} is larger than {MAX_CODE_BYTES} bytes", reason="too_large")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{file} is not UTF-8 text (byte {error.start})", reason="invalid_text") from None


def take_stdin(wanted: bool | None) -> bytes:
    """Return standard input to its end; `None` reads it only when it is a pipe or a file.

    Raises:
        InvalidRequest: There is more than a run may be given.
    """
    if wanted is False:
        return b""
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return b""
    if wanted is None and not (stat.S_ISFIFO(mode) or stat.S_ISREG(mode)):
        return b""
    if stat.S_ISFIFO(mode) and not select.select([0], [], [], _PATIENCE_SECONDS)[0]:
        # An inherited pipe that nobody closes looks like a hang: say what is being waited for.
        sys.stderr.write("ringfence: waiting for the end of standard input (--no-stdin runs without it)\n")
    data = _read_up_to(0, MAX_STDIN_BYTES)
    if len(data) > MAX_STDIN_BYTES:
        raise InvalidRequest(
            f"standard input is larger than {MAX_STDIN_BYTES} bytes", reason="too_large", fix="pass it with --input"
        )
    return data


def take_inputs(paths: tuple[str, ...]) -> dict[str, bytes]:
    """Return the content of every file in `paths`, named as it will be below `/workspace/inputs`.

    A path the person names may be a link; below a directory a link is refused, because it may lead anywhere.

    Raises:
        InvalidRequest: A path is missing, special, a link below a directory, named twice, or the caps are exceeded.
    """
    from pathlib import Path

    taken: dict[str, bytes] = {}
    for path in paths:
        name = Path(path).absolute().name if Path(path).name != ".." else Path(path).resolve().name
        if not name:
            raise InvalidRequest(f"--input {path}: has no name of its own", reason="invalid_input")
        if any(known.partition("/")[0] == name for known in taken):
            raise InvalidRequest(f"--input: two inputs are called {name!r}", reason="invalid_input")
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise _unreadable(path, error) from error
        try:
            _take(fd, name, taken, depth=0)
        finally:
            os.close(fd)
    return taken


def _take(fd: int, name: str, taken: dict[str, bytes], *, depth: int) -> None:
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        left = MAX_INPUT_BYTES - sum(map(len, taken.values()))
        data = _read_up_to(fd, left)
        if len(data) > left:
            raise InvalidRequest(f"--input: more than {MAX_INPUT_BYTES} bytes in all", reason="too_large")
        if len(taken) >= MAX_INPUT_FILES:
            raise InvalidRequest(f"--input: more than {MAX_INPUT_FILES} files", reason="too_many_files")
        taken[name] = data
    elif stat.S_ISDIR(mode) and depth < _MAX_DEPTH:
        for entry in sorted(os.listdir(fd)):
            _take_entry(fd, entry, f"{name}/{entry}", taken, depth=depth + 1)
    else:
        raise InvalidRequest(f"--input {name}: is not a regular file or directory", reason="invalid_input")


def _take_entry(parent: int, entry: str, name: str, taken: dict[str, bytes], *, depth: int) -> None:
    try:
        fd = os.open(entry, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW, dir_fd=parent)
    except OSError as error:
        raise _unreadable(name, error) from error
    try:
        _take(fd, name, taken, depth=depth)
    finally:
        os.close(fd)


def _read_up_to(fd: int, most: int) -> bytes:
    """Read to the end, or one byte past `most`, so that the caller can tell."""
    parts: list[bytes] = []
    left = most + 1
    while left > 0:
        part = os.read(fd, min(left, 1 << 20))
        if not part:
            break
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _unreadable(name: str, error: OSError) -> InvalidRequest:
    return InvalidRequest(f"cannot read {name}: {error.strerror}", reason="unreadable")
