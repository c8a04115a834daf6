"""The registry of secrets: what is kept, what is shown of it, and what nobody gets."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from ringfence.clock import SystemClock
from ringfence.errors import InvalidRequest, QuotaExceeded, Unavailable
from ringfence.operation.secret import SecretAsk, Way, read_ask
from ringfence.secrets import registry as registries
from ringfence.secrets.entry import Source, check_hosts, read_source
from ringfence.secrets.registry import Registry
from ringfence.secrets.sources import fetch

VALUE = b"a-value-nobody-may-see"


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path, SystemClock())


def test_a_secret_comes_back_and_is_listed_without_its_value(registry: Registry) -> None:
    kept = registry.put("acme", "TOKEN", VALUE, hosts=("api.example.org",), ways=frozenset({Way.ENV}))
    assert registry.value("acme", "TOKEN") == (kept, VALUE)
    assert registry.entries("acme") == [kept]
    assert VALUE.decode() not in repr(registry.entries("acme")) + json.dumps(kept.to_json())


def test_nothing_of_name_tenant_or_value_can_be_read_on_the_disk(registry: Registry, tmp_path: Path) -> None:
    registry.put("acme", "PAYMENT_TOKEN", VALUE)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    whole = b"".join(path.read_bytes() for path in files) + "".join(map(str, files)).encode()
    assert files
    for hidden in (VALUE, VALUE.hex().encode(), b"PAYMENT_TOKEN", b"acme"):
        assert hidden not in whole
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.rglob("*"))


def test_a_secret_of_another_tenant_is_as_unknown_as_one_that_never_was(registry: Registry) -> None:
    registry.put("acme", "TOKEN", VALUE)
    told = []
    for tenant, name in (("other", "TOKEN"), ("acme", "NEVER")):
        with pytest.raises(InvalidRequest) as caught:
            registry.value(tenant, name)
        told.append(str(caught.value).replace(name, "X"))
    assert told[0] == told[1]
    assert registry.entries("other") == []


def test_revoked_is_gone_at_once_for_everybody(registry: Registry, tmp_path: Path) -> None:
    registry.put("acme", "TOKEN", VALUE)
    assert Registry(tmp_path, SystemClock()).remove("acme", "TOKEN")
    assert not registry.remove("acme", "TOKEN")
    with pytest.raises(InvalidRequest):
        registry.value("acme", "TOKEN")


def test_a_second_value_is_a_new_version_with_another_fingerprint(registry: Registry) -> None:
    first, second = registry.put("acme", "TOKEN", VALUE), registry.put("acme", "TOKEN", VALUE + b"2")
    assert (first.version, second.version) == (1, 2)
    prints = {registry.fingerprint("acme", "TOKEN", value) for value in (VALUE, VALUE + b"2")}
    assert len(prints) == 2
    assert registry.fingerprint("acme", "TOKEN", VALUE) != registry.fingerprint("other", "TOKEN", VALUE)


def test_a_sealed_file_cannot_be_put_in_the_place_of_another(registry: Registry, tmp_path: Path) -> None:
    registry.put("acme", "CHEAP", VALUE)
    cheap = next(tmp_path.rglob("*.secret"))
    registry.put("acme", "DEAR", b"another-value-altogether")
    dear = next(path for path in tmp_path.rglob("*.secret") if path != cheap)
    dear.write_bytes(cheap.read_bytes())
    with pytest.raises(Unavailable, match="not what was written"):
        registry.value("acme", "DEAR")


def test_a_tenant_cannot_fill_the_disk_with_secrets(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registries, "MOST_SECRETS", 2)
    for name in ("A", "B", "A"):
        registry.put("acme", name, VALUE)
    with pytest.raises(QuotaExceeded):
        registry.put("acme", "C", VALUE)


@pytest.mark.parametrize("name", ["", "a/b", "../x", "a b", "1a", "a" * 65, "é", None])
def test_a_name_that_is_none_is_refused(registry: Registry, name: str) -> None:
    with pytest.raises(InvalidRequest):
        registry.put("acme", name, VALUE)


@pytest.mark.parametrize("value", [b"", b"short", b"x" * 20_000])
def test_a_value_that_could_not_be_masked_is_refused(registry: Registry, value: bytes) -> None:
    with pytest.raises(InvalidRequest):
        registry.put("acme", "TOKEN", value)


# --- sources ---


def test_a_variable_a_file_and_nothing_else_are_read_where_they_are(tmp_path: Path) -> None:
    (tmp_path / "token").write_bytes(VALUE + b"\n")
    assert fetch(Source("file", str(tmp_path / "token"))) == VALUE
    assert fetch(Source("env", "TOKEN"), {"TOKEN": VALUE.decode()}) == VALUE
    (tmp_path / "link").symlink_to(tmp_path / "token")
    for source in (
        Source("file", str(tmp_path / "link")),
        Source("file", str(tmp_path)),
        Source("file", str(tmp_path / "gone")),
        Source("env", "GONE"),
    ):
        with pytest.raises(Unavailable, match="has no value"):
            fetch(source, {})


class _Vault(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        answers = {
            "/v1/kv/data/app": {"data": {"data": {"token": VALUE.decode()}, "metadata": {"version": 3}}},
            "/v1/old/app": {"data": {"token": VALUE.decode()}},
        }
        if self.path == "/v1/away":
            self.send_response(302)
            self.send_header("Location", "http://127.0.0.1:1/")
            self.end_headers()
            return
        known = self.headers["X-Vault-Token"] == "right" and self.path in answers
        self.send_response(200 if known else 403)
        self.end_headers()
        if known:
            self.wfile.write(json.dumps(answers[self.path]).encode())

    def log_message(self, *_args: object) -> None:
        return


@pytest.fixture
def vault() -> Iterator[dict[str, str]]:
    server = HTTPServer(("127.0.0.1", 0), _Vault)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield {"VAULT_ADDR": f"http://127.0.0.1:{server.server_port}", "VAULT_TOKEN": "right"}
    server.shutdown()
    thread.join()
    server.server_close()


def test_both_versions_of_vaults_store_are_read(vault: dict[str, str]) -> None:
    assert fetch(Source("vault", "kv/data/app#token"), vault) == VALUE
    assert fetch(Source("vault", "old/app#token"), vault) == VALUE


@pytest.mark.parametrize("place", ["kv/data/app#other", "kv/data/gone#token", "away#token"])
def test_what_vault_does_not_give_is_said_without_its_token(vault: dict[str, str], place: str) -> None:
    with pytest.raises(Unavailable) as caught:
        fetch(Source("vault", place), vault)
    assert "right" not in str(caught.value)


def test_a_token_is_sent_to_no_stranger_in_the_clear() -> None:
    with pytest.raises(Unavailable, match="https"):
        fetch(Source("vault", "a#b"), {"VAULT_ADDR": "http://vault.example.org", "VAULT_TOKEN": "right"})


# --- words ---


@pytest.mark.parametrize(
    ("text", "ask"),
    [
        ("TOKEN", SecretAsk("TOKEN")),
        ("TOKEN=env", SecretAsk("TOKEN", Way.ENV)),
        ("api.key=env:API_KEY", SecretAsk("api.key", Way.ENV, "API_KEY")),
        ("TOKEN=file:token", SecretAsk("TOKEN", Way.FILE, "token")),
    ],
)
def test_a_secret_is_asked_for_in_one_word(text: str, ask: SecretAsk) -> None:
    assert read_ask(text) == ask


@pytest.mark.parametrize("text", ["", "=env", "A=", "A=broker", "A=env:1", "A=file:../x", "a.b=env", "A=env:X:Y", 7])
def test_what_is_no_such_word_is_refused(text: object) -> None:
    with pytest.raises(InvalidRequest):
        read_ask(text)


@pytest.mark.parametrize(
    "text", ["", "env", "env:1x", "file:relative", "vault:a", "vault:../a#b", "keyring:x", "http://x"]
)
def test_what_is_no_source_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        read_source(text)


@pytest.mark.parametrize("hosts", ["a.example.org", ["*"], ["a/b"], ["A.org"], ["a.org:x"], ["x"] * 40, [1]])
def test_what_is_no_list_of_hosts_is_refused(hosts: object) -> None:
    with pytest.raises(InvalidRequest):
        check_hosts(hosts)
