"""The real command over the policy of document 001: what an operator types before and after editing a policy."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ringfence import SandboxManager, ToolDenied

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "tests/unit/authority/sandbox_policy.yaml"
EXAMPLE = ROOT / "examples/sandbox_policy.yaml"


def policy(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ringfence", "policy", *map(str, words)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_an_operator_checks_edits_compares_and_understands_a_policy(tmp_path: Path) -> None:
    checked = policy("lint", DOCUMENT)
    assert (checked.returncode, checked.stderr) == (0, "")

    edited = tmp_path / "sandbox_policy.yaml"
    edited.write_text(DOCUMENT.read_text().replace("max_execution_time: 120s", "max_execution_time: 5 minutes"))
    broken = policy("lint", edited)
    assert broken.returncode == 2
    assert broken.stdout.startswith(f"{edited}:")
    assert "'5 minutes' is not a time (fix: write it as 500ms, 30s, 2m or 1h)" in broken.stdout

    edited.write_text(DOCUMENT.read_text().replace("max_execution_time: 120s", "max_execution_time: 5m"))
    compared = policy("diff", DOCUMENT, edited, "--fail-on-widening")
    assert (compared.returncode, compared.stdout.splitlines()[0]) == (1, "widened: max_execution_time: 120 s → 300 s")

    explained = policy("explain", "--policy", edited, "--tool", "code_run", "--role", "data_analyst", "--json")
    assert (explained.returncode, explained.stderr) == (0, "")
    rows = {row["setting"]: row for row in json.loads(explained.stdout)["rows"]}
    assert (rows["wall_seconds"]["value"], rows["wall_seconds"]["origin"]) == (300.0, "tool code_run")
    assert (rows["memory_bytes"]["value"], rows["memory_bytes"]["origin"]) == (2 * 2**30, "role data_analyst")


def test_the_shipped_example_is_good_as_it_stands() -> None:
    assert policy("lint", EXAMPLE).returncode == 0
    shown = policy("explain", "--policy", EXAMPLE, "--tool", "http_request", "--role", "web_scraper")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "GET,HEAD:api.example.com" in shown.stdout


def test_the_shipped_example_passes_its_own_tests() -> None:
    tested = policy("test", EXAMPLE)
    assert (tested.returncode, tested.stderr) == (0, "")
    assert tested.stdout.endswith(f"{EXAMPLE}: 2 tests, 0 failed\n")


def test_an_operation_is_judged_before_anybody_asks_for_it() -> None:
    judged = [
        policy("check", "--policy", DOCUMENT, "--op", json.dumps({"op": "fs_read", "path": path}))
        for path in ("work/notes.txt", "/workspace/.env")
    ]
    assert [each.returncode for each in judged] == [0, 3]
    assert "SANDBOX.CAPABILITY_BLOCKED blacklist" in judged[1].stdout


@pytest.mark.needs("native")
@pytest.mark.parametrize(
    ("role", "code", "shell"),
    [("code_assistant", True, True), ("data_analyst", True, False), ("web_scraper", False, False)],
)
async def test_a_role_of_the_document_runs_its_own_tools_and_no_other(
    tmp_path: Path, role: str, code: bool, shell: bool
) -> None:
    async with SandboxManager(policy_file=DOCUMENT, role=role, home=tmp_path) as manager:
        for allowed, call in ((code, ("python", "print(1)")), (shell, ("bash", "ls"))):
            run = manager.execute_shell(call[1]) if call[0] == "bash" else manager.execute_code(*call)
            if allowed:
                assert (await run).success
            else:
                with pytest.raises(ToolDenied):
                    await run


@pytest.mark.needs("native")
async def test_a_run_has_the_memory_of_its_policy_and_no_more(tmp_path: Path) -> None:
    small = tmp_path / "policy.yaml"
    small.write_text(DOCUMENT.read_text().replace("max_memory: 1GB", "max_memory: 128MB"))
    async with SandboxManager(policy_file=small, home=tmp_path) as manager:
        assert (await manager.execute_code("python", "print(len(bytearray(32 << 20)))")).success
        hog = await manager.execute_code("python", "held = [bytearray(16 << 20) for _ in range(32)]; print('RAN')")
    assert "RAN" not in hog.stdout
    assert not hog.success
