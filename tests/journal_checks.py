"""What every test that leaves a journal behind asks of it: that all of it verifies, against the key of its home."""

from __future__ import annotations

from pathlib import Path

from ringfence.crypto import ed25519
from ringfence.database.address import open_database
from ringfence.evidence.verify import Trust
from ringfence.journal.reader import Verified, reading
from ringfence.journal.signer import key_in_home


def verified(home: Path, url: str | None = None) -> Verified:
    """Verify the journal of `home`, in its own file or at `url`, and return what was found."""
    key = key_in_home(home)
    assert key is not None
    database = open_database(home, url)
    try:
        with reading(database) as reader:
            found = reader.verify(Trust(ed25519.verify, keys=(key,)))
    finally:
        database.close()
    assert found.is_whole, found
    return found
