"""Every record as a CloudEvent 1.0 in structured JSON, for the buses and collectors that already speak it."""

from __future__ import annotations

import re
from typing import Any, Final

from ringfence.errors import InvalidRequest
from ringfence.evidence.projections.run import Record, rfc3339

MEDIA_TYPE: Final = "application/cloudevents+json"
SCHEMA: Final = "urn:ringfence:evidence:record:1"
TYPE_PREFIX: Final = "ringfence.evidence."

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_HASH = re.compile(r"[0-9a-f]{64}")


def cloud_event(record: Record, record_hash: str) -> dict[str, Any]:
    """Return the event of one record; its data are the record and its hash, so that what it says can be verified.

    The source is the log and the id the record's place in it: both together name one record in the whole world.

    Raises:
        InvalidRequest: `record_hash` is no SHA-256 in lower-case hex.
    """
    if not _HASH.fullmatch(record_hash):
        raise InvalidRequest("the hash of a record is 64 hex digits", reason="bad_digest")
    log_id, seq = record["log_id"], record["seq"]
    event: dict[str, Any] = {
        "specversion": "1.0",
        "id": f"{log_id}/{seq}",
        "source": f"urn:ringfence:log:{log_id}",
        "type": TYPE_PREFIX + str(record["type"]),
        "subject": str(record.get("exec_id") or record["envelope_id"]),
        "time": rfc3339(int(record["time_ms"])),
        "datacontenttype": "application/json",
        "dataschema": SCHEMA,
    }
    traceparent = record.get("traceparent")
    # a malformed one would make the whole event invalid to a strict reader; the record in `data` still has it
    if isinstance(traceparent, str) and _TRACEPARENT.fullmatch(traceparent):
        event["traceparent"] = traceparent
    event["data"] = {**record, "hash": record_hash}
    return event
