"""A secret planted in a run in each way: it is where it was granted, and nowhere else afterwards."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.command_line import ringfence as ringfence_command

import ringfence
from ringfence.clock import SystemClock
from ringfence.errors import RingfenceError
from ringfence.operation.secret import Way
from ringfence.outcome import ExecutionResult
from ringfence.secrets.registry import Registry

pytestmark = pytest.mark.needs("native")

VALUE = "s3cr3t-Value+/=42~not-to-be-seen"
POLICY = "policies: {default: {network_access: false}}\nsecrets: {TOKEN: {tools: [code_run, shell_exec]}}\n"
Run = Callable[..., ExecutionResult]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    registry = Registry(home, SystemClock())
    registry.put("local", "TOKEN", VALUE.encode(), ways=frozenset({Way.ENV, Way.FILE}))
    registry.put("local", "PROXIED", VALUE.encode())
    registry.put("other", "THEIRS", VALUE.encode(), ways=frozenset(Way))
    return home


@pytest.fixture
def run(home: Path, tmp_path: Path) -> Run:
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)

    def run(code: str, **options: Any) -> ExecutionResult:
        return ringfence.run(code, home=home, policy_file=policy, timeout=20, **options)

    return run


def everything_in(directory: Path) -> bytes:
    found = [path.read_bytes() + str(path).encode() for path in directory.rglob("*") if path.is_file()]
    return b"\0".join(found)


@pytest.mark.guarantee(20)
def test_a_run_that_asks_for_nothing_has_nothing(run: Run) -> None:
    said = run("import os; print(sorted(os.environ.values()), os.listdir('/workspace/inputs'))").stdout
    assert VALUE not in said


@pytest.mark.guarantee(20)
def test_a_secret_is_where_it_was_asked_for_and_gone_in_the_next_run(run: Run) -> None:
    program = "import os, pathlib; p = pathlib.Path('/workspace/inputs/secrets/key'); "
    program += f"print(os.environ.get('API') == {VALUE!r}, p.exists() and p.read_text() == {VALUE!r})"
    assert run(program, secrets=["TOKEN=env:API"]).stdout == "True False\n"
    assert run(program, secrets=["TOKEN=file:key"]).stdout == "False True\n"
    assert run(program).stdout == "False False\n"


DISGUISES = """
import base64, binascii, json, os, sys, urllib.parse
v = os.environ['TOKEN']
print(v)
print(base64.b64encode(v.encode()).decode(), base64.b64encode(b'user:' + v.encode()).decode())
print(base64.urlsafe_b64encode(b'x' + v.encode()).decode())
print(v.encode().hex(), v.encode().hex().upper(), urllib.parse.quote(v, safe=''))
print(json.dumps({'v': v}), repr(v), v[::-1])
sys.stderr.write(v)
for c in v:
    os.write(1, c.encode())
raise SystemExit(v)
"""


@pytest.mark.guarantee(20)
def test_whatever_a_program_prints_of_it_is_masked_for_the_result_and_for_who_listens(run: Run, home: Path) -> None:
    heard: list[bytes] = []
    result = run(DISGUISES, secrets=["TOKEN=env"], on_output=lambda _, data: heard.append(data))
    whole = result.stdout_raw + result.stderr_raw + b"".join(heard) + repr(result).encode()
    for form in (VALUE.encode(), base64.b64encode(VALUE.encode()), VALUE.encode().hex().encode(), VALUE[::-1].encode()):
        assert form not in whole
    assert whole.count(b"[secret:TOKEN]") >= 20
    assert VALUE.encode() not in everything_in(home)


@pytest.mark.guarantee(20)
def test_no_file_that_is_kept_holds_it_by_content_name_or_link(run: Run, home: Path) -> None:
    program = """
import os
v = os.environ['TOKEN']
os.makedirs('/workspace/artifacts/deep')
open('/workspace/artifacts/deep/a.txt', 'w').write('x' * 1048570 + v + 'y' * 100)
open('/workspace/artifacts/plain.bin', 'wb').write(bytes(range(256)))
open('/workspace/work/kept.txt', 'w').write('token=' + v.encode().hex())
os.mkdir('/workspace/artifacts/' + v.encode().hex())
open('/workspace/artifacts/' + v.encode().hex() + '/inside', 'w').close()
os.symlink(v, '/workspace/work/link')
os.chmod('/workspace/artifacts/deep/a.txt', 0)
"""
    result = run(program, secrets=["TOKEN=env"], session_id="s1")
    assert result.success, result.stderr
    assert sorted(artifact.path for artifact in result.artifacts) == ["deep/a.txt", "plain.bin"]
    contents = {artifact.path: artifact.read() for artifact in result.artifacts}
    assert contents["plain.bin"] == bytes(range(256))
    assert b"[secret:TOKEN]" in contents["deep/a.txt"]
    assert result.files_written
    whole = everything_in(home) + repr(result).encode()
    for form in (VALUE.encode(), VALUE.encode().hex().encode()):
        assert form not in whole
    assert any("masked" in note for note in result.notes)
    assert b"[secret:TOKEN]" in run("print(open('/workspace/work/kept.txt').read())", session_id="s1").stdout_raw


@pytest.mark.guarantee(20)
@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ("PROXIED=env", "secret"),  # no policy lends it
        ("THEIRS=env", "secret"),
        ("NEVER=env", "secret"),
        ("TOKEN", "secret_way"),
    ],
)
def test_what_was_not_granted_is_not_lent(run: Run, asked: str, reason: str) -> None:
    with pytest.raises(RingfenceError) as caught:
        run("print(1)", secrets=[asked])
    assert caught.value.reason == reason
    assert VALUE not in str(caught.value) + repr(caught.value.details)


@pytest.mark.guarantee(20)
def test_a_tool_that_the_policy_does_not_name_gets_none(home: Path, tmp_path: Path) -> None:
    policy = tmp_path / "narrow.yaml"
    policy.write_text("secrets: {TOKEN: {tools: [code_run]}}\n")
    with pytest.raises(RingfenceError) as caught:
        ringfence.run("echo $TOKEN", language="bash", home=home, policy_file=policy, secrets=["TOKEN=env"])
    assert caught.value.reason == "secret"


@pytest.mark.guarantee(20)
def test_a_revoked_secret_is_lent_to_nobody_from_that_moment(run: Run, home: Path) -> None:
    assert run("print(1)", secrets=["TOKEN=env"]).success
    Registry(home, SystemClock()).remove("local", "TOKEN")
    with pytest.raises(RingfenceError) as caught:
        run("print(1)", secrets=["TOKEN=env"])
    assert caught.value.reason == "unknown_secret"


@pytest.mark.guarantee(20)
def test_for_a_whole_conversation_it_is_lent_only_where_policy_and_a_person_say_so(home: Path, tmp_path: Path) -> None:
    policy = tmp_path / "lasting.yaml"
    policy.write_text("secrets: {TOKEN: {scope: conversation}, PROXIED: {}}\n")
    ask = ("run", "--policy", str(policy), "-c", "import os; print(os.environ['TOKEN'])")
    asked = ringfence_command(home, *ask, "--secret", "TOKEN=env@conversation")
    assert (asked.returncode, asked.stdout) == (4, "")
    assert "consent_required" in asked.stderr
    assert "the secret TOKEN for the whole conversation: a person has to agree to this very call" in asked.stderr
    denied = ringfence_command(home, *ask, "--secret", "PROXIED=env@conversation")
    assert denied.returncode == 3
    assert "the policy lends the secret PROXIED for one run: see scope under secrets" in denied.stderr
    wrong = ringfence_command(home, *ask, "--secret", "TOKEN=env@week")
    assert (wrong.returncode, "invalid_secret" in wrong.stderr) == (2, True)
    told = ringfence_command(home, "evidence", "list").stdout
    assert told.count("denied") == 2
    assert VALUE.encode() not in everything_in(home)


@pytest.mark.guarantee(20)
def test_evidence_names_the_secret_its_version_and_its_way(run: Run, home: Path) -> None:
    result = run("print(1)", secrets=["TOKEN=env:API"])
    listed = subprocess.run(
        [sys.executable, "-m", "ringfence", "evidence", "export", "--format", "cloudevents"],
        capture_output=True,
        text=True,
        check=False,
        env={
            "RINGFENCE_HOME": str(home),
            "PYTHONPATH": str(Path(ringfence.__file__).parents[1]),
            "PATH": "/usr/bin:/bin",
        },
    )
    assert listed.returncode == 0, listed.stderr
    leases = [json.loads(line) for line in listed.stdout.splitlines() if '"secret.leased"' in line]
    told = json.dumps(leases)
    assert (result.exec_id in told, '"TOKEN"' in told, VALUE in listed.stdout) == (True, True, False)


@pytest.mark.guarantee(20)
def test_a_program_cannot_learn_by_its_masked_output_what_it_did_not_have(run: Run) -> None:
    guess = run(f"print({VALUE[:8]!r} + {VALUE[8:]!r})")
    assert guess.stdout.strip() == VALUE  # nothing is masked where nothing was lent: no oracle


@pytest.mark.guarantee(20)
def test_the_command_takes_a_value_from_stdin_alone_and_shows_it_never(tmp_path: Path) -> None:
    env = {
        "RINGFENCE_HOME": str(tmp_path),
        "PYTHONPATH": str(Path(ringfence.__file__).parents[1]),
        "PATH": "/usr/bin:/bin",
    }

    def ask(*words: str, given: str = "") -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "ringfence", "secret", *words]
        return subprocess.run(command, input=given, capture_output=True, text=True, check=False, env=env)

    made = ask("set", "TOKEN", "--way", "env", "--host", "api.example.org", given=VALUE + "\n")
    assert made.returncode == 0, made.stderr
    listed = ask("list", "--json")
    assert json.loads(listed.stdout)["secrets"][0]["name"] == "TOKEN"
    assert VALUE not in made.stdout + made.stderr + listed.stdout
    assert VALUE.encode() not in everything_in(tmp_path)
    assert ask("revoke", "TOKEN").returncode == 0
    gone = ask("revoke", "TOKEN")
    assert (gone.returncode, "there is no secret TOKEN" in gone.stderr) == (2, True)


HIDING = """
import os
v = os.environ['TOKEN']
for top in ('/workspace/work', '/workspace/artifacts'):
    os.makedirs(f'{top}/{v}')  # it has a slash, and so makes two names
    os.makedirs(f'{top}/closed/inner')
    open(f'{top}/closed/inner/file', 'w').write(v)
    os.symlink(v, f'{top}/closed/link')
    open(f'{top}/plain', 'w').write('plain')
    for path in (f'{top}/closed/inner', f'{top}/closed', os.path.dirname(f'{top}/{v}')):
        os.chmod(path, 0o500)
os.chmod('/workspace/work/closed', 0)
"""


@pytest.mark.guarantee(20)
def test_a_secret_is_found_in_paths_and_behind_closed_directories(run: Run, home: Path) -> None:
    result = run(HIDING, secrets=["TOKEN=env"], session_id="s")
    assert result.success, result.error
    assert "work/plain" in {f"work/{path}" for path in result.files_written}
    assert VALUE not in repr(result)
    assert VALUE.encode() not in everything_in(home)
    names = [str(path.relative_to(home)) for path in home.rglob("*")]
    assert not any(VALUE in name for name in names)
    links = [str(path.readlink()) for path in home.rglob("*") if path.is_symlink()]
    assert VALUE not in links
