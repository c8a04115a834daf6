"""Kinds of box that the source documents name and this version does not have: said, so that nobody counts on them."""

from __future__ import annotations

from ringfence.doctor.finding import Finding, Health

ABSENT = (
    Finding(
        "box.wasi",
        "wasi boxes",
        Health.ABSENT,
        "not available: Python with its packages, Node and bash are no WASI modules, and nothing here runs those",
        "a call that names it is refused; the native box is the lightest there is",
    ),
    Finding(
        "box.microvm",
        "microvm boxes",
        Health.ABSENT,
        "not available: nothing here starts a virtual machine (Firecracker or another)",
        "a policy that asks for class microvm is refused, and nothing weaker stands in for it",
        "ask for gvisor, the strongest class there is here",
    ),
)
"""What the doctor lists beside the boxes it tries (S0-5, S1-15)."""
