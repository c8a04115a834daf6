"""`ringfence serve` as a person starts, uses and ends it."""

from __future__ import annotations

import os
import signal
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.command_line import ringfence, told
from tests.http_service import Service, read_answer, serving
from tests.postgres_server import PostgresServer

from ringfence.service.surroundings import runtime_mode


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving(tmp_path_factory.mktemp("serve")) as running:
        yield running


# --- beginning and ending ---


def test_the_first_key_is_made_shown_once_and_works(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        assert service.key is not None
        assert service.ask("GET", "/keys").status == 200
        text = "".join(service.said)
        assert f"curl -H 'Authorization: Bearer {service.key}' http://127.0.0.1:{service.port}" in text
        assert service.end() == 0
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert service.key.split("_", 2)[2].encode() not in kept
    with serving(tmp_path) as again:
        assert again.key is None
        assert again.ask("GET", "/keys", key=service.key).status == 200
        assert [key["name"] for key in again.ask("GET", "/keys", key=service.key).json["keys"]] == ["first"]


def test_a_second_service_of_a_home_is_told_no_in_one_line(service: Service) -> None:
    done = ringfence(service.home, "serve", "--port", "0")
    assert done.returncode == 7
    assert done.stderr.count("\n") == 1
    assert "service_running" in done.stderr
    assert str(service.process.pid) in done.stderr
    assert service.ask("GET", "/sandbox/health").status == 200


def test_a_service_that_others_could_reach_needs_keys_first(tmp_path: Path) -> None:
    done = ringfence(tmp_path, "serve", "--host", "0.0.0.0", "--port", "0")
    assert done.returncode == 2
    assert "keys_needed" in done.stderr
    assert "ringfence key create --access admin" in done.stderr
    assert done.stderr.count("\n") == 1
    key = told(tmp_path, "key", "create", "--access", "admin")["key"]
    with serving(tmp_path, "--host", "0.0.0.0") as service:
        assert service.key is None
        assert service.ask("GET", "/keys", key=key).status == 200


def test_a_revoked_or_expired_key_does_not_open_the_wider_door(tmp_path: Path) -> None:
    made = told(tmp_path, "key", "create", "--access", "admin")
    told(tmp_path, "key", "revoke", made["key_id"])
    assert "keys_needed" in ringfence(tmp_path, "serve", "--host", "0.0.0.0", "--port", "0").stderr


def test_an_address_that_is_taken_is_one_clear_line_and_makes_no_key(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = ringfence(tmp_path, "serve", "--port", str(taken.getsockname()[1]))
    assert done.returncode == 7
    assert "address_taken" in done.stderr
    assert done.stderr.count("\n") == 1
    assert told(tmp_path, "key", "list")["keys"] == []


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_order_and_its_evidence_is_whole(tmp_path: Path, signum: int) -> None:
    with serving(tmp_path) as service:
        assert service.end(signum) == 0
    assert not (tmp_path / "service.sock").exists()
    verdict = told(tmp_path, "evidence", "verify")
    assert verdict["verdict"] == "proven"


def test_a_killed_service_leaves_a_socket_that_the_next_one_replaces(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        assert service.end(signal.SIGKILL) == -signal.SIGKILL
    assert stat.S_ISSOCK((tmp_path / "service.sock").lstat().st_mode)
    with serving(tmp_path) as again:
        assert again.ask_socket("GET", "/keys").status == 200


def test_nothing_that_a_killed_service_started_keeps_its_port(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        service.end(signal.SIGKILL)
    with serving(tmp_path, port=service.port) as again:
        assert again.port == service.port


def test_a_service_that_cannot_start_says_why_in_one_line_and_makes_no_key(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text("roles: 3\n")
    done = ringfence(tmp_path, "serve", "--port", "0", "--policy", str(tmp_path / "policy.yaml"))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert told(tmp_path, "key", "list")["keys"] == []
    assert not (tmp_path / "service.sock").exists()


def test_what_is_no_socket_of_ours_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "service.sock").write_text("mine")
    done = ringfence(tmp_path, "serve", "--port", "0")
    assert (done.returncode, (tmp_path / "service.sock").read_text()) == (7, "mine")
    assert "service.sock is not a socket of ours" in done.stderr


# --- the owner's socket ---


def test_the_socket_is_its_owners_alone_and_needs_no_key(service: Service) -> None:
    path = service.home / "service.sock"
    assert stat.S_IMODE(path.lstat().st_mode) == 0o600
    assert service.ask_socket("GET", "/keys").status == 200


@pytest.mark.parametrize(
    ("given", "status"),
    [
        (("Bearer {agent}",), 403),
        (("Bearer {admin}",), 200),
        (("Bearer rfk_nobodys",), 401),
        (("Bearer {agent}", "Bearer {admin}"), 401),
        (("Basic b3duZXI6",), 401),
        (("",), 401),
    ],
)
def test_whoever_says_who_he_is_on_the_socket_is_nobody_else(
    service: Service, given: tuple[str, ...], status: int
) -> None:
    """What stands in front of the socket and passes on what others send makes no owners of them."""
    keys = {"agent": service.make_key("agent"), "admin": str(service.key)}
    lines = "".join(f"Authorization: {line.format(**keys)}\r\n" for line in given)
    with socket.socket(socket.AF_UNIX) as wire:
        wire.connect(str(service.home / "service.sock"))
        wire.sendall(f"GET /keys HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{lines}\r\n".encode())
        assert read_answer(wire).status == status


def test_two_keys_of_a_websocket_make_no_owner_on_the_socket(service: Service) -> None:
    keys = ", ".join(f"ringfence.bearer.{service.make_key('agent')}" for _ in range(2))
    upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    named = f"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: {keys}\r\n"
    with socket.socket(socket.AF_UNIX) as wire:
        wire.connect(str(service.home / "service.sock"))
        wire.sendall(f"GET /sandbox/processes/pr_x/tty HTTP/1.1\r\nHost: localhost\r\n{upgrade}{named}\r\n".encode())
        assert read_answer(wire).status == 401


def test_a_home_whose_path_is_longer_than_a_sockets_address_has_one_too(tmp_path: Path) -> None:
    home = tmp_path / ("a" * 60) / ("b" * 60)
    with serving(home):
        assert stat.S_ISSOCK((home / "service.sock").lstat().st_mode)


@pytest.mark.needs("root")
def test_another_user_who_gets_at_the_socket_is_cut_off(service: Service) -> None:
    connected, child = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.chdir(service.home)
            os.chmod(".", 0o711)
            os.chmod("service.sock", 0o666)
            wire = socket.socket(socket.AF_UNIX)
            os.setuid(65534)
            wire.settimeout(20)
            wire.connect("service.sock")
            wire.sendall(b"GET /keys HTTP/1.1\r\nHost: x\r\n\r\n")
            got = wire.recv(10)
            os.write(child, b"answered" if got else b"cut off")
        except ConnectionError:
            os.write(child, b"cut off")
        except BaseException as error:
            os.write(child, repr(error).encode())
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    os.chmod(service.home, 0o700)
    os.chmod(service.home / "service.sock", 0o600)
    said = os.read(connected, 1000)
    os.close(connected)
    os.close(child)
    assert said == b"cut off"


# --- what it says about itself ---


def test_health_is_short_for_everybody_and_full_for_operators(service: Service) -> None:
    assert service.ask("GET", "/sandbox/health", key=None).json == {"status": "ok"}
    for access in ("agent", "auditor"):
        assert service.ask("GET", "/sandbox/health", key=service.make_key(access)).json == {"status": "ok"}
    full = service.ask("GET", "/sandbox/health", key=service.make_key("operator", "*")).json
    assert full["runtime_mode"] == runtime_mode()
    assert full["workspace_root_native"] == str(service.home / "workspace")
    assert full["writable"] is True
    assert {"idle", "busy"} <= full["pool"].keys()
    assert set(full["languages"]) == {"python", "bash", "javascript", "typescript"}
    assert set(full["domains"]) >= {"code", "fs", "proc", "tmp"}
    checks = {check["name"]: check["status"] for check in full["checks"]}
    assert {"docker", "workspace_writable", "evidence", "pool"} <= checks.keys()
    if full["docker_cli_path"] is None:
        assert (full["docker_version"], full["docker_context"], checks["docker"]) == (None, None, "red")


def test_one_tenants_operator_does_not_learn_how_much_the_others_do(service: Service) -> None:
    full = service.ask("GET", "/sandbox/health", key=service.make_key("operator", "acme")).json
    assert "pool" not in full
    assert "executions" not in full
    assert full["status"] == "ok"


def test_the_root_of_workspaces_comes_from_the_settings(tmp_path: Path) -> None:
    root = tmp_path / "elsewhere"
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "config.toml").write_text(
        f'[sandbox]\nworkspace_root = "{root}"\nworkspace_root_wsl = "{root}"\n[observe]\nobserve = true\n'
    )
    with serving(tmp_path / "home") as service:
        full = service.ask("GET", "/sandbox/health").json
    assert full["workspace_root_native"] == str(root / "workspace")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[server]\nprot = 1\n", "server.prot"),
        ("[sandbox]\nmax_concurrent_execs = 0\n", "sandbox.max_concurrent_execs"),
        ("[servers]\n", "servers"),
        ("[server\n", "config.toml cannot be read"),
    ],
)
def test_a_setting_nobody_knows_is_named_with_its_file(tmp_path: Path, text: str, named: str) -> None:
    (tmp_path / "config.toml").write_text(text)
    done = ringfence(tmp_path, "serve", "--port", "0")
    assert done.returncode == 2
    assert named in done.stderr
    assert "config.toml" in done.stderr
    assert done.stderr.count("\n") == 1


# --- keys ---


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[workspace.ro_mounts]\nx = '/'", "workspace.ro_mounts.x"),
        ("[workspace.ro_mounts]\nx = '/nowhere/at/all'", "workspace.ro_mounts.x"),
        ("[workspace.repositories]\nx = 'relative'", "workspace.repositories.x"),
        ("[workspace.repositories]\nx = {path = '/usr', tenant = ['acme']}", "workspace.repositories.x.tenant"),
        ("[workspace.other]\nx = '/usr'", "workspace.other"),
    ],
)
def test_a_directory_of_the_host_that_cannot_be_shown_is_named_before_anything_is_served(
    tmp_path: Path, text: str, named: str
) -> None:
    (tmp_path / "config.toml").write_text(text)
    done = ringfence(tmp_path, "serve", "--port", "0")
    assert done.returncode == 2
    assert "invalid_config" in done.stderr
    assert named in done.stderr
    assert not (tmp_path / "ringfence.db").exists()


def test_a_key_that_is_revoked_by_the_command_is_void_at_once(service: Service) -> None:
    made = told(service.home, "key", "create", "--access", "auditor")
    assert service.ask("GET", "/evidence", key=made["key"]).status == 200
    told(service.home, "key", "revoke", made["key_id"])
    assert service.ask("GET", "/evidence", key=made["key"]).reason == "no_key"


def test_keys_are_made_and_revoked_over_http_and_both_are_evidence(service: Service) -> None:
    made = service.ask("POST", "/keys", {"access": "agent", "tenant": "acme", "name": "bot", "days": 3})
    assert made.status == 201
    fields = made.json
    assert fields["key"].startswith(f"rfk_{fields['key_id']}_")
    assert service.ask("DELETE", f"/keys/{fields['key_id']}").json["state"] == "revoked"
    listed = {key["key_id"]: key for key in service.ask("GET", "/keys").json["keys"]}
    assert listed[fields["key_id"]]["state"] == "revoked"
    assert "key" not in listed[fields["key_id"]]
    assert service.ask("DELETE", "/keys/aaaaaaaaaaaa").reason == "not_found"
    log = service.ask("GET", "/evidence/export?format=log").body.decode()
    written = [line for line in log.splitlines() if fields["key_id"] in line]
    assert sum("admin.key_created" in line for line in written) == 1
    assert sum("admin.key_revoked" in line for line in written) == 1
    assert fields["key"].split("_", 2)[2] not in log


def test_both_kinds_of_keys_are_in_one_list_and_each_is_revoked_by_its_id(tmp_path: Path) -> None:
    pytest.importorskip("biscuit_auth")
    signing = told(tmp_path, "key", "create")
    calling = told(tmp_path, "key", "create", "--access", "agent", "--days", "1")
    kinds = {key["key_id"]: key["kind"] for key in told(tmp_path, "key", "list")["keys"]}
    assert kinds == {signing["key_id"]: "grant", calling["key_id"]: "api"}
    for key in (signing, calling):
        assert told(tmp_path, "key", "revoke", key["key_id"])["state"] == "revoked"
    assert "no key 'aaaaaaaaaaaa'" in ringfence(tmp_path, "key", "revoke", "aaaaaaaaaaaa").stderr


@pytest.mark.parametrize(
    "words", [("create", "--tenant", "x"), ("list", "--access", "agent"), ("create", "--access", "x")]
)
def test_words_that_mean_nothing_for_a_key_are_refused(tmp_path: Path, words: tuple[str, ...]) -> None:
    assert ringfence(tmp_path, "key", *words).returncode == 2
    assert not (tmp_path / "ringfence.db").exists()


# --- on a server that many share ---


@pytest.mark.needs("postgres")
def test_services_with_one_database_have_the_same_keys_and_revoke_for_each_other(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    url = postgres.new_database()
    with serving(tmp_path / "a", "--database", url) as one, serving(tmp_path / "b", "--database", url) as other:
        assert one.key is not None
        assert other.key is None
        made = one.ask("POST", "/keys", {"access": "auditor"}).json
        assert other.ask("GET", "/evidence", key=made["key"]).status == 200
        assert other.ask("DELETE", f"/keys/{made['key_id']}", key=one.key).status == 200
        assert one.ask("GET", "/evidence", key=made["key"]).reason == "no_key"
        full = other.ask("GET", "/sandbox/health", key=one.key).json
        assert {check["name"]: check["status"] for check in full["checks"]}["evidence"] == "green"
        assert one.end() == 0
        assert other.end() == 0
