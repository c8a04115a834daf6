"""The secrets of a home: sealed on the disk, listed without their values, gone at once when they are revoked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ringfence.authority.caller import check_tenant
from ringfence.content import sealed_files
from ringfence.errors import InvalidRequest, QuotaExceeded, Unavailable
from ringfence.masking import LEAST_BYTES, MOST_BYTES
from ringfence.operation.secret import Way, check_secret_name
from ringfence.ports import Clock
from ringfence.private_files import (
    inner_directory,
    list_names,
    private_directory,
    private_directory_if_any,
    remove_file,
)
from ringfence.secrets import sources
from ringfence.secrets.entry import KEPT, Entry, Source, check_hosts, read_entry

MOST_SECRETS: Final = 256
"""Of one tenant."""
_MOST_FILE_BYTES: Final = 2 * MOST_BYTES + 64 * 1024
_SUFFIX: Final = ".secret"


class Registry:
    """What is lent by name; the names of tenants and secrets are not readable from the names of the files."""

    def __init__(self, home: Path, clock: Clock) -> None:
        """Nothing is opened yet."""
        self._path = home / "secrets"
        self._clock = clock

    def put(
        self,
        tenant: str,
        name: str,
        value: bytes | None = None,
        *,
        source: Source = KEPT,
        hosts: tuple[str, ...] = (),
        ways: frozenset[Way] = frozenset({Way.BROKER}),
    ) -> Entry:
        """Keep a secret, or where it comes from; one of the same name is replaced.

        Raises:
            InvalidRequest: The name, the value or a host cannot be one.
            QuotaExceeded: The tenant has as many as it may, or the disk is full.
        """
        check_tenant(tenant)
        check_secret_name(name)
        if (value is None) is (source == KEPT):
            raise InvalidRequest(f"secret {name}: it has a value or a source, and not both", reason="invalid_secret")
        if value is not None and not LEAST_BYTES <= len(value) <= MOST_BYTES:
            raise InvalidRequest(
                f"secret {name}: its value must have {LEAST_BYTES} to {MOST_BYTES} bytes", reason="invalid_secret"
            )
        if not ways:
            raise InvalidRequest(f"secret {name}: it needs a way to be used", reason="invalid_secret")
        with self._directory(tenant, make=True) as (master, directory):
            before = _read(master, directory, tenant, _file(master, tenant, name))
            if before is None and len(_files(directory)) >= MOST_SECRETS:
                raise QuotaExceeded(f"there are {MOST_SECRETS} secrets already", reason="secrets", limit=MOST_SECRETS)
            version = 1 if before is None else before[0].version + 1
            entry = Entry(name, source, check_hosts(hosts), ways, self._clock.now_ms(), version)
            plain = json.dumps({"entry": entry.to_json(), "value": None if value is None else value.hex()})
            file = _file(master, tenant, name)
            sealed_files.write(directory, file, sealed_files.seal(master, plain.encode(), file.encode()))
        return entry

    def entries(self, tenant: str) -> list[Entry]:
        """Return the tenant's secrets by name, without their values."""
        with self._directory(tenant, make=False) as (master, directory):
            if directory < 0:
                return []
            found = [_read(master, directory, tenant, file) for file in _files(directory)]
        return sorted((each[0] for each in found if each is not None), key=lambda entry: entry.name)

    def find(self, tenant: str, name: str) -> Entry | None:
        """Return one secret, without its value."""
        found = self._found(tenant, name)
        return None if found is None else found[0]

    def value(self, tenant: str, name: str) -> tuple[Entry, bytes]:
        """Return a secret and its value, from wherever it is kept, as it is at this moment.

        Raises:
            InvalidRequest: There is no such secret; one of another tenant is none either.
            Unavailable: Its source has no value now, or what was kept is damaged.
        """
        found = self._found(tenant, name)
        if found is None:
            raise InvalidRequest(f"there is no secret {name}", reason="unknown_secret", fix="ringfence secret list")
        entry, kept = found
        value = sources.fetch(entry.source) if kept is None else kept
        if not LEAST_BYTES <= len(value) <= MOST_BYTES:
            raise Unavailable(
                f"the secret {name} has a value that is too short or too long to be masked", reason="secret_source"
            )
        return entry, value

    def fingerprint(self, tenant: str, name: str, value: bytes) -> str:
        """Return what tells two values of a secret apart in evidence, and to nobody without this home anything more."""
        with self._directory(tenant, make=True) as (master, _):
            return sealed_files.derive(master, b"fingerprint", _bound(tenant, name) + b"\0" + value).hex()[:16]

    def remove(self, tenant: str, name: str) -> bool:
        """Revoke a secret: nobody is lent it from now on; False where there was none."""
        check_secret_name(name)
        with self._directory(tenant, make=False) as (master, directory):
            return directory >= 0 and remove_file(directory, _file(master, tenant, name))

    def _found(self, tenant: str, name: str) -> tuple[Entry, bytes | None] | None:
        check_secret_name(name)
        with self._directory(tenant, make=False) as (master, directory):
            return None if directory < 0 else _read(master, directory, tenant, _file(master, tenant, name))

    @contextmanager
    def _directory(self, tenant: str, *, make: bool) -> Iterator[tuple[bytes, int]]:
        """Open the tenant's directory, with the master key; -1 where there is none, and it was not to be made."""
        check_tenant(tenant)
        opening = private_directory(self._path, make=True) if make else private_directory_if_any(self._path)
        with opening as home:
            master = None if home is None else sealed_files.make_key(home) if make else sealed_files.read_key(home)
            if home is None or master is None:
                yield b"", -1
                return
            name = sealed_files.derive(master, b"tenant", tenant.encode()).hex()[:32]
            if not make and name not in list_names(home):
                yield master, -1
                return
            with inner_directory(home, name) as directory:
                yield master, directory


def _file(master: bytes, tenant: str, name: str) -> str:
    return sealed_files.derive(master, b"secret", _bound(tenant, name)).hex()[:32] + _SUFFIX


def _files(directory: int) -> list[str]:
    return [name for name in list_names(directory) if name.endswith(_SUFFIX)]


def _read(master: bytes, directory: int, tenant: str, file: str) -> tuple[Entry, bytes | None] | None:
    """Read one file; sealed under its name, which only tenant and secret give, it cannot stand in another's place."""
    sealed = sealed_files.read(directory, file, _MOST_FILE_BYTES)
    if sealed is None:
        return None
    plain = sealed_files.unseal(master, sealed, file.encode())
    if plain is None:
        raise _damaged()
    entry, value = _parsed(plain)
    if _file(master, tenant, entry.name) != file:
        raise _damaged()
    return entry, value


def _bound(tenant: str, name: str) -> bytes:
    return f"secret\0{tenant}\0{name}".encode()


def _parsed(plain: bytes) -> tuple[Entry, bytes | None]:
    try:
        form = json.loads(plain)
        entry = read_entry(json.dumps(form["entry"]).encode())
        return entry, None if form["value"] is None else bytes.fromhex(form["value"])
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged() from error


def _damaged() -> Unavailable:
    return Unavailable("a secret that was kept is not what was written", reason="damaged", fix="set it again")
