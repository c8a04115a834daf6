"""`ringfence grant` and `ringfence key`, as a person and as a script use them."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from ringfence.clock import SystemClock
from ringfence.interfaces.cli import help_text
from ringfence.interfaces.cli.main import main

pytestmark = pytest.mark.needs("biscuit")
EIGHT = (
    "tenant", "subject_id", "tool_name", "call_id", "capabilities", "expires_at", "budget", "decision_key_fingerprint",
)  # fmt: skip
ISSUE = ("grant", "issue", "--tool", "file_read", "--call", "c1")
POLICY = """\
policies:
  default: {}
  tools:
    file_read: {risk_level: low, allowed_paths: ["/workspace/**"], budget: {calls: 5}}
    shell_exec: {risk_level: high}
  agent_roles:
    reader: {tools: [file_read]}
"""


class Command:
    """The command over a home of its own."""

    def __init__(self, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.home = home
        self._capsys = capsys
        self._monkeypatch = monkeypatch
        monkeypatch.setenv("RINGFENCE_HOME", str(home))

    def run(self, *words: str, stdin: bytes = b"") -> tuple[int, str, str]:
        self._monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = main(words)
        said = self._capsys.readouterr()
        return code, said.out, said.err

    def good(self, *words: str, stdin: bytes = b"") -> str:
        code, out, err = self.run(*words, stdin=stdin)
        assert (code, err) == (0, "")
        return out.strip()

    def json(self, *words: str, stdin: bytes = b"") -> Any:
        return json.loads(self.good(*words, "--json", stdin=stdin))


@pytest.fixture
def command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    return Command(tmp_path / "home", capsys, monkeypatch)


@pytest.fixture
def keyed(command: Command) -> Command:
    command.good("key", "create")
    return command


def test_a_token_is_issued_narrowed_handed_on_inspected_and_revoked(keyed: Command) -> None:
    token = keyed.good(*ISSUE)
    narrow = keyed.good(
        "grant", "attenuate", "-", "--allow", "fs.read:/workspace/inputs", "--budget", "calls=1",
        "--limit", "timeout_ms=5000", "--deny-path", "**/.env", "--ttl", "5m", stdin=f"{token}\n".encode(),
    )  # fmt: skip
    seen = keyed.json("grant", "inspect", narrow)
    assert seen["good"]
    assert all(field in seen for field in EIGHT)
    assert (seen["capabilities"], seen["budget"]) == (["fs.read:/workspace/inputs"], {"calls": 1})
    assert seen["limits"] == {"wall_seconds": 5}
    assert len(seen["blocks"]) == 2
    assert keyed.json("grant", "revoke", "-", stdin=token.encode())["revoked"] == "grant"
    code, out, _ = keyed.run("grant", "inspect", narrow, "--json")
    assert (code, json.loads(out)["reason"], json.loads(out)["good"]) == (3, "revoked", False)


def test_inspecting_prints_all_eight_fields_for_a_person(keyed: Command) -> None:
    shown = keyed.good("grant", "inspect", keyed.good(*ISSUE))
    assert {line.split()[0] for line in shown.splitlines()} >= {*EIGHT, "good", "grant_id", "key_id", "blocks"}


@pytest.mark.parametrize(
    ("words", "reason"),
    [(("--call", "c2"), "call_mismatch"), ((), "key_revoked")],
)
def test_inspecting_says_what_is_wrong_with_a_grant(keyed: Command, words: tuple[str, ...], reason: str) -> None:
    token = keyed.good(*ISSUE)
    if reason == "key_revoked":
        keyed.good("key", "revoke", keyed.json("key", "list")["keys"][0]["key_id"])
    code, out, err = keyed.run("grant", "inspect", token, *words)
    assert (code, err) == (3, "")
    assert f"reason                    {reason}\n" in out


def test_inspecting_says_that_a_grant_has_expired(keyed: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    token = keyed.good(*ISSUE, "--ttl", "1s")
    later = SystemClock().now_ms() + 1000
    monkeypatch.setattr(SystemClock, "now_ms", lambda _: later)
    code, out, _ = keyed.run("grant", "inspect", token, "--json")
    assert (code, json.loads(out)["reason"]) == (3, "expired")


@pytest.mark.parametrize("how", ["--id", "--block", "--subject"])
def test_a_grant_is_revoked_by_any_of_its_names(keyed: Command, how: str) -> None:
    token = keyed.good(*ISSUE, "--subject", "bot", "--tenant", "acme")
    seen = keyed.json("grant", "inspect", token)
    name = {"--id": seen["grant_id"], "--block": seen["blocks"][0], "--subject": "bot"}[how]
    keyed.good("grant", "revoke", how, name, "--tenant", "acme")
    assert keyed.run("grant", "inspect", token)[0] == 3


def test_a_policy_is_granted_from_and_never_beyond(keyed: Command, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    issue = (*ISSUE, "--policy", str(policy), "--role", "reader")
    assert keyed.json("grant", "inspect", keyed.good(*issue))["budget"] == {"calls": 5}
    for beyond in (
        ("--budget", "calls=6"),
        ("--allow", "net.http:GET:a.com"),
        ("--allow", "fs.read:/workspace", "--allow", "fs.host:/etc"),
    ):
        code, out, err = keyed.run(*issue, *beyond)
        assert (code, out) == (2, "")
        assert "limit_exceeds_ceiling" in err
    code, out, err = keyed.run(
        "grant", "issue", "--tool", "shell_exec", "--call", "c", "--policy", str(policy), "--role", "reader"
    )
    assert (code, out) == (3, "")
    assert "POLICY.DENY_TOOL tool_denied" in err
    assert keyed.run(*ISSUE, "--policy", str(tmp_path / "none.yaml"))[0] == 2


def test_keys_are_made_listed_rotated_and_revoked(command: Command) -> None:
    assert command.json("key", "list") == {"keys": []}
    assert command.run(*ISSUE)[0] == 7
    old = command.json("key", "create")
    token = command.good(*ISSUE)
    new = command.json("key", "create", "--days", "7")
    assert new["expires_at"] - new["not_before"] == 7 * 24 * 3600 * 1000
    states = {key["key_id"]: key["state"] for key in command.json("key", "list")["keys"]}
    assert sorted(states.values()) == ["signs", "verifies"]
    assert command.json("grant", "inspect", token)["good"]
    assert command.json("key", "revoke", old["key_id"])["state"] == "revoked"
    assert command.run("grant", "inspect", token)[0] == 3
    assert {key["state"] for key in command.json("key", "list")["keys"]} == {"signs", "revoked"}
    command.good("key", "revoke", new["key_id"])
    assert command.run(*ISSUE)[0] == 7
    assert "revoked" in command.good("key", "list")


def test_no_command_prints_a_private_key(keyed: Command) -> None:
    (secret,) = [path.read_text() for path in (keyed.home / "keys").glob("*.key")]
    said = [keyed.good("key", "list"), keyed.good("key", "list", "--json"), keyed.good(*ISSUE, "--json")]
    (keyed.home / "keys").chmod(0o755)
    said += keyed.run("key", "list")[1:]
    assert "key_store_unsafe" in said[-1]
    assert not any(secret in text for text in said)


@pytest.mark.parametrize(
    "words",
    [
        ("grant",),
        ("grant", "mint"),
        ("grant", "issue", "--tool", "x"),
        ("grant", "issue", "--call", "x"),
        (*ISSUE, "--ttl", "forever"),
        (*ISSUE, "--ttl", "25h"),
        (*ISSUE, "--budget", "calls"),
        (*ISSUE, "--budget", "calls=many"),
        (*ISSUE, "--budget", "wishes=3"),
        (*ISSUE, "--limit", "timeout_ms=x"),
        (*ISSUE, "--limit", "patience=3"),
        (*ISSUE, "--allow", "everything"),
        ("grant", "attenuate"),
        ("grant", "attenuate", "x"),
        ("grant", "inspect"),
        ("grant", "revoke"),
        ("grant", "revoke", "x", "--id", "y"),
        ("key",),
        ("key", "steal"),
        ("key", "create", "--days", "0"),
        ("key", "create", "k"),
        ("key", "list", "--days", "3"),
        ("key", "revoke"),
        ("key", "revoke", "00000000"),
    ],
)
def test_a_wrong_command_line_is_refused_in_one_line(keyed: Command, words: tuple[str, ...]) -> None:
    code, out, err = keyed.run(*words)
    assert (code, out) == (2, "")
    assert err.startswith("ringfence: SCHEMA.VALIDATION_FAILED ")
    assert err.count("\n") == 1


@pytest.mark.parametrize("content", [b"", b"rubbish", b"\xff\xfe\x00", b"A" * 200_000])
@pytest.mark.parametrize("action", [("inspect",), ("attenuate", "--budget", "calls=1"), ("revoke",)])
def test_rubbish_in_place_of_a_token_is_a_denial_in_one_line(
    keyed: Command, content: bytes, action: tuple[str, ...]
) -> None:
    code, out, err = keyed.run("grant", action[0], "-", *action[1:], stdin=content)
    assert (code, out) == (3, "")
    assert err.startswith("ringfence: SANDBOX.PERMISSION_DENY bad_token")
    assert err.count("\n") == 1


def test_a_name_in_a_token_does_not_drive_the_terminal(keyed: Command) -> None:
    token = keyed.good(*ISSUE, "--subject", "\x1b[2J\u202eevil")
    shown = keyed.good("grant", "inspect", token)
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "\\x1b[2J\\u202eevil" in shown


@pytest.mark.parametrize("name", ["grant", "key"])
def test_the_commands_have_a_manual(command: Command, name: str) -> None:
    assert command.good(name, "--help").startswith(f"ringfence {name} ")
    assert f"ringfence {name} " in help_text.OVERVIEW
    assert name not in help_text.PENDING_COMMANDS
