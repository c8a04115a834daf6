"""A run that changes more than the policy lets one run change keeps nothing of it, however it went about it.

Each program was seen to change the project under a policy that sets no such bound: `test_each_program_bites`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.security.held_project import manager, seen, written

from ringfence import Status
from ringfence.errors import CapabilityBlocked

pytestmark = [pytest.mark.needs("native"), pytest.mark.guarantee(25)]

BEGIN = """
import os
os.mkdir('d')
for n in range(8): open(f'd/{n}', 'w').write('x')
open('large', 'w').write('y' * 4096)
"""
BOUND = "max_changed_paths: 4, max_changed_bytes: 1kb"
TOO_MUCH = {
    "adds files": "[open(f'n{n}', 'w') for n in range(5)]",
    "adds directories": "[os.mkdir(f'n{n}') for n in range(5)]",
    "adds links": "[os.symlink('d', f'n{n}') for n in range(5)]",
    "adds names of one file": "open('n', 'w'); [os.link('n', f'n{n}') for n in range(4)]",
    "writes into files": "[open(f'd/{n}', 'w').write('z') for n in range(5)]",
    "changes their modes": "[os.chmod(f'd/{n}', 0o600) for n in range(5)]",
    "deletes files": "[os.unlink(f'd/{n}') for n in range(5)]",
    "deletes a directory": "shutil.rmtree('d')",
    "moves a directory": "shutil.move('d', 'e')",
    "puts a file in its place": "shutil.rmtree('d'); open('d', 'w')",
    "makes it anew": "shutil.rmtree('d'); os.mkdir('d')",
    "adds bytes": "open('n', 'w').write('z' * 2000)",
    "adds bytes that are holes": "os.truncate(os.open('n', os.O_CREAT | os.O_WRONLY), 1 << 20)",
    "adds bytes in two files": "open('n', 'w').write('z' * 600); open('m', 'w').write('z' * 600)",
    "deletes bytes": "os.unlink('large')",
    "empties a large file": "os.truncate('large', 0)",
    "appends to a large file": "open('large', 'a').write('z')",
    "exits badly": "[open(f'n{n}', 'w') for n in range(5)]; os._exit(3)",
    "in a child": "os.system('touch 1 2 3 4 5')",
}
LITTLE = {
    "four files": "[open(f'n{n}', 'w').write('z' * 256) for n in range(4)]",
    "one in a directory of its own": "os.makedirs('a/b/c'); open('a/b/c/f', 'w')",
    "a directory of three": "os.mkdir('e'); [open(f'e/{n}', 'w') for n in range(3)]",
    "reads all": "[open(f'd/{n}').read() for n in range(8)]; open('n', 'w').write(open('large').read()[:1000])",
}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return written(tmp_path, BOUND)


@pytest.mark.parametrize("program", TOO_MUCH.values(), ids=TOO_MUCH)
async def test_no_program_changes_more_than_a_run_may(home: Path, program: str) -> None:
    async with manager(home, "open") as before, manager(home) as held:
        assert (await before.execute_code(code=BEGIN)).success
        there = seen(home)
        for commit in ("always", "ask", "never"):
            result = await held.execute_code(code=f"import os, shutil\n{program}", commit=commit)
            assert result.stderr == ""
            assert (result.status, result.error_code) == (Status.DENIED, "SANDBOX.CAPABILITY_BLOCKED")
            assert (result.reason, result.pending) == ("changes_too_large", None)
            assert result.changes.excess is not None
            assert result.changes.excess[0] > 4 or result.changes.excess[1] > 1024
            assert seen(home) == there
        assert await held.pending() == []


@pytest.mark.parametrize("program", TOO_MUCH.values(), ids=TOO_MUCH)
async def test_each_program_bites(home: Path, program: str) -> None:
    async with manager(home, "open") as open_to_all:
        assert (await open_to_all.execute_code(code=BEGIN)).success
        there = seen(home)
        result = await open_to_all.execute_code(code=f"import os, shutil\n{program}")
        assert result.status in (Status.SUCCEEDED, Status.FAILED)
        assert seen(home) != there


@pytest.mark.parametrize("program", LITTLE.values(), ids=LITTLE)
async def test_what_is_within_the_bound_is_kept(home: Path, program: str) -> None:
    async with manager(home, "open") as before, manager(home) as held:
        assert (await before.execute_code(code=BEGIN)).success
        there = seen(home)
        result = await held.execute_code(code=f"import os\n{program}")
        assert (result.success, result.stderr) == (True, "")
        assert seen(home) != there


async def test_what_a_caller_brings_counts(home: Path) -> None:
    async with manager(home) as held:
        result = await held.execute_code(code="1", files={f"f{n}": b"" for n in range(5)})
        assert (result.reason, seen(home)) == ("changes_too_large", {})


async def test_a_proposal_is_held_to_the_bound_of_the_moment_it_is_committed(home: Path) -> None:
    async with manager(home, "open") as before, manager(home) as held:
        proposed = await before.execute_code(code="[open(f'n{n}', 'w') for n in range(5)]", commit="ask")
        assert proposed.pending is not None
        with pytest.raises(CapabilityBlocked) as refused:
            await held.commit(proposed.exec_id, force=True)
        assert refused.value.reason == "changes_too_large"
        assert (refused.value.details["paths"], refused.value.details["max_changed_paths"]) == (5, 4)
        assert seen(home) == {}
        await before.commit(proposed.exec_id)
        assert len(seen(home)) == 5
