"""A service whose clients get a second and four kilobytes, so that what is slow or too much is soon seen."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.http_service import Service, serving

READ_SECONDS = 1.0
BODY_BYTES = 4096
JSON = "Content-Type: application/json"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving(
        tmp_path_factory.mktemp("doors"),
        RINGFENCE_SERVER_READ_SECONDS=str(READ_SECONDS),
        RINGFENCE_SERVER_WRITE_SECONDS=str(READ_SECONDS),
        RINGFENCE_SERVER_MAX_BODY_BYTES=str(BODY_BYTES),
        RINGFENCE_SERVER_MAX_HEADER_BYTES="4096",
    ) as running:
        yield running


def head(service: Service, method: str = "POST", path: str = "/keys", *more: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {service.key}", *more, "", ""]
    return "\r\n".join(lines).encode()
