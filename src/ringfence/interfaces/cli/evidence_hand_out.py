"""`ringfence evidence key|checkpoint|document`: what auditors are given, or is kept where this home cannot write."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ringfence.errors import InvalidRequest, Unavailable
from ringfence.interfaces.cli.evidence_desk import Desk, open_desk, parser, say
from ringfence.journal import store


def key_command(words: Sequence[str]) -> int:
    """Print the public half of the key that signs in this home."""
    options = parser("key").parse_args(list(words))
    desk = open_desk(options.home)
    key = desk.key
    if key is None:
        raise Unavailable(
            f"nothing was signed in {desk.home} yet, so there is no evidence key",
            reason="no_signing_key",
            fix="run something first: the key is made with the first record",
        )
    if options.json:
        _print_json({"success": True, "name": key.name, "vkey": key.text(), "key_id": key.key_id.hex()})
    else:
        say(key.text())
    return 0


def checkpoint_command(words: Sequence[str]) -> int:
    """Print the last signed note of every log, to be kept somewhere else."""
    taken = parser("checkpoint")
    options = taken.parse_args(list(words))
    desk = open_desk(options.home)
    notes: list[str] = []
    unsigned: list[str] = []
    with desk.database.reading() as cursor:
        for log in store.logs(cursor):
            last = store.last_checkpoint(cursor, log.number)
            if last is None:
                unsigned.append(log.log_id)
            else:
                notes.append(last.note)
    if options.json:
        _print_json({"success": True, "checkpoints": notes, "unsigned_logs": unsigned})
        return 0
    # a note holds nothing but printable lines, and must come out byte for byte
    sys.stdout.write("\n".join(notes))
    sys.stdout.flush()
    for log_id in unsigned:
        sys.stderr.write(f"ringfence: {log_id} was not signed yet\n")
    return 0


def document_command(words: Sequence[str]) -> int:
    """Print a policy, grant, manifest or request exactly as it was when a decision was made from it."""
    taken = parser("document")
    taken.add_argument("digest", metavar="DIGEST")
    options = taken.parse_args(list(words))
    text = document(options.digest, open_desk(options.home))
    if options.json:
        _print_json({"success": True, "digest": options.digest, "text": text})
    else:
        write_out(text.encode("utf-8", "surrogatepass"))
        sys.stdout.buffer.flush()
    return 0


def document(digest: str, desk: Desk) -> str:
    """Return the text that a record names by `digest`.

    Raises:
        InvalidRequest: It is no digest, or nothing of that digest is kept.
        Unavailable: What is kept has another digest.
    """
    import re

    from ringfence.authority.policy import BUILT_IN
    from ringfence.capability.canonical import digest_of

    full = digest if digest.startswith("sha256:") else f"sha256:{digest}"
    if not re.fullmatch(r"sha256:[0-9a-f]{64}", full):
        raise InvalidRequest(
            f"{digest[:80]!r} is no digest", reason="invalid_value", fix="write sha256:<64 hex digits>"
        )
    text: str | None = BUILT_IN.text.decode() if full == BUILT_IN.policy_version_hash else None
    if text is None:
        with desk.reading() as reader:
            text = reader.document(full)
    if text is None:
        raise InvalidRequest(
            f"no document {full} is kept in this home",
            reason="not_found",
            fix="'ringfence evidence show ID' names the documents of an execution",
        )
    if digest_of(text.encode("utf-8", "surrogatepass")) != full:
        raise Unavailable(f"what is kept as {full} has another digest: it was tampered with", reason="damaged")
    return text


def write_out(content: bytes) -> None:
    """Write bytes as they are, so that digests of them can be computed again; a terminal is not driven by them."""
    if sys.stdout.isatty():
        from ringfence.interfaces.cli.screen import Screen

        screen = Screen()
        content = screen.show(content) + screen.end()
    sys.stdout.buffer.write(content)


def _print_json(fields: dict[str, object]) -> None:
    from ringfence.interfaces.cli.policy import print_json

    print_json(fields)
