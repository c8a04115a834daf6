"""Whose call it is: the tenant it belongs to, and who in it calls."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Caller:
    """One agent or person of one tenant; nothing of a tenant is seen under another."""

    tenant: str = "local"
    subject_id: str = "local"
