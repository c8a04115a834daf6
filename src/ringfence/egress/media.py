"""What kind of content came: as the server calls it, as its first bytes look, and whether the two agree."""

from __future__ import annotations

import re
from collections.abc import Collection
from fnmatch import fnmatchcase
from typing import Final

from ringfence.errors import CapabilityBlocked

USUAL: Final = frozenset(
    {
        "text/*", "application/json", "application/*+json", "application/xml", "application/*+xml", "application/yaml",
        "application/x-ndjson", "application/javascript", "application/x-yaml", "application/toml", "application/pdf",
        "image/png", "image/jpeg", "image/gif", "image/webp", "image/svg+xml",
    }
)  # fmt: skip
"""What is taken where no policy says: documents and pictures; nothing that some program would run or unpack."""
UNKNOWN: Final = "application/octet-stream"

_TYPE = re.compile(r"\s*([a-z0-9!#$&^_.+-]+/[a-z0-9!#$&^_.+-]+)\s*(?:;.*)?\Z", re.DOTALL)
_CHARSET = re.compile(r";\s*charset\s*=\s*\"?([a-z0-9_.:-]+)", re.IGNORECASE)
_FILENAME = re.compile(r"(?:^|;)\s*filename\s*=\s*(?:\"([^\"\\]*)\"|([^;\s\"]+))", re.IGNORECASE)
_LOOKED_AT: Final = 1024
_CONTROLS: Final = bytes(byte for byte in range(32) if chr(byte) not in "\t\n\f\r\x1b")
_MAGIC: Final = (
    (b"%PDF-", "application/pdf"), (b"\x89PNG\r\n\x1a\n", "image/png"), (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"), (b"GIF89a", "image/gif"), (b"PK\x03\x04", "application/zip"),
    (b"PK\x05\x06", "application/zip"), (b"\x1f\x8b", "application/gzip"), (b"BZh", "application/x-bzip2"),
    (b"\xfd7zXZ\0", "application/x-xz"), (b"\x28\xb5\x2f\xfd", "application/zstd"),
    (b"7z\xbc\xaf\x27\x1c", "application/x-7z-compressed"), (b"Rar!\x1a\x07", "application/vnd.rar"),
    (b"\x7fELF", "application/x-elf"), (b"MZ", "application/x-msdownload"),
    (b"\xca\xfe\xba\xbe", "application/x-mach-binary"), (b"\xcf\xfa\xed\xfe", "application/x-mach-binary"),
    (b"\0asm", "application/wasm"), (b"SQLite format 3\0", "application/vnd.sqlite3"),
    (b"!<arch>\n", "application/x-archive"),
)  # fmt: skip
_MARKED: Final = frozenset(kind for _, kind in _MAGIC) | {"image/webp"}
_ARCHIVED: Final = (
    "application/vnd.openxmlformats",
    "application/vnd.oasis",
    "application/epub",
    "application/java-arch",
)


def media_type(header: str) -> str:
    """Return the media type that a Content-Type header names, in lower case and without its parameters."""
    found = _TYPE.match(header.lower())
    return UNKNOWN if found is None else found[1]


def charset(header: str | None) -> str | None:
    """Return the character set that a Content-Type header names."""
    found = _CHARSET.search(header or "")
    return None if found is None else found[1].lower()


def looks_like(content: bytes) -> str:
    """Return what the first bytes are: a type that has a mark of its own, `text/plain`, or unknown."""
    start = content[:_LOOKED_AT]
    if start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        return "image/webp"
    for mark, kind in _MAGIC:
        if start.startswith(mark):
            return kind
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "text/plain"
    return "text/plain" if len(start.translate(None, _CONTROLS)) == len(start) else UNKNOWN


def require_listed(header: str, allowed: Collection[str] | None) -> str:
    """Return the media type that a header names, if it is one that may come in.

    Raises:
        CapabilityBlocked: It is not.
    """
    kind = media_type(header)
    if not any(fnmatchcase(kind, pattern) for pattern in (USUAL if allowed is None else allowed)):
        raise CapabilityBlocked(
            f"content of type {kind[:100]} is not taken", reason="mime", fix="list it in the policy's mime_allow"
        )
    return kind


def agreed_type(header: str | None, content: bytes, allowed: Collection[str] | None) -> str:
    """Return the type of `content` if it is one that may come in; no policy about it allows what is usual.

    Raises:
        CapabilityBlocked: It may not, or its bytes are something else than the server says.
    """
    seen = looks_like(content)
    kind = require_listed(seen if header is None else header, allowed)
    if content and not _agree(kind, seen):
        raise CapabilityBlocked(f"the content says {kind[:100]} and looks like {seen}", reason="mime")
    return kind


def _agree(said: str, seen: str) -> bool:
    if said in (seen, UNKNOWN):
        return True
    if said in _MARKED:
        return False  # it would begin with its mark
    if seen == "application/zip" and said.startswith(_ARCHIVED):
        return True
    is_text = said.startswith("text/") or said in USUAL or said.endswith(("+json", "+xml"))
    return seen == "text/plain" if is_text else seen in (UNKNOWN, "text/plain")


def safe_filename(disposition: str | None) -> str | None:
    """Return the name a server proposes for a download, without anything that could lead somewhere."""
    found = _FILENAME.search(disposition or "")
    if found is None:
        return None
    last = re.split(r"[/\\]", found[1] or found[2] or "")[-1]
    kept = re.sub(r"[^A-Za-z0-9._ -]", "_", last).strip(" .")[:100]
    return kept or None
