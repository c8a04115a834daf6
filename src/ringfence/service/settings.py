"""How a service is to run: `[server]` and `[sandbox]` of a configuration file, with the environment above it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """What a service is made from; parsed once, at the edge."""

    host: str = "127.0.0.1"
    port: int = 8321
    max_concurrent_execs: int = 4
    queue_size: int = 256
    drain_seconds: float = 30.0
    max_body_bytes: int = 32 * 1024 * 1024
    max_header_bytes: int = 32 * 1024
    read_seconds: float = 20.0
    keep_alive_seconds: float = 15.0
    max_connections: int = 2048
    cors_origins: tuple[str, ...] = ()
