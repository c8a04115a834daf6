"""Attack the brokers that touch files for an agent: where a path leads, and what a name says or grants."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.security.broker_ground import ENDING_IN_A_LINK, OPERATIONS, OUTWARDS, SECRET, Ground, attempt
from tests.security.broker_ground import ground as ground
from tests.security.broker_ground import kernel as kernel

from ringfence.errors import CapabilityBlocked, InvalidRequest, PathTraversalError, RingfenceError
from ringfence.executors.fs import FsBroker
from ringfence.operation.brokered import FsDelete, FsList, FsRead, FsWrite
from ringfence.operation.handle import read_handle
from ringfence.workspaces import beneath
from ringfence.workspaces.agent import AgentWorkspace

pytestmark = pytest.mark.guarantee(16)

# --- where a path may lead ---


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("path", OUTWARDS)
def test_no_path_leads_out_of_the_workspace(ground: Ground, kernel: str, operation: str, path: str) -> None:
    ground.plant_links()
    with pytest.raises(PathTraversalError) as refusal:
        ground.broker.perform(OPERATIONS[operation](path), inline=True)
    assert (refusal.value.code, refusal.value.reason) == ("SANDBOX.CAPABILITY_BLOCKED", "path_traversal")
    assert refusal.value.answer.http_status == 403
    assert ground.untouched()


@pytest.mark.parametrize("operation", ["read", "write", "list", "stat", "mkdir"])
@pytest.mark.parametrize("path", ENDING_IN_A_LINK)
def test_nothing_is_done_through_a_link_at_the_end(ground: Ground, kernel: str, operation: str, path: str) -> None:
    ground.plant_links()
    before = os.readlink(ground.root / path)
    with pytest.raises(PathTraversalError):
        ground.broker.perform(OPERATIONS[operation](path), inline=True)
    assert os.readlink(ground.root / path) == before
    assert ground.untouched()


def test_deleting_a_link_deletes_the_link_alone(ground: Ground) -> None:
    ground.plant_links()
    for name in ("link", "directory", "magic", "dangling"):
        assert ground.broker.perform(FsDelete(f"work/{name}")).out["kind"] == "link"
    assert ground.untouched()
    assert (ground.work / "real" / "file").read_text() == "inside"


def test_links_that_stay_inside_can_be_allowed_and_no_other(ground: Ground) -> None:
    ground.plant_links()
    os.symlink("real", ground.work / "inside")
    os.symlink("../../work/real/file", ground.work / "real" / "around")  # leaves, and comes back
    os.symlink("./real/../real/file", ground.work / "detour")
    broker = ground.with_links()
    for path in ("work/inside/file", "work/detour"):
        assert broker.perform(FsRead(path), inline=True).content == b"inside"
        with pytest.raises(PathTraversalError):
            ground.broker.perform(FsRead(path))
    for path in [*OUTWARDS[10:], *ENDING_IN_A_LINK, "work/real/around"]:
        with pytest.raises(PathTraversalError):
            broker.perform(FsRead(path), inline=True)
    broker.perform(FsWrite("work/inside/new", b"x"))
    assert (ground.work / "real" / "new").read_bytes() == b"x"
    with pytest.raises(PathTraversalError):  # also inside, a write replaces names and never goes through one
        broker.perform(FsWrite("work/detour", b"x", overwrite=True))
    assert ground.untouched()


def test_a_kernel_without_the_call_allows_no_link_at_all(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    ground.plant_links()
    os.symlink("real", ground.work / "inside")
    monkeypatch.setattr(beneath, "_SYS_OPENAT2", 100_000)
    with pytest.raises(PathTraversalError):
        ground.with_links().perform(FsRead("work/inside/file"))


pieces = st.sampled_from(
    ["..", ".", "", "work", "inputs", "tmp", "link", "directory", "root", "real", "file", "etc", "passwd", "workspace",
     "proc", "self", "climbs-up", "outside", "secret", "\0", "\n", "..\0", "%2e%2e", "\u2025", "\udc80", "a" * 300]
)  # fmt: skip


@given(path=st.lists(pieces, max_size=8).map("/".join), operation=st.sampled_from(sorted(OPERATIONS)))
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_path_is_spelled_the_outside_stays_unread_and_unchanged(
    ground: Ground, path: str, operation: str
) -> None:
    ground.clear()
    ground.plant_links()
    came = attempt(ground.broker, OPERATIONS[operation](path))
    if isinstance(came, RingfenceError):
        assert came.code in ("SANDBOX.CAPABILITY_BLOCKED", "SCHEMA.VALIDATION_FAILED")
        assert SECRET not in str(came)
    else:
        assert SECRET.encode() not in (came.content or b"")
    assert ground.untouched()


# --- names ---


@pytest.mark.parametrize(
    "path",
    ["work/a\0b", "work/a\nb", "work/\x1b[2J", "work/\udcff", "work/" + "x" * 256, "x/" * 33 + "x", "work/\u2028"],
)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_name_that_is_none_is_refused_in_printable_words(ground: Ground, operation: str, path: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        ground.broker.perform(OPERATIONS[operation](path))
    assert (refusal.value.code, refusal.value.reason) == ("SCHEMA.VALIDATION_FAILED", "invalid_path")
    assert str(refusal.value).isprintable()


def test_names_a_guest_chose_are_listed_so_that_they_do_no_harm(ground: Ground) -> None:
    hostile = [b"a\nb", b"\x1b[31mred", b"\xff\xfe", "gpj\u202eexe".encode(), b"100%", b"-rf", b"..."]
    for name in hostile:
        with open(os.fsencode(ground.work) + b"/" + name, "wb"):
            pass
    entries = ground.broker.perform(FsList("work")).out["entries"]
    assert len(entries) == len(hostile)
    assert all(each["name"].isprintable() and "/" not in each["name"] for each in entries)
    assert json.dumps(entries).isprintable()
    asked = {each["name"]: each["path"] for each in entries}
    assert [asked[name] for name in ("a%0Ab", "%1B[31mred", "%FF%FE")] == [None] * 3
    for shown in ("100%25", "-rf", "..."):
        assert ground.broker.perform(FsRead(asked[shown])).out["size"] == 0


def test_no_message_names_a_path_of_the_host(ground: Ground, tmp_path: Path) -> None:
    ground.plant_links()
    (ground.work / "file").write_text("x")
    os.mkfifo(ground.work / "fifo")
    for path in [*OUTWARDS, *ENDING_IN_A_LINK, "work/none", "work/file/x", "work/fifo", "inputs/x"]:
        for operation in OPERATIONS.values():
            came = attempt(ground.broker, operation(path))
            said = f"{came} {came.fix} {came.details}" if isinstance(came, RingfenceError) else str(came.out)
            assert str(tmp_path) not in said


# --- second names and permissions ---


def test_writing_a_name_leaves_the_files_other_names_alone(ground: Ground) -> None:
    os.link(ground.outside / "secret", ground.work / "second")
    ground.broker.perform(FsWrite("work/second", b"new", overwrite=True))
    assert (ground.work / "second").read_bytes() == b"new"
    assert ground.untouched()
    assert (ground.outside / "secret").stat().st_nlink == 1


def test_a_setuid_bit_does_not_survive_a_write(ground: Ground) -> None:
    (ground.work / "tool").write_bytes(b"old")
    (ground.work / "tool").chmod(0o6755)
    ground.broker.perform(FsWrite("work/tool", b"new", overwrite=True))
    assert stat.S_IMODE((ground.work / "tool").stat().st_mode) == 0o755


@pytest.mark.needs("root")
def test_root_reads_a_session_as_the_sessions_user(tmp_path: Path) -> None:
    (tmp_path / "shadow").write_text(SECRET)
    (tmp_path / "shadow").chmod(0o600)
    with AgentWorkspace("s", home=tmp_path / "home") as agent:
        agent.write_file("x", "x")
        os.link(tmp_path / "shadow", f"/proc/self/fd/{agent.areas()['work'].fd}/second")
        with pytest.raises(CapabilityBlocked) as refusal:
            agent.read_file("second")
        assert refusal.value.reason == "unreadable"
        owner = os.stat("x", dir_fd=agent.areas()["work"].fd)
        assert (owner.st_uid, owner.st_gid) == agent.areas()["work"].owner


# --- handles ---


def redeemed(broker: FsBroker, handle: str) -> bytes:
    found = read_handle(handle)
    return found.require_same(broker.perform(found.read, inline=True).content)


@pytest.mark.parametrize(
    "handle", ["", "fs:", "fs:0+1:aa:/etc/passwd", "net:0+1:aa:work/f", "fs:x+1:aa:work/f", "fs:0"]
)
async def test_a_handle_of_a_read_opens_nothing_a_read_would_not(ground: Ground, handle: str) -> None:
    (ground.work / "f").write_text("x")
    with pytest.raises(InvalidRequest):
        redeemed(ground.broker, handle)
    given = ground.broker.perform(FsRead("work/f")).out["handle"]
    assert redeemed(ground.broker, given) == b"x"
    ground.broker.perform(FsWrite("work/f", b"y", overwrite=True))
    with pytest.raises(CapabilityBlocked) as refusal:
        redeemed(ground.broker, given)
    assert refusal.value.reason == "changed"
