"""Attack: be a container that lies to its host about the files that its guest left."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.stream_scripts import HELLO, Container, entry, held, job

from ringfence.capability.limits import Limits
from ringfence.isolation.protocol import Kind, encode
from ringfence.isolation.stream import harvesting, wire
from ringfence.isolation.stream.boot import bundle
from ringfence.masking import Masks
from ringfence.ports import EVERYTHING, Harvest, Keeping
from ringfence.workspaces.session import SessionWorkspace

pytestmark = [pytest.mark.guarantee(13), pytest.mark.guarantee(29), pytest.mark.timeout(60)]

UP = [b"../up", b"a/../../up", b"/etc/cron.d/up", b".", b"..", b"a//b", b"a/", b"a\0b", b"n" * 256, b"d/" * 70 + b"x"]


def harvested(
    *words: bytes,
    limits: Limits | None = None,
    session: SessionWorkspace | None = None,
    keeping: Keeping = EVERYTHING,
) -> Harvest:
    """Return what the host makes of such a harvest."""

    def script(container: Container) -> None:
        if session is not None:
            container.take(len(bundle()))
            container.until(Kind.PLACED)
            container.say(Kind.PLACED, b"0")
            container.say(Kind.READY, json.dumps(HELLO).encode())
            container.until(Kind.START)
            container.say(Kind.STARTED)
            container.say(Kind.EXIT, b"0 0 0 0 0 0 1")
        else:
            container.finish()
        container.until(Kind.HARVEST)
        for data in words:
            container.write(data)
        container.stay()

    with held(script, session=session) as worker:
        asyncio.run(worker.run(job(), None))
        assert worker.left_files()
        return worker.harvest(limits or Limits(), keeping)


@pytest.fixture(scope="module", autouse=True)
def a_temporary_directory_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("scratch")))
        yield


def scratch() -> list[str]:
    return [name for name in os.listdir(tempfile.gettempdir()) if name.startswith("ringfence-harvest-")]


DONE = encode(Kind.HARVEST, b"1")


def word(path: bytes, kind: int = wire.FILE, **more: Any) -> bytes:
    return encode(Kind.ENTRY, entry(path, kind, **more))


@pytest.mark.guarantee(11)
@pytest.mark.parametrize("path", UP)
@pytest.mark.parametrize("kind", [wire.FILE, wire.DIRECTORY, wire.LINK])
def test_no_name_leads_out_of_the_harvest(path: bytes, kind: int) -> None:
    target = b"x" if kind == wire.LINK else b""
    for area in (wire.WORK, wire.ARTIFACTS):
        found = harvested(word(b"good", area=area), word(path, kind, area=area, target=target), DONE)
        assert (found.artifacts, found.files_written) == ((), ())
        assert "lost" in found.notes[0]


@pytest.mark.guarantee(11)
@pytest.mark.parametrize(
    "words",
    [
        (word(b"l", wire.LINK, target=b"/tmp"), word(b"l/x")),
        (word(b"l", wire.LINK, target=b"/etc/passwd"), word(b"l", size=1, flags=1), encode(Kind.PIECE, b"x")),
        (word(b"l", wire.LINK, target=b"a\0b"),),
        (word(b"f", wire.FIFO), word(b"f/x")),
        (word(b"a"), word(b"a")),
        (word(b"a"), word(b"a", wire.DIRECTORY)),
        (word(b"no/such/parent"),),
        (word(b"a", area=wire.INPUTS),),
        (encode(Kind.ENTRY, b""),),
        (encode(Kind.ENTRY, b"\0" * 24),),
        (encode(Kind.ENTRY, entry(b"a") + b"trailing"),),
        (encode(Kind.PIECE, b"x"),),
        (encode(Kind.GONE, b"a"),),
        (encode(Kind.EXIT, b"0 0 0 0 0 0 0"),),
        (encode(Kind.STDOUT, b"late"),),
        (encode(Kind.HARVEST, b"yes"),),
        (word(b"a", area=wire.ARTIFACTS, size=2, flags=1), encode(Kind.PIECE, b"xxx")),
        (word(b"a", area=wire.ARTIFACTS, size=2, flags=1), encode(Kind.PIECE, b"")),
        (word(b"a", area=wire.ARTIFACTS, size=2, flags=1), word(b"b")),
        (word(b"a", area=wire.ARTIFACTS, size=1 << 60, flags=1),),
        (word(b"a", size=2, flags=1), encode(Kind.PIECE, b"xx")),  # nobody asked for the contents of work
        (b"\xff\xff\xff\xff\x0e",),
    ],
)
def test_an_entry_that_cannot_be_loses_the_harvest_and_nothing_else(words: tuple[bytes, ...]) -> None:
    found = harvested(*words, DONE)
    assert (found.artifacts, found.files_written, found.changes.kept) == ((), (), False)
    assert "lost" in found.notes[0]
    assert found.notes[0].isprintable()
    assert scratch() == []


def test_a_file_that_is_only_said_to_be_large_is_named_and_takes_no_room() -> None:
    found = harvested(
        word(b"big", area=wire.ARTIFACTS, size=1 << 62),
        word(b"small", area=wire.ARTIFACTS, size=3),
        word(b"work", size=(1 << 64) - 1),
        DONE,
    )
    assert found.artifacts == ()
    assert found.changes.uncollected == (("big", "artifact_bytes"), ("small", "artifact_bytes"))
    assert found.files_written == ("work",)


def test_looking_for_secrets_in_what_is_only_said_to_be_large_costs_nothing() -> None:
    words = (word(b"%d" % number, size=1 << 62) for number in range(200))
    keeping = Keeping(masks=Masks({"TOKEN": b"a-long-enough-secret"}))
    assert len(harvested(*words, DONE, keeping=keeping).files_written) == 200


def test_modes_and_times_of_a_liar_give_nobody_any_right() -> None:
    found = harvested(
        word(b"s", area=wire.ARTIFACTS, mode=0o107777, size=1, flags=1, mtime_ns=-(1 << 63)),
        encode(Kind.PIECE, b"x"),
        word(b"d", wire.DIRECTORY, mode=0o7000, area=wire.ARTIFACTS),
        word(b"d/x", area=wire.ARTIFACTS, size=1, flags=1, mode=0, mtime_ns=(1 << 63) - 1),
        encode(Kind.PIECE, b"y"),
        DONE,
    )
    assert {artifact.path: artifact.content for artifact in found.artifacts} == {"s": b"x", "d/x": b"y"}


def test_more_entries_than_can_be_are_not_read_to_their_end() -> None:
    limits = Limits(artifact_count=10)
    found = harvested(*(word(b"%d" % number, area=wire.ARTIFACTS) for number in range(1000)), DONE, limits=limits)
    assert "lost" in found.notes[0]


def test_a_container_that_stops_in_the_middle_is_waited_for_only_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harvesting, "SILENCE_SECONDS", 0.2)
    assert "did not send" in harvested(word(b"a", area=wire.ARTIFACTS, size=10, flags=1)).notes[0]


def test_a_container_that_sends_a_byte_now_and_then_is_not_waited_for_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harvesting, "MOST_SECONDS", 0.3)

    def script(container: Container) -> None:
        container.finish()
        container.until(Kind.HARVEST)
        container.write(word(b"a", area=wire.ARTIFACTS, size=1 << 20, flags=1))
        while not container.killed.wait(0.01):
            container.say(Kind.PIECE, b"x")

    with held(script) as worker:
        asyncio.run(worker.run(job(), None))
        assert "did not send" in worker.harvest(Limits()).notes[0]


@pytest.mark.guarantee(11)
@pytest.mark.parametrize("path", [*UP, b"l/x", b"d", b"no/such"])
def test_no_name_that_is_said_to_be_gone_reaches_past_the_session(path: bytes, tmp_path: Path) -> None:
    with SessionWorkspace.create(tmp_path, "s") as kept:
        with kept.using():
            os.close(os.open("mine", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=kept.work_fd))
        session = SessionWorkspace.create(tmp_path, "s")
        told = [word(b"l", wire.LINK, target=b".."), word(b"d", wire.DIRECTORY), encode(Kind.GONE, path)]
        found = harvested(*told, DONE, session=session)
        assert not found.changes.kept
        assert os.listdir(kept.work_fd) == ["mine"]


KINDS = st.sampled_from([Kind.ENTRY, Kind.PIECE, Kind.GONE, Kind.HARVEST])
PATHS = st.sampled_from([b"a", b"a/b", b"d", b"d/x", b"l", b"l/x", b"..", b"d/../x", b"\xff"])
ENTRIES = st.builds(
    entry,
    PATHS,
    st.integers(0, 7),
    area=st.integers(0, 3),
    flags=st.integers(0, 3),
    size=st.integers(0, 5),
    target=st.sampled_from([b"", b"/etc", b".."]),
    mode=st.integers(0, 0o7777),
)
WORDS = st.lists(st.tuples(KINDS, st.one_of(ENTRIES, PATHS, st.binary(max_size=6))), max_size=12)


@settings(max_examples=60)
@given(WORDS)
def test_whatever_a_harvest_says_the_host_answers_with_a_harvest(words: list[tuple[Kind, bytes]]) -> None:
    found = harvested(*(encode(kind, payload) for kind, payload in words), DONE)
    assert all(note.isprintable() for note in found.notes)
    assert scratch() == []
