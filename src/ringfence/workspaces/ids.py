"""Host ids that belong to sessions, and to nobody else."""

from __future__ import annotations

SESSION_UIDS = range(0x7100_0000, 0x7200_0000)
"""Host uids (and gids) of sessions in root mode: above every range that systemd hands out."""
