"""A policy that is rewritten hundreds of times under load: at once for who comes, not at all for who is there."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.command_line import said
from tests.http_service import serving

from ringfence import Denied, SandboxManager
from ringfence.operation.brokered import FsMkdir, FsRead, FsWrite

pytestmark = [pytest.mark.needs("native"), pytest.mark.timeout(120)]

CALLERS = 3
# What one allows the other denies, twice: by what it gives and by what it takes away. Half of one and half of the other
# allows nothing or everything.
ALLOWED = {"a": "/workspace/work/a", "b": "/workspace/work/b"}
PADDING = "# so long that it is written in several pieces\n" * 400


def text(number: int) -> str:
    """Return the policy of one number; the even ones allow to read `a`, the odd ones `b`."""
    mine, other = ("a", "b") if number % 2 == 0 else ("b", "a")
    return (
        f"# {number}\n{PADDING}policies:\n  tools:\n    file_read:\n      allowed_paths: [{ALLOWED[mine]}]\n"
        f"      denied_paths: ['{ALLOWED[other]}/**']\n    code_run: {{env_allow: [N{number}]}}\n"
    )


def named(content: str) -> str:
    return f"sha256:{hashlib.sha256(content.encode()).hexdigest()}"


class Answer(NamedTuple):
    evidence_id: str
    part: str
    allowed: bool


Expected = dict[str, tuple[str, Answer]]
"""By its evidence: the policy that an answer must have been judged by, where that is known, and the answer."""


Read = Callable[[str], Answer]


@dataclass
class Rewriting:
    """A policy file, every good text that was ever in it, and what its readers are to be judged by now."""

    path: Path
    known: dict[str, int] = field(default_factory=dict)
    number: int = 0

    def good(self) -> str:
        self.number += 1
        content = text(self.number)
        self.known[named(content)] = self.number
        return content

    @property
    def in_use(self) -> str:
        return named(text(self.number))

    def clear(self) -> None:
        """Take away whatever is there."""
        if self.path.is_dir() and not self.path.is_symlink():
            self.path.rmdir()
        else:
            self.path.unlink(missing_ok=True)

    def beside(self, content: str) -> Path:
        other = self.path.with_name("next.yaml")
        other.unlink(missing_ok=True)
        other.write_text(content)
        return other


def in_place(file: Rewriting) -> None:
    file.path.write_text(file.good())


def by_renaming(file: Rewriting) -> None:
    os.replace(file.beside(file.good()), file.path)


def by_a_link(file: Rewriting) -> None:
    target = file.path.with_name(f"target-{file.number % 3}.yaml")
    target.unlink(missing_ok=True)
    target.write_text(file.good())
    link = file.path.with_name("link")
    link.symlink_to(target)
    os.replace(link, file.path)


def by_a_link_to_nothing(file: Rewriting) -> None:
    link = file.path.with_name("link")
    link.symlink_to("nowhere")
    os.replace(link, file.path)


def by_an_empty_device(file: Rewriting) -> None:
    link = file.path.with_name("link")
    link.symlink_to("/dev/null")
    os.replace(link, file.path)


def by_a_directory(file: Rewriting) -> None:
    file.clear()
    file.path.mkdir()


def by_a_fifo(file: Rewriting) -> None:
    file.clear()
    os.mkfifo(file.path)


def by_nothing(file: Rewriting) -> None:
    file.clear()


def by_emptying(file: Rewriting) -> None:
    os.replace(file.beside(""), file.path)


def by_a_mistake(file: Rewriting) -> None:
    file.path.write_text(text(file.number + 1).replace("file_read", "file_raed: {}\n    file_read").replace("#", "%"))


def by_an_unknown_key(file: Rewriting) -> None:
    os.replace(file.beside(text(file.number + 1).replace("allowed_paths", "alowed_paths")), file.path)


BROKEN = (
    by_a_link_to_nothing,
    by_an_empty_device,
    by_a_directory,
    by_a_fifo,
    by_nothing,
    by_emptying,
    by_a_mistake,
    by_an_unknown_key,
)


@contextlib.contextmanager
def half_written(file: Rewriting) -> Iterator[None]:
    """Have a good policy half on the disk, cut where what is there is a policy too, and wider than either."""
    content = file.good()
    cut = content.index("policies:\n  tools:\n    file_read:\n") + len("policies:\n  tools:\n    file_read:\n")
    cut = content.index("\n", cut) + 1
    file.number -= 1
    file.clear()
    with file.path.open("w") as writing:
        writing.write(content[:cut])
        writing.flush()
        yield
        writing.write(content[cut:])
    file.number += 1


def storm(file: Rewriting, read: Read, load: Callable[[threading.Event], list[Answer]], rounds: int) -> Expected:
    """Rewrite the file under load, look after each change, and return every answer that anybody got."""
    expected: Expected = {}

    def look() -> None:
        for part in ALLOWED:
            answer = read(part)
            expected[answer.evidence_id] = (file.in_use, answer)

    over = threading.Event()
    with ThreadPoolExecutor(CALLERS) as callers:
        under_load = [callers.submit(load, over) for _ in range(CALLERS)]
        try:
            for turn in range(rounds):
                for rewrite in (in_place, by_renaming, by_a_link):
                    file.clear()
                    rewrite(file)
                    look()
                BROKEN[turn % len(BROKEN)](file)
                look()
                with half_written(file):
                    look()
                look()
        finally:
            over.set()
        for each in under_load:
            for answer in each.result():
                expected[answer.evidence_id] = ("", answer)
    return expected


def judged(home: Path) -> dict[str, dict[str, Any]]:
    """Return what is on record of every call that was judged."""
    lines = [json.loads(line) for line in said(home, "evidence", "export", "--format", "log").splitlines()]
    return {line["envelope_id"]: line for line in lines if line["type"] in ("exec.begin", "decision.denied")}


def check(file: Rewriting, home: Path, expected: Expected) -> None:
    """Hold every answer against the one policy that its evidence names."""
    records = judged(home)
    profiles: dict[str, set[str]] = {}
    for evidence_id, (policy, answer) in expected.items():
        record = records[evidence_id]
        judged_by = record["policy_version_hash"]
        assert policy in ("", judged_by), file.known[judged_by]
        assert answer.allowed == (answer.part == "ab"[file.known[judged_by] % 2]), (file.known[judged_by], answer)
        assert record["documents"]["policy"] == judged_by
        profiles.setdefault(judged_by, set()).add(record["profile_hash"])
    assert [judged_by for judged_by, hashes in profiles.items() if len(hashes) != 1] == []


@pytest.fixture
def file(tmp_path: Path) -> Rewriting:
    (tmp_path / "law").mkdir()
    file = Rewriting(tmp_path / "law" / "policy.yaml")
    in_place(file)
    return file


def test_no_call_of_a_manager_is_judged_by_a_mixture_and_what_is_broken_is_told(
    file: Rewriting, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home = tmp_path / "home"
    loop = asyncio.new_event_loop()

    def manager() -> SandboxManager:
        return SandboxManager("s", home=home, policy_file=file.path, pool_size=0)

    async def read(manager: SandboxManager, part: str) -> Answer:
        try:
            outcome = await manager.perform(FsRead(f"work/{part}/x.txt"))
        except Denied as refused:
            return Answer(str(refused.details["evidence_id"]), part, allowed=False)
        return Answer(str(outcome.evidence_id), part, allowed=True)

    def load(over: threading.Event) -> list[Answer]:
        async def go_on() -> list[Answer]:
            answers = []
            async with manager() as mine:
                while not over.is_set():
                    answers += await asyncio.gather(*(read(mine, part) for part in "aba"))
            return answers

        return asyncio.run(go_on())

    async def prepare(ours: SandboxManager) -> None:
        for part in ALLOWED:
            await ours.perform(FsMkdir(f"work/{part}"))
            await ours.perform(FsWrite(f"work/{part}/x.txt", b"x"))

    ours = manager()
    try:
        loop.run_until_complete(prepare(ours))
        with caplog.at_level(logging.WARNING, logger="ringfence.policy"):
            expected = storm(file, lambda part: loop.run_until_complete(read(ours, part)), load, 3 * len(BROKEN))
    finally:
        loop.run_until_complete(ours.cleanup())
        loop.close()
    check(file, home, expected)
    complaints = Counter(record.getMessage().split(" ")[1].rstrip(":") for record in caplog.records)
    assert {"policy_unreadable", "invalid_policy"} == set(complaints)
    assert all("the policy in use stays" in record.getMessage() for record in caplog.records)


def test_no_request_to_a_service_is_judged_by_a_mixture_and_what_is_broken_turns_its_health_red(
    file: Rewriting, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    with serving(home, "--policy", str(file.path)) as service:

        def ask(**operation: str) -> Any:
            return service.ask("POST", "/sandbox/ops", {"project_id": "p", "operation": operation})

        def read(part: str) -> Answer:
            answer = ask(op="fs_read", path=f"work/{part}/x.txt")
            if answer.status == 200:
                return Answer(answer.json["evidence_id"], part, allowed=True)
            assert (answer.status, answer.json["code"]) == (403, "SANDBOX.CAPABILITY_BLOCKED")
            return Answer(answer.json["details"]["evidence_id"], part, allowed=False)

        def load(over: threading.Event) -> list[Answer]:
            answers = []
            while not over.is_set():
                answers += [read(part) for part in "ab"]
            return answers

        def health() -> str:
            full = service.ask("GET", "/sandbox/health").json
            return str({check["name"]: check["status"] for check in full["checks"]}["policy"])

        for part in ALLOWED:
            assert ask(op="fs_mkdir", path=f"work/{part}").status == 200
            assert ask(op="fs_write", path=f"work/{part}/x.txt", bytes_b64="eA==").status == 200
        expected = storm(file, read, load, len(BROKEN))
        assert health() == "green"
        by_an_unknown_key(file)
        assert health() == "red"
        by_renaming(file)
        assert health() == "green"
        assert service.end() == 0
    check(file, home, expected)
    assert any("the policy in use stays" in line and "did you mean allowed_paths?" in line for line in service.said)


async def test_a_call_that_runs_keeps_the_policy_it_began_under(file: Rewriting, tmp_path: Path) -> None:
    home, began_under = tmp_path / "home", file.in_use
    narrower = "policies: {tools: {code_run: {supported_languages: [bash]}}}\n"

    async with SandboxManager(home=home, policy_file=file.path, pool_size=0) as manager:
        result = await manager.execute_code(
            "python",
            "print('here', flush=True); import json; print('and after')",
            on_output=lambda *_: (
                os.replace(file.beside(narrower), file.path) if file.path.stat().st_size > 99 else None
            ),
        )
        assert (result.stdout, file.path.read_text()) == ("here\nand after\n", narrower)
        with pytest.raises(Denied) as refused:
            await manager.execute_code("python", "print(1)")
    records = judged(home)
    assert records[str(result.evidence_id)]["policy_version_hash"] == began_under
    assert records[str(refused.value.details["evidence_id"])]["policy_version_hash"] == named(narrower)
