"""Runs inside the box, as the one program of a session: reads cells, runs each in the same namespace, and tells.

Only the standard library is here, and nobody outside believes a word of it: it is as much the guest's as what it runs.
"""

from __future__ import annotations

import ast
import asyncio
import base64
import builtins
import inspect
import io
import json
import linecache
import os
import struct
import sys
import threading
import traceback
import types
from collections.abc import Callable
from typing import Any

STDOUT, STDERR, DONE = 1, 2, 3
MOST_VALUE = 65_536
MOST_SHOWN_BYTES = 8 * 1024 * 1024
MOST_ROWS = 10_000
CHUNK = 1 << 16


class Channel:
    """The way out of the box: one frame at a time, whichever thread has one."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._turn = threading.Lock()

    def say(self, kind: int, payload: bytes) -> None:
        """Write one frame whole."""
        with self._turn:
            left = memoryview(struct.pack(">BI", kind, len(payload)) + payload)
            while left:
                left = left[os.write(self._fd, left) :]


class Output:
    """Takes over a standard stream for whatever writes to it, children included, and passes it on as frames."""

    def __init__(self, channel: Channel, fd: int, kind: int) -> None:
        self._channel, self._kind = channel, kind
        self._reads, writes = os.pipe()
        os.dup2(writes, fd)
        os.close(writes)
        self._fd = fd
        self._mark = b""
        self._marked = threading.Event()
        threading.Thread(target=self._pass_on, daemon=True).start()

    def settle(self) -> None:
        """Wait until everything that was written before this call is told."""
        self._marked.clear()
        self._mark = mark = os.urandom(16)
        os.write(self._fd, mark)
        self._marked.wait()

    def _pass_on(self) -> None:
        held = b""
        while data := os.read(self._reads, CHUNK):
            held += data
            mark = self._mark
            if mark and (where := held.find(mark)) >= 0:
                held = held[:where] + held[where + len(mark) :]
                self._mark = b""
                self._tell(held)
                held = b""
                self._marked.set()
                continue
            # the beginning of a mark may be at the end
            keep = next((n for n in range(min(len(mark) - 1, len(held)), 0, -1) if held.endswith(mark[:n])), 0)
            self._tell(held[: len(held) - keep])
            held = held[len(held) - keep :]

    def _tell(self, data: bytes) -> None:
        if data:
            self._channel.say(self._kind, data)


class Shown:
    """What a cell shows beside its text: pictures and tables, as files."""

    def __init__(self) -> None:
        self._files: list[dict[str, str]] = []
        self._bytes = 0
        self.cell = 0

    def begin(self, cell: int) -> None:
        """Forget what the last cell showed."""
        self.cell, self._files, self._bytes = cell, [], 0

    def take(self) -> list[dict[str, str]]:
        """Return what was shown, with every figure that is still open."""
        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is not None:
            for number in pyplot.get_fignums():
                drawn = io.BytesIO()
                pyplot.figure(number).savefig(drawn, format="png")
                self._add("png", drawn.getvalue())
            pyplot.close("all")
        return self._files

    def display(self, *values: Any) -> None:
        """Show values the richest way they know, or else as text."""
        for value in values:
            if not self.rich(value):
                print(repr(value))  # noqa: T201  the guest's own output

    def rich(self, value: Any) -> bool:
        """Show a value as a file, where it knows how to be one."""
        for suffix in ("png", "svg", "html"):
            draw: Callable[[], Any] | None = getattr(type(value), f"_repr_{suffix}_", None)
            if draw is None:
                continue
            drawn = getattr(value, f"_repr_{suffix}_")()
            if drawn:
                self._add(suffix, drawn if isinstance(drawn, bytes) else str(drawn).encode())
                self._add_rows(value)
                return True
        return False

    def _add_rows(self, table: Any) -> None:
        """Show all rows of a table too, which as a page leaves most of them out; too many are not worth the wait."""
        write: Callable[..., Any] | None = getattr(type(table), "to_csv", None)
        if write is None or len(table) > MOST_ROWS:
            return
        rows = table.to_csv()
        if isinstance(rows, str) and self._bytes + len(rows.encode()) <= MOST_SHOWN_BYTES:
            self._add("csv", rows.encode())

    def _add(self, suffix: str, content: bytes) -> None:
        self._bytes += len(content)
        if self._bytes > MOST_SHOWN_BYTES:
            raise ValueError(f"a cell shows at most {MOST_SHOWN_BYTES} bytes")
        name = f"cell-{self.cell}-{len(self._files) + 1}.{suffix}"
        self._files.append({"name": name, "b64": base64.b64encode(content).decode()})


def run_cell(number: int, code: str, names: dict[str, Any], shown: Shown, loop: asyncio.AbstractEventLoop) -> Any:
    """Run one cell and return the value of its last line, where that is an expression."""
    file = f"<cell {number}>"
    linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)
    tree = ast.parse(code, file)
    last = tree.body[-1] if tree.body else None
    if isinstance(last, ast.Expr):
        tree.body.pop()
    _carry_out(compile(tree, file, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True), names, loop)
    if not isinstance(last, ast.Expr):
        return None
    shape = ast.Expression(last.value)
    value = _carry_out(compile(shape, file, "eval", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True), names, loop)
    if value is not None:
        names["_"] = value
        shown.rich(value)
    return value


def _carry_out(code: types.CodeType, names: dict[str, Any], loop: asyncio.AbstractEventLoop) -> Any:
    if code.co_flags & inspect.CO_COROUTINE:
        return loop.run_until_complete(types.FunctionType(code, names)())
    return eval(code, names)  # noqa: S307  what the box is for


def told(
    number: int, code: str, names: dict[str, Any], shown: Shown, loop: asyncio.AbstractEventLoop
) -> dict[str, Any]:
    """Run one cell and say how it ended."""
    answer: dict[str, Any] = {"cell": number}
    shown.begin(number)
    try:
        value = run_cell(number, code, names, shown, loop)
        if value is not None:
            answer["value"] = repr(value)[:MOST_VALUE]
        answer["artifacts"] = shown.take()
    except SystemExit as end:
        answer |= {"ended": True, "status": _status(end.code)}
    except BaseException as error:  # noqa: BLE001  whatever the guest raises is its own
        ours = error.__traceback__
        while ours is not None and ours.tb_frame.f_code.co_filename == HERE:
            ours = ours.tb_next
        traceback.print_exception(type(error), error, ours)
        answer["error"] = "".join(traceback.format_exception_only(error)).strip()[:MOST_VALUE]
    return answer


def _status(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    sys.stderr.write(f"{code}\n")
    return 1


def read_exactly(fd: int, size: int) -> bytes | None:
    """Return the next bytes, or None at the end."""
    data = b""
    while len(data) < size:
        more = os.read(fd, min(CHUNK, size - len(data)))
        if not more:
            return None
        data += more
    return data


HERE = read_exactly.__code__.co_filename


def main() -> int:
    """Serve cells until there are no more."""
    os.environ.setdefault("MPLBACKEND", "Agg")
    asked, channel = os.dup(0), Channel(os.dup(1))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    outputs = Output(channel, 1, STDOUT), Output(channel, 2, STDERR)
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    shown, loop, own = Shown(), asyncio.new_event_loop(), os.getpid()
    asyncio.set_event_loop(loop)
    names = module.__dict__
    names["__builtins__"] = builtins
    names["display"] = shown.display
    while (head := read_exactly(asked, 4)) is not None:
        body = read_exactly(asked, int.from_bytes(head, "big"))
        if body is None:
            break
        job = json.loads(body)
        try:
            answer = told(job["cell"], job["code"], names, shown, loop)
        except KeyboardInterrupt:  # came between the cell and its answer
            answer = {"cell": job["cell"], "error": "KeyboardInterrupt"}
        if os.getpid() != own:
            os._exit(0)  # a fork that ran to the end of its cell is no second interpreter
        sys.stdout.flush()
        sys.stderr.flush()
        for output in outputs:
            output.settle()
        channel.say(DONE, json.dumps(answer).encode("utf-8", "backslashreplace"))
        if answer.get("ended"):
            return int(answer["status"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
