"""The brokers as a well-meaning agent meets them: ranges, digests, handles, pages, budgets and effects."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ringfence.authority.profile import Profile
from ringfence.errors import InvalidRequest
from ringfence.executors.fs import FsBroker, FsCaps, FsExecutor
from ringfence.executors.proc import ProcExecutor
from ringfence.executors.tmp import TmpBroker, TmpExecutor
from ringfence.operation.brokered import (
    FsDelete,
    FsList,
    FsMkdir,
    FsOperation,
    FsRead,
    FsStat,
    FsWrite,
    TmpAlloc,
    TmpFree,
)
from ringfence.operation.handle import read_handle
from ringfence.outcome import BrokerOutcome, Budget, Effect
from ringfence.ports import ExecCtx
from ringfence.testing import ScriptedExecutor
from ringfence.workspaces.files import Area

CALL = ExecCtx("ex_1", Profile(), session_id="s", scope="call")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[FsBroker]:
    fds = {}
    for name in ("work", "inputs"):
        (tmp_path / name).mkdir()
        fds[name] = os.open(tmp_path / name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    yield FsBroker({name: Area(fd, writable=name == "work") for name, fd in fds.items()})
    for fd in fds.values():
        os.close(fd)


def refused(broker: FsBroker, operation: FsOperation) -> str:
    with pytest.raises(InvalidRequest) as refusal:
        broker.perform(operation)
    return refusal.value.reason


@given(content=st.binary(max_size=300), offset=st.integers(0, 400), length=st.none() | st.integers(0, 200))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_read_brings_exactly_the_range_and_its_digest(
    broker: FsBroker, content: bytes, offset: int, length: int | None
) -> None:
    broker.perform(FsWrite("work/f", content, overwrite=True))
    caps = FsCaps(max_bytes_in=200)
    outcome = broker.perform(FsRead("work/f", offset, length), caps, inline=True)
    wanted = content[offset : offset + (200 if length is None else length)]
    assert outcome.content == wanted
    assert outcome.out["size"] == len(content)
    assert outcome.out["truncated"] == (offset + len(wanted) < len(content))
    digest = outcome.out["digest"]
    assert (digest["algo"], digest["size"]) == ("sha256", len(wanted))
    assert base64.b64decode(digest["b64"]) == hashlib.sha256(wanted).digest()
    assert outcome.used == Budget(bytes_in=len(wanted))


def test_the_public_view_has_the_digest_and_the_handle_and_nothing_of_the_content(broker: FsBroker) -> None:
    broker.perform(FsWrite("work/f", b"CONFIDENTIAL"))
    outcome = broker.perform(FsRead("work/f"))
    assert outcome.content is None
    assert "CONFIDENTIAL" not in repr(outcome)
    assert "CONFIDENTIAL" not in repr(broker.perform(FsRead("work/f"), inline=True))
    assert "CONFIDENTIAL" not in repr(FsWrite("work/f", b"CONFIDENTIAL"))
    assert outcome.effects == (Effect("read", {"path": "/workspace/work/f", "bytes": 12}),)


def test_a_handle_brings_the_very_bytes_it_was_given_out_for(broker: FsBroker) -> None:
    written = broker.perform(FsWrite("/workspace/work/d/f: 1+1", b"0123456789"))
    ranged = broker.perform(FsRead("work/d/f: 1+1", 3, 4))
    assert redeemed(broker, written.out["handle"]) == b"0123456789"
    assert redeemed(broker, ranged.out["handle"]) == b"3456"


def redeemed(broker: FsBroker, handle: str) -> bytes:
    found = read_handle(handle)
    return found.require_same(broker.perform(found.read, inline=True).content)


def test_a_write_says_what_is_new_and_what_it_used(broker: FsBroker) -> None:
    first = broker.perform(FsWrite("work/d/f", b"one"))
    assert (first.out["created"], first.used) == (True, Budget(bytes_out=3, file_count=1, disk_bytes=3))
    assert first.effects == (Effect("write", {"path": "/workspace/work/d/f", "bytes": 3}),)
    assert refused(broker, FsWrite("work/d/f", b"two")) == "exists"
    second = broker.perform(FsWrite("work/d/f", b"three", overwrite=True))
    assert (second.out["created"], second.used) == (False, Budget(bytes_out=5, disk_bytes=5))
    assert broker.perform(FsRead("work/d/f"), inline=True).content == b"three"


def test_a_write_of_exactly_the_cap_is_done(broker: FsBroker) -> None:
    caps = FsCaps(max_bytes_in=5, max_bytes_out=5, max_files=2)
    broker.perform(FsWrite("work/d/f", b"12345"), caps)
    assert broker.perform(FsRead("work/d/f", len=5), caps, inline=True).content == b"12345"


def test_a_page_ends_with_where_the_next_begins(broker: FsBroker) -> None:
    for name in ("c", "a", "b", "e", "d"):
        broker.perform(FsWrite(f"work/{name}", b"x"))
    seen, cursor = [], None
    for _ in range(3):
        page = broker.perform(FsList("work", cursor, 2)).out
        seen.append([entry["path"] for entry in page["entries"]])
        cursor = page["cursor"]
    assert (seen, cursor) == (
        [
            ["/workspace/work/a", "/workspace/work/b"],
            ["/workspace/work/c", "/workspace/work/d"],
            ["/workspace/work/e"],
        ],
        None,
    )
    assert refused(broker, FsList("work", limit=1001)) == "invalid_range"
    assert refused(broker, FsList("work", limit=0)) == "invalid_range"


@pytest.mark.parametrize("path", ["", ".", "/workspace", "/workspace/"])
def test_the_workspace_itself_holds_its_parts(broker: FsBroker, path: str) -> None:
    listed = broker.perform(FsList(path)).out
    assert [(entry["name"], entry["path"], entry["kind"]) for entry in listed["entries"]] == [
        ("inputs", "/workspace/inputs", "directory"),
        ("work", "/workspace/work", "directory"),
    ]
    assert broker.perform(FsStat(path)).out["kind"] == "directory"
    assert refused(broker, FsRead(path)) == "is_a_directory"


def test_a_stat_tells_kind_and_size(broker: FsBroker) -> None:
    broker.perform(FsWrite("work/d/f", b"12345"))
    assert {
        path: (out["kind"], out["size"]) for path, out in ((p, stat_of(broker, p)) for p in ("work/d", "work/d/f"))
    } == {
        "work/d": ("directory", 0),
        "work/d/f": ("file", 5),
    }
    assert refused(broker, FsStat("work/none")) == "not_found"


def stat_of(broker: FsBroker, path: str) -> dict[str, object]:
    return dict(broker.perform(FsStat(path)).out)


def test_directories_are_made_once_and_deleted_when_empty(broker: FsBroker) -> None:
    assert broker.perform(FsMkdir("work/a/b")).out["created"]
    again = broker.perform(FsMkdir("work/a/b"))
    assert (again.out["created"], again.used) == (False, Budget())
    broker.perform(FsWrite("work/f", b""))
    assert refused(broker, FsMkdir("work/f")) == "exists"
    assert refused(broker, FsDelete("work/a")) == "not_empty"
    assert broker.perform(FsDelete("work/a/b")).out["kind"] == "directory"
    assert broker.perform(FsDelete("work/f")).out["kind"] == "file"
    assert refused(broker, FsDelete("work/f")) == "not_found"


def test_each_executor_names_its_domain(tmp_path: Path) -> None:
    with TmpBroker(tmp_path / "spaces") as tmp:
        assert FsExecutor(tmp_path, tmp.areas).capability_domain() == "fs"
        assert TmpExecutor(lambda: tmp).capability_domain() == "tmp"
        assert ProcExecutor(ScriptedExecutor()).capability_domain() == "proc"


async def test_temporary_space_is_taken_used_and_given_back(broker: FsBroker, tmp_path: Path) -> None:
    with TmpBroker(tmp_path / "spaces") as tmp:
        spaces = TmpExecutor(lambda: tmp)
        taken: BrokerOutcome = await spaces.execute(CALL, TmpAlloc(100))
        handle = taken.out["handle"]
        assert handle.startswith("/workspace/tmp/")
        fs = FsBroker(tmp.areas("call"))
        fs.perform(FsWrite(f"{handle}/d/f", b"x"))
        assert [entry["name"] for entry in fs.perform(FsList(handle)).out["entries"]] == ["d"]
        given_back = await spaces.execute(CALL, TmpFree(handle))
        assert given_back.out == {"handle": handle}
        assert tmp.areas("call") == {}
        for _ in range(2):
            await spaces.execute(CALL, TmpAlloc(100))
        await spaces.execute(replace(CALL, scope="other"), TmpAlloc(100))
        assert (tmp.release("call"), tmp.release("call"), len(tmp.areas("other"))) == (2, 0, 1)
    assert os.listdir(tmp_path / "spaces") == []
