"""Fetches a secret's value from where its owner keeps it: this process's environment, a file, a keyring, a Vault."""

from __future__ import annotations

import json
import os
import stat
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Final
from urllib.parse import quote

from ringfence.errors import Unavailable
from ringfence.masking import MOST_BYTES
from ringfence.private_files import read_some
from ringfence.secrets.entry import Source

_SECONDS: Final = 10.0


def fetch(source: Source, environ: Mapping[str, str] = os.environ) -> bytes:
    """Return the value of a secret that is kept elsewhere.

    Raises:
        Unavailable: It is not there, or whoever keeps it does not answer; no part of it is in the message.
    """
    try:
        return _FETCHERS[source.kind](source.place, environ)
    except _Missing as missing:
        raise Unavailable(f"the secret's source {source} has no value: {missing}", reason="secret_source") from None


class _Missing(Exception):
    """Why there is no value."""


def _from_environment(name: str, environ: Mapping[str, str]) -> bytes:
    if not environ.get(name):
        raise _Missing("the variable is not set")
    return environ[name].encode("utf-8", "surrogateescape")


def _from_file(path: str, _environ: Mapping[str, str]) -> bytes:
    # no link and no fifo: the operator named a file, and what replaces it is not what was named
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise _Missing(error.strerror) from None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise _Missing("it is no file")
        value = read_some(fd, MOST_BYTES + 1)
    finally:
        os.close(fd)
    if len(value) > MOST_BYTES:
        raise _Missing(f"it is longer than {MOST_BYTES} bytes")
    return value.removesuffix(b"\n")


def _from_keyring(place: str, _environ: Mapping[str, str]) -> bytes:
    try:
        keyring = import_module("keyring")
    except ImportError:
        raise _Missing("the library keyring is not installed; fix: pip install 'ringfence[keyring]'") from None
    service, _, user = place.partition("/")
    try:
        value = keyring.get_password(service, user)
    except Exception as error:  # noqa: BLE001  whatever a desktop's keyring raises, its text may hold anything
        raise _Missing(type(error).__name__) from None
    if value is None:
        raise _Missing("the keyring has none of that name")
    return str(value).encode()


def _from_vault(place: str, environ: Mapping[str, str]) -> bytes:
    """Read one field over Vault's own HTTP interface, version 2 of its key-value store or version 1."""
    path, _, field = place.partition("#")
    address, token = environ.get("VAULT_ADDR", ""), _vault_token(environ)
    if not address.startswith(("https://", "http://127.0.0.1", "http://localhost", "http://[::1]")):
        raise _Missing("VAULT_ADDR must be https, or on this machine")
    request = urllib.request.Request(  # noqa: S310  its scheme was just looked at
        f"{address.rstrip('/')}/v1/{quote(path)}", headers={"X-Vault-Token": token}
    )
    opener = urllib.request.build_opener(_NoRedirect)
    try:
        with opener.open(request, timeout=_SECONDS) as answer:
            told = json.loads(answer.read(1 << 20))
        members = told["data"]
        members = members["data"] if isinstance(members.get("data"), dict) else members
        value = members[field]
    except urllib.error.HTTPError as error:
        error.close()
        raise _Missing(f"Vault answers {error.code}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _Missing(type(error).__name__) from None
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()


def _vault_token(environ: Mapping[str, str]) -> str:
    token = environ.get("VAULT_TOKEN", "")
    if not token:
        try:
            token = (Path(environ.get("HOME", "/")) / ".vault-token").read_text().strip()
        except OSError:
            raise _Missing("neither VAULT_TOKEN nor ~/.vault-token is there") from None
    return token


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A token goes to the address that was configured, and to no other."""

    def redirect_request(self, *_args: object, **_named: object) -> None:
        """Follow nothing."""
        return


_FETCHERS: Final[Mapping[str, Callable[[str, Mapping[str, str]], bytes]]] = {
    "env": _from_environment,
    "file": _from_file,
    "keyring": _from_keyring,
    "vault": _from_vault,
}
