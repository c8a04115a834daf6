"""A file of events is appended to whole line by whole line, and nobody can make it another file."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from ringfence.observe.opening import open_observers
from ringfence.observe.settings import ObserveSettings, SinkKind, SinkSettings, read_settings
from ringfence.observe.sinks import FileLines, SinkUnready, Stdout

JSON = "application/cloudevents+json"


def event(record: Any, record_hash: str) -> dict[str, Any]:
    return {"id": record["seq"], "data": {**record, "hash": record_hash}}


def test_each_event_is_one_line_of_a_file_that_only_its_owner_reads(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    settings = read_settings({"sinks": [{"kind": "file", "path": str(path)}]})
    observers = open_observers(settings, event=event)
    for seq in range(3):
        observers.offer({"type": "exec.end", "log_id": "lg-1", "seq": seq, "tool_name": "a\nb"}, b"\xab" * 32)
    assert observers.close(20)
    lines = path.read_bytes().splitlines()
    assert [json.loads(line)["id"] for line in lines] == [0, 1, 2]
    assert json.loads(lines[0])["data"]["hash"] == "ab" * 32
    assert path.stat().st_mode & 0o777 == 0o600


def test_with_observe_off_no_file_is_made(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    sink = SinkSettings(kind=SinkKind.FILE, path=str(path))
    observers = open_observers(ObserveSettings(observe=False, sinks=(sink,), checkpoints=(sink,)), event=event)
    observers.offer({"type": "exec.end", "log_id": "lg-1", "seq": 0}, b"")
    observers.offer_checkpoint("note\n")
    assert observers.close()
    assert not path.exists()


def test_checkpoints_stand_in_a_file_as_they_were_signed(tmp_path: Path) -> None:
    path = tmp_path / "checkpoints.txt"
    settings = read_settings({"checkpoints": [{"kind": "file", "path": str(path)}]})
    observers = open_observers(settings, event=event)
    notes = ["log\n1\nroot\n\n— key sig1\n", "log\n2\nroot\n\n— key sig2\n"]
    for note in notes:
        observers.offer_checkpoint(note)
    assert observers.close(20)
    assert path.read_text() == f"{notes[0]}\n{notes[1]}\n"


def test_a_link_in_the_place_of_the_file_is_not_written_through(tmp_path: Path) -> None:
    victim, path = tmp_path / "victim", tmp_path / "events.jsonl"
    victim.write_text("precious\n")
    path.symlink_to(victim)
    with pytest.raises(SinkUnready, match="events"):
        FileLines(str(path)).send(b"{}", JSON)
    assert victim.read_text() == "precious\n"


def test_a_file_that_becomes_a_link_while_it_is_open_is_not_written_through_either(tmp_path: Path) -> None:
    victim, path = tmp_path / "victim", tmp_path / "events.jsonl"
    victim.write_text("precious\n")
    lines = FileLines(str(path))
    lines.send(b"1", JSON)
    path.unlink()
    path.symlink_to(victim)
    with pytest.raises(SinkUnready):
        lines.send(b"2", JSON)
    path.unlink()
    lines.send(b"2", JSON)
    assert path.read_bytes() == b"2\n"
    assert victim.read_text() == "precious\n"
    lines.close()


def test_a_second_name_of_another_file_is_not_written_to(tmp_path: Path) -> None:
    victim, path = tmp_path / "victim", tmp_path / "events.jsonl"
    victim.write_text("precious\n")
    os.link(victim, path)
    with pytest.raises(SinkUnready, match="not a plain file"):
        FileLines(str(path)).send(b"{}", JSON)
    assert victim.read_text() == "precious\n"


@pytest.mark.parametrize("kind", ["fifo", "directory", "device"])
def test_what_is_no_plain_file_is_refused_and_does_not_hang(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "events.jsonl"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path = Path("/dev/null")
    with pytest.raises(SinkUnready):
        FileLines(str(path)).send(b"{}", JSON)


def test_a_file_that_was_moved_away_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    lines = FileLines(str(path))
    lines.send(b"1", JSON)
    path.rename(tmp_path / "moved")
    lines.send(b"2", JSON)
    lines.close()
    assert (tmp_path / "moved").read_bytes() == b"1\n"
    assert path.read_bytes() == b"2\n"


def test_the_file_is_rotated_by_size_and_so_many_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    lines = FileLines(str(path), max_bytes=10, keep=2)
    for number in range(5):
        lines.send(b"%08d" % number, JSON)
    lines.close()
    kept = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    assert kept == {
        "events.jsonl": b"00000004\n",
        "events.jsonl.1": b"00000003\n",
        "events.jsonl.2": b"00000002\n",
    }


def test_a_line_that_was_cut_short_swallows_no_other(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"half":')
    lines = FileLines(str(path))
    lines.send(b"{}", JSON)
    lines.send(b"{}", JSON)
    lines.close()
    assert path.read_bytes() == b'{"half":\n{}\n{}\n'


def test_a_full_disk_leaves_no_half_line_and_the_line_is_written_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "events.jsonl"
    lines = FileLines(str(path))
    lines.send(b"first", JSON)
    write = os.write

    def nearly_full(fd: int, data: bytes) -> int:
        if len(data) > 3:
            return write(fd, data[:3])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", nearly_full)
        with pytest.raises(SinkUnready, match="No space left"):
            lines.send(b"sec", JSON)
    assert path.read_bytes() == b"first\n"
    lines.send(b"second", JSON)
    lines.close()
    assert path.read_bytes() == b"first\nsecond\n"


def started(code: str, *args: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", code, *args])


UNDER_A_LIMIT = """
import resource, signal, sys
from ringfence.observe.sinks import FileLines, SinkUnready
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (150, 150))
lines = FileLines(sys.argv[1])
lines.send(b"x" * 99, "application/json")
try:
    lines.send(b"y" * 99, "application/json")
except SinkUnready:
    sys.exit(0)
sys.exit(1)
"""


def test_a_real_file_size_limit_leaves_no_half_line(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    assert started(UNDER_A_LIMIT, str(path)).wait(30) == 0
    assert path.read_bytes() == b"x" * 99 + b"\n"


def test_a_directory_that_is_gone_makes_the_sink_unready(tmp_path: Path) -> None:
    with pytest.raises(SinkUnready):
        FileLines(str(tmp_path / "gone" / "events.jsonl")).send(b"{}", JSON)


WRITE_MANY = """
import sys
from ringfence.observe.sinks import FileLines
lines = FileLines(sys.argv[1], max_bytes=8_192, keep=100)
for number in range(100):
    lines.send(f"{sys.argv[2]}{number:04}".encode() * 50, "application/json")
"""


def test_several_processes_share_one_file_and_every_line_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    writers = [started(WRITE_MANY, str(path), letter) for letter in "ab"]
    assert [writer.wait(40) for writer in writers] == [0, 0]
    found = [line for each in tmp_path.iterdir() for line in each.read_bytes().splitlines()]
    assert sorted(found) == sorted(f"{letter}{number:04}".encode() * 50 for letter in "ab" for number in range(100))


def test_a_line_waits_for_whoever_rotates_and_goes_to_the_new_file(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    lines = FileLines(str(path))
    lines.send(b"1", JSON)
    with path.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        sending = threading.Thread(target=lines.send, args=(b"2", JSON))
        sending.start()
        waiting = re.compile(rf"-> FLOCK .*:{path.stat().st_ino} ")
        while sending.is_alive() and not waiting.search(Path("/proc/locks").read_text()):
            assert not threading.Event().wait(0)
        path.rename(tmp_path / "events.jsonl.1")
    sending.join(20)
    lines.close()
    assert (tmp_path / "events.jsonl.1").read_bytes() == b"1\n"
    assert path.read_bytes() == b"2\n"


def test_standard_output_gets_a_line_an_event_and_a_broken_pipe_is_unready() -> None:
    read_end, write_end = os.pipe()
    out = Stdout(write_end)
    out.send(b"{}", JSON)
    out.send(b"note\n", "text/plain")
    assert os.read(read_end, 100) == b"{}\nnote\n"
    os.close(read_end)
    with pytest.raises(SinkUnready):
        out.send(b"{}", JSON)
    os.close(write_end)
