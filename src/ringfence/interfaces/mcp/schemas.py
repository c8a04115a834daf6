"""The shapes of the built-in tools: what each takes, bounded everywhere, and what each gives, or the error instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

Schema = Mapping[str, Any]

MOST_CODE: Final = 1 << 20
MOST_CONTENT: Final = 2 << 20
MOST_READ: Final = 256 << 10
USUAL_READ: Final = 64 << 10
MOST_ENTRIES: Final = 500
MOST_FETCH: Final = 400_000
USUAL_FETCH: Final = 40_000
MOST_SECONDS: Final = 24 * 3600

_TEXT: Final = {"type": "string"}
_COUNT: Final = {"type": "integer", "minimum": 0}
_OR_NOT: Final = {"anyOf": [{"type": "string"}, {"type": "null"}]}
_NUMBER_OR_NOT: Final = {"anyOf": [{"type": "integer"}, {"type": "null"}]}


def taking(required: tuple[str, ...], **properties: Schema) -> Schema:
    """Return the schema of arguments; one that is not named here is refused."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        "additionalProperties": False,
    }


def giving(**properties: Schema) -> Schema:
    """Return the schema of a result: all of these, or the one error that says what would be needed."""
    return {
        "type": "object",
        "properties": {**properties, "error": ERROR},
        "anyOf": [{"required": list(properties)}, {"required": ["error"]}],
        "additionalProperties": False,
    }


ERROR: Final[Schema] = {
    "type": "object",
    "description": "Why nothing, or not all, was done, and what would be needed",
    "properties": {
        "code": _TEXT,
        "reason": _TEXT,
        "message": _TEXT,
        "fix": _OR_NOT,
        "needs": {**_OR_NOT, "description": "What a policy or a grant would have to allow"},
        "retryable": {"type": "boolean"},
        "details": {"type": "object"},
    },
    "required": ["code", "reason", "message", "fix", "needs", "retryable", "details"],
    "additionalProperties": False,
}

PATH: Final[Schema] = {
    "type": "string",
    "minLength": 1,
    "maxLength": 4096,
    "description": "In the workspace: work/NAME (the working directory of programs), inputs/NAME or artifacts/NAME",
}
FILES: Final[Schema] = {
    "type": "object",
    "maxProperties": 256,
    "propertyNames": {"minLength": 1, "maxLength": 1024},
    "additionalProperties": {"type": "string", "maxLength": MOST_CONTENT},
    "description": "Files to put into the working directory first: name to text",
}
ENV: Final[Schema] = {
    "type": "object",
    "maxProperties": 128,
    "propertyNames": {"minLength": 1, "maxLength": 128},
    "additionalProperties": {"type": "string", "maxLength": 32768},
    "description": "Environment variables of the program; for no secrets",
}
TIMEOUT: Final[Schema] = {
    "type": "number",
    "exclusiveMinimum": 0,
    "maximum": MOST_SECONDS,
    "description": "Seconds after which it is killed; the policy may allow less",
}
CODE: Final[Schema] = {"type": "string", "minLength": 1, "maxLength": MOST_CODE}
LANGUAGE: Final[Schema] = {"type": "string", "enum": ["python", "javascript", "typescript", "bash"]}
ALLOW_DOMAINS: Final[Schema] = {
    "type": "array",
    "maxItems": 64,
    "items": {"type": "string", "minLength": 1, "maxLength": 255},
    "description": "Hosts it may reach, example.com or *.example.com, as far as the policy grants them",
}
SECRETS: Final[Schema] = {
    "type": "array",
    "maxItems": 32,
    "items": {"type": "string", "minLength": 1, "maxLength": 256},
    "description": "Secrets it needs, by name: NAME=env, NAME=env:VARIABLE or NAME=file:name; a policy lends them",
}
_STDIN: Final[Schema] = {"type": "string", "maxLength": MOST_CODE, "description": "What the program reads"}

RUN_CODE: Final = taking(
    ("code",),
    code={**CODE, "description": "The program's text"},
    language={**LANGUAGE, "default": "python"},
    args={"type": "array", "maxItems": 256, "items": {"type": "string", "maxLength": 32768}},
    stdin=_STDIN,
    files=FILES,
    env=ENV,
    packages={
        "type": "array",
        "maxItems": 64,
        "items": {"type": "string", "minLength": 1, "maxLength": 256},
        "description": "Packages to import, such as numpy==2.1.0; the box has the standard library alone",
    },
    timeout=TIMEOUT,
    allow_domains=ALLOW_DOMAINS,
    secrets=SECRETS,
)
RUN_SHELL: Final = taking(
    ("command",),
    command={**CODE, "description": "A bash command line, run inside the box"},
    stdin=_STDIN,
    files=FILES,
    env=ENV,
    timeout=TIMEOUT,
    allow_domains=ALLOW_DOMAINS,
    secrets=SECRETS,
)
_STREAM = "its first and its last part where *_truncated says so"
RAN: Final = giving(
    success={"type": "boolean"},
    status=_TEXT,
    exit_code=_NUMBER_OR_NOT,
    stdout={**_TEXT, "description": f"Standard output, {_STREAM}"},
    stderr={**_TEXT, "description": f"Standard error, {_STREAM}"},
    stdout_bytes=_COUNT,
    stderr_bytes=_COUNT,
    stdout_truncated={"type": "boolean"},
    stderr_truncated={"type": "boolean"},
    killed_by=_OR_NOT,
    ended={**_OR_NOT, "description": "Why it ended, where its own output cannot say so"},
    elapsed_ms={"type": "number"},
    files_written={"type": "array", "items": _TEXT, "description": "By the names that read_file takes"},
    artifacts={
        "type": "array",
        "description": "What it left in /workspace/artifacts, by the names that read_file takes",
        "items": {
            "type": "object",
            "properties": {"path": _TEXT, "size": _COUNT, "sha256": _TEXT},
            "required": ["path", "size", "sha256"],
        },
    },
    lists_truncated={"type": "boolean"},
    exec_id=_TEXT,
    evidence_id=_OR_NOT,
)

READ_FILE: Final = taking(
    ("path",),
    path=PATH,
    offset={**_COUNT, "description": "The first byte to read"},
    length={"type": "integer", "minimum": 1, "maximum": MOST_READ, "default": USUAL_READ},
)
READ: Final = giving(
    path=_TEXT,
    content={**_OR_NOT, "description": "The bytes as text; null where they are not UTF-8, or withheld"},
    content_base64={**_OR_NOT, "description": "The bytes, where they are not UTF-8"},
    withheld={"type": "boolean", "description": "Whether the policy keeps contents out of results"},
    offset=_COUNT,
    next_offset={**_NUMBER_OR_NOT, "description": "Where to read on; null at the end"},
    size={**_COUNT, "description": "Of the whole file"},
    exec_id=_TEXT,
    evidence_id=_OR_NOT,
)
WRITE_FILE: Final = taking(
    ("path",),
    path=PATH,
    content={"type": "string", "maxLength": MOST_CONTENT, "description": "Text to write, as UTF-8"},
    content_base64={
        "type": "string",
        "maxLength": MOST_CONTENT * 4 // 3 + 4,
        "description": "Bytes to write, instead of content",
    },
    overwrite={"type": "boolean", "default": False, "description": "Whether an existing file may be replaced"},
)
WROTE: Final = giving(
    path=_TEXT, bytes=_COUNT, created={"type": "boolean"}, sha256=_TEXT, exec_id=_TEXT, evidence_id=_OR_NOT
)
LIST_FILES: Final = taking(
    (),
    path={**PATH, "default": "work"},
    cursor={"type": "string", "minLength": 1, "maxLength": 4096, "description": "Where an earlier page ended"},
    limit={"type": "integer", "minimum": 1, "maximum": MOST_ENTRIES, "default": 200},
)
LISTED: Final = giving(
    path=_TEXT,
    entries={
        "type": "array",
        "items": {
            "type": "object",
            "properties": {
                "name": _TEXT,
                "path": {**_OR_NOT, "description": "How to ask for it; null where no request can spell it"},
                "kind": _TEXT,
                "size": _COUNT,
            },
            "required": ["name", "path", "kind", "size"],
            "additionalProperties": False,
        },
    },
    cursor={**_OR_NOT, "description": "Give it to get the next page; null on the last"},
    exec_id=_TEXT,
    evidence_id=_OR_NOT,
)

FETCH_URL: Final = taking(
    ("url",),
    url={"type": "string", "minLength": 1, "maxLength": 8192, "description": "http:// or https://, percent-encoded"},
    max_characters={"type": "integer", "minimum": 1, "maximum": MOST_FETCH, "default": USUAL_FETCH},
)
FETCHED: Final = giving(
    url={**_TEXT, "description": "Where it was found in the end"},
    status={**_COUNT, "description": "As the server said: 404 is an answer too"},
    address={**_TEXT, "description": "The one address that was connected to"},
    media_type=_OR_NOT,
    bytes={**_COUNT, "description": "Of all of it, unpacked"},
    hops={
        "type": "array",
        "description": "Every request on the way, redirects included",
        "items": {
            "type": "object",
            "properties": {"url": _TEXT, "status": _NUMBER_OR_NOT, "address": _OR_NOT},
            "required": ["url", "status", "address"],
            "additionalProperties": False,
        },
    },
    sha256=_TEXT,
    content={**_OR_NOT, "description": "Untrusted text; null where it is no text, or withheld"},
    truncated={"type": "boolean"},
    withheld={"type": "boolean", "description": "Whether the policy keeps contents out of results"},
    untrusted={"type": "boolean", "description": "Always true: nothing in it was checked but its form"},
    exec_id=_TEXT,
    evidence_id=_OR_NOT,
)
