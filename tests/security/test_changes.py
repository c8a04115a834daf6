"""What the policy lets nobody change stays as it is, whatever a run does instead; what a run would change is not kept.

Each program was seen to change `.git` under a policy that does not deny it: `test_each_program_bites`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.security.held_project import manager, seen, written

from ringfence import Status
from ringfence.errors import CapabilityBlocked
from ringfence.operation.brokered import FsDelete, FsMkdir, FsWrite

pytestmark = [pytest.mark.needs("native"), pytest.mark.guarantee(25)]

BEGIN = """
import os
os.makedirs('.git/hooks'); os.mkdir('src')
open('.git/config', 'w').write('[core]'); open('.git/hooks/pre-commit', 'w').write('true')
open('src/a', 'w').write('a')
"""
HOSTILE = {
    "writes": "open('.git/config', 'w').write('x')",
    "appends": "open('.git/config', 'a').write('x')",
    "adds": "open('.git/hooks/post-checkout', 'w').write('x')",
    "adds a directory": "os.makedirs('.git/refs/x'); open('.git/refs/x/y', 'w')",
    "deletes": "os.unlink('.git/config')",
    "deletes all": "shutil.rmtree('.git')",
    "deletes and makes anew": "shutil.rmtree('.git'); os.makedirs('.git'); open('.git/config', 'w').write('[core]')",
    "renames over": "open('mine', 'w').write('x'); os.rename('mine', '.git/config')",
    "renames away": "os.rename('.git/config', 'taken')",
    "makes it a file": "shutil.rmtree('.git'); open('.git', 'w').write('gitdir: src')",
    "makes it a link": "shutil.rmtree('.git'); os.symlink('src', '.git')",
    "replaces a directory in it": "shutil.rmtree('.git/hooks'); os.symlink('../src', '.git/hooks')",
    "through a link": "os.symlink('.git', 'in'); open('in/config', 'w').write('x')",
    "through a linked directory": "os.symlink('../.git/hooks', 'src/h'); open('src/h/pre-commit', 'w').write('x')",
    "through a hard link": "os.link('.git/config', 'same'); open('same', 'w').write('x')",
    "through a descriptor": "fd = os.open('.git', os.O_RDONLY); os.unlink('config', dir_fd=fd)",
    "through its other name": "open('/workspace/code/.git/config', 'w').write('x')",
    "truncates": "os.truncate('.git/config', 0)",
    "makes it executable": "os.chmod('.git/config', 0o755); open('z', 'w')",
    "closes the directory": "os.chmod('.git', 0o700); open('z', 'w')",
    "in a child": "os.system('echo x > .git/config')",
    "and exits badly": "open('.git/config', 'w').write('x'); os._exit(1)",
    "copies away and back": "shutil.copytree('.git', 'c'); shutil.rmtree('.git'); shutil.copytree('c', '.git')",
}
ELSEWHERE = {
    "another file": "open('src/a', 'w').write('b')",
    "a name like it": "open('.gitignore', 'w').write('x'); os.mkdir('.github'); open('.github/x', 'w')",
    "reads it": "open('z', 'w').write(open('.git/config').read()); os.listdir('.git')",
    "links to it": "os.symlink('.git', 'in')",
    "deeper": "os.makedirs('src/.git'); open('src/.git/config', 'w').write('x')",
}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return written(tmp_path, "denied_changes: ['.git/**']")


@pytest.mark.parametrize("program", HOSTILE.values(), ids=HOSTILE)
async def test_no_program_changes_what_nobody_may_change(home: Path, program: str) -> None:
    async with manager(home, "open") as before, manager(home) as held:
        assert (await before.execute_code(code=BEGIN)).success
        there = seen(home)
        for commit in ("always", "ask", "never"):
            result = await held.execute_code(code=f"import os, shutil\nopen('more', 'w')\n{program}", commit=commit)
            assert result.stderr == ""
            assert (result.status, result.error_code) == (Status.DENIED, "SANDBOX.CAPABILITY_BLOCKED")
            assert (result.reason, result.pending) == ("change_denied", None)
            assert all(path == ".git" or path.startswith(".git/") for path in result.changes.denied)
            assert result.changes.denied
            assert seen(home) == there  # of what else it changed, nothing either
        assert await held.pending() == []


@pytest.mark.parametrize("program", HOSTILE.values(), ids=HOSTILE)
async def test_each_program_bites(home: Path, program: str) -> None:
    async with manager(home, "open") as open_to_all:
        assert (await open_to_all.execute_code(code=BEGIN)).success
        there = {path: state for path, state in seen(home).items() if path.startswith(".git")}
        result = await open_to_all.execute_code(code=f"import os, shutil\n{program}")
        assert result.status in (Status.SUCCEEDED, Status.FAILED)
        assert {path: state for path, state in seen(home).items() if path.startswith(".git")} != there


@pytest.mark.parametrize("program", ELSEWHERE.values(), ids=ELSEWHERE)
async def test_what_is_elsewhere_may_be_changed(home: Path, program: str) -> None:
    async with manager(home, "open") as before, manager(home) as held:
        assert (await before.execute_code(code=BEGIN)).success
        there = seen(home)
        result = await held.execute_code(code=f"import os, shutil\n{program}")
        assert (result.success, result.stderr) == (True, "")
        assert seen(home) != there


async def test_what_a_caller_brings_may_not_lie_there_either(home: Path) -> None:
    async with manager(home) as held:
        result = await held.execute_code(code="open('more', 'w')", files={".git/config": b"x"})
        assert (result.status, result.reason) == (Status.DENIED, "change_denied")
        assert seen(home) == {}


@pytest.mark.parametrize("name", [".git/x", ".GIT/x", ".Git/hooks/y", ".git"])
async def test_another_case_is_the_same_name_and_no_broker_goes_round_it(home: Path, name: str) -> None:
    async with manager(home) as held:
        result = await held.execute_code(code=f"import os; os.makedirs({name!r}); open({name!r} + '/f', 'w')")
        assert result.reason == "change_denied"
        for operation in (FsWrite(f"work/{name}", b"x"), FsMkdir(f"work/{name}"), FsDelete(f"work/{name}")):
            with pytest.raises(CapabilityBlocked):
                await held.perform(operation)
        assert seen(home) == {}


async def test_a_whole_tree_above_it_cannot_be_taken_away(home: Path) -> None:
    (home / "held.yaml").write_text("policies: {default: {denied_changes: ['a/b/keep', '**/secret.key']}}\n")
    async with manager(home, "open") as before, manager(home) as held:
        begin = "import os; os.makedirs('a/b'); open('a/b/keep', 'w').write('1'); open('a/secret.key', 'w').write('2')"
        assert (await before.execute_code(code=begin)).success
        there = seen(home)
        for program in (
            "shutil.rmtree('a')",
            "shutil.rmtree('a'); os.makedirs('a/b'); open('a/x', 'w')",
            "shutil.rmtree('a'); os.symlink('/tmp', 'a')",
            "shutil.rmtree('a/b'); open('a/b', 'w')",
        ):
            result = await held.execute_code(code=f"import os, shutil\n{program}")
            assert (result.reason, result.stderr) == ("change_denied", "")
            assert seen(home) == there


async def test_a_proposal_is_held_to_the_policy_of_the_moment_it_is_committed(home: Path) -> None:
    async with manager(home, "open") as before, manager(home) as held:
        proposed = await before.execute_code(code="import os; os.mkdir('.git'); open('.git/x', 'w')", commit="ask")
        assert proposed.pending is not None
        with pytest.raises(CapabilityBlocked) as refused:
            await held.commit(proposed.exec_id, force=True)
        assert refused.value.reason == "change_denied"
        assert seen(home) == {}
        await before.commit(proposed.exec_id)
        assert ".git/x" in seen(home)


async def test_a_run_that_asks_cannot_reach_its_own_proposal_or_another(home: Path) -> None:
    async with manager(home, "open") as held:
        first = await held.execute_code(code="open('a', 'w').write('secret')", commit="ask")
        look = "import os\nfor top, _, names in os.walk('/workspace'): print(top, names)\nprint(os.listdir('.'))"
        result = await held.execute_code(code=look + "\nprint(os.path.exists('../proposals'), os.path.exists('a'))")
        assert first.exec_id not in result.stdout
        assert result.stdout.endswith("[]\nFalse False\n")


async def test_a_policy_that_asks_cannot_be_talked_out_of_it(home: Path) -> None:
    (home / "held.yaml").write_text("policies: {default: {commit: ask}}\n")
    async with manager(home) as held:
        for commit in (None, "always", "ask"):
            result = await held.execute_code(code="open('a', 'w').write('x')", commit=commit)
            assert (result.success, seen(home)) == (True, {})
            assert result.pending is not None
            assert result.pending.expires_at_ms is not None
        stricter = await held.execute_code(code="open('a', 'w').write('x')", commit="never")
        assert stricter.pending is not None
        assert stricter.pending.expires_at_ms is None


async def test_another_tenants_proposal_is_not_there(home: Path) -> None:
    from ringfence.authority.caller import Caller
    from ringfence.errors import InvalidRequest

    async with manager(home, "open") as house:
        mine, theirs = (house.acting_for(Caller(tenant), session_id="p") for tenant in ("acme", "other"))
        made = await mine.execute_code(code="open('a', 'w').write('x')", commit="ask")
        answers = []
        for exec_id in (made.exec_id, "ex_never"):
            for act in (theirs.commit, theirs.discard):
                with pytest.raises(InvalidRequest) as refused:
                    await act(exec_id)
                answers.append((refused.value.code, refused.value.reason, str(refused.value)))
        assert len(set(answers)) == 1
        assert await theirs.pending() == []
        assert [each.exec_id for each in await mine.pending()] == [made.exec_id]
