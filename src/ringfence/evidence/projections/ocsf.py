"""The evidence as OCSF 1.7 events: processes, files and requests as what they are, a denial as a finding."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from ringfence.evidence.projections.run import BEGIN, DENIAL, END, Record, Run, counted, rfc3339, sha256_hex

VERSION: Final = "1.7.0"

PROCESS_ACTIVITY: Final = 1007
FILE_ACTIVITY: Final = 1001
HTTP_ACTIVITY: Final = 4002
API_ACTIVITY: Final = 6003
DETECTION_FINDING: Final = 2004

_SUCCESS, _FAILURE, _OTHER_STATUS = 1, 2, 99
_LAUNCH, _TERMINATE = 1, 2
_CREATE, _READ, _UPDATE, _DELETE, _OTHER = 1, 2, 3, 4, 99
_GET_ATTRIBUTES = 8
_DENIED, _BLOCKED = 2, 2
_SHA256 = 3
_VIRTUAL, _FILE_UNKNOWN, _FILE_REGULAR, _FILE_FOLDER = 6, 0, 1, 2
_NEW, _RULE = 1, 1

_PROCESS_KINDS: Final = frozenset({"code_run", "proc_exec"})
_FILE_KINDS: Final = {
    "fs_read": (_READ, _FILE_REGULAR),
    "fs_write": (_UPDATE, _FILE_REGULAR),
    "fs_list": (_READ, _FILE_FOLDER),
    "fs_stat": (_GET_ATTRIBUTES, _FILE_UNKNOWN),
    "fs_mkdir": (_CREATE, _FILE_FOLDER),
    "fs_delete": (_DELETE, _FILE_UNKNOWN),
    "ws_diff": (_READ, _FILE_FOLDER),
    "ws_snapshots": (_READ, _FILE_FOLDER),
    "ws_snapshot": (_READ, _FILE_FOLDER),
    "ws_restore": (_UPDATE, _FILE_FOLDER),
    "ws_reset": (_DELETE, _FILE_FOLDER),
    "ws_snapshot_delete": (_DELETE, _FILE_FOLDER),
    "ws_checkout": (_CREATE, _FILE_FOLDER),
}
_HTTP_METHODS: Final = {
    "CONNECT": 1,
    "DELETE": 2,
    "GET": 3,
    "HEAD": 4,
    "OPTIONS": 5,
    "POST": 6,
    "PUT": 7,
    "TRACE": 8,
    "PATCH": 9,
}
_VERBS: Final = {
    "granted": _CREATE,
    "issued": _CREATE,
    "opened": _CREATE,
    "started": _CREATE,
    "leased": _CREATE,
    "requested": _CREATE,
    "snapshot": _CREATE,
    "loaded": _READ,
    "attenuated": _UPDATE,
    "held": _UPDATE,
    "released": _UPDATE,
    "restored": _UPDATE,
    "recovered": _UPDATE,
    "reset": _UPDATE,
    "pruned": _DELETE,
    "revoked": _DELETE,
}
_SEVERITY_OF_RISK: Final = {"safe": 1, "low": 2, "medium": 3, "high": 4, "critical": 5}
_INFORMATIONAL = 1
_ADDRESS = re.compile(r"https?://\S+")


def ocsf_events(begin: Record, end: Record | None = None, *, version: str) -> tuple[dict[str, Any], ...]:
    """Return the events of one execution, or of one other record alone.

    A process that ran is a launch and a termination; a file operation, a request and anything else is one event. What
    was denied is one Detection Finding, since nothing was launched, read or sent.

    Raises:
        InvalidRequest: Two records that are not those of one execution.
    """
    if begin.get("type") not in (BEGIN, DENIAL, END):
        return (_api_event(begin, version),)
    run = Run(begin, end)
    if run.outcome == "denied":
        return (_finding(run, version),)
    kind = str(run.operation("kind") or "")
    if kind in _PROCESS_KINDS:
        return _process_events(run, version)
    if kind in _FILE_KINDS:
        return (_file_event(run, kind, version),)
    if kind in ("net_http", "browser_nav"):
        return (_http_event(run, version),)
    return (_api_event_of_run(run, kind, version),)


def _process_events(run: Run, version: str) -> tuple[dict[str, Any], ...]:
    process: dict[str, Any] = {"uid": str(run.get("exec_id") or run.get("envelope_id"))}
    if run.get("cmd"):
        process["name"] = str(run.get("cmd"))
    if run.get("cwd"):
        process["working_directory"] = str(run.get("cwd"))
    shared = {"actor": _actor(run.begin), "device": _device(run), "process": process}
    launch = _event(run.begin, PROCESS_ACTIVITY, _LAUNCH, version)
    launch |= shared | {"status_id": _SUCCESS, "unmapped": _unmapped(run.begin)}
    if run.end is None:
        return (launch,)
    terminate = _event(run.end, PROCESS_ACTIVITY, _TERMINATE, version) | shared | _status(run)
    if run.end.get("exit_code") is not None:
        terminate["exit_code"] = run.end["exit_code"]
    return (launch, terminate)


def _file_event(run: Run, kind: str, version: str) -> dict[str, Any]:
    activity, type_id = _FILE_KINDS[kind]
    path = str(run.operation("path") or ("work" if kind.startswith("ws_") else ""))
    file: dict[str, Any] = {"name": path.rpartition("/")[2] or path or "unknown", "type_id": type_id}
    if path:
        file["path"] = path
    digest = sha256_hex(run.get("inputs_digest")) if kind == "fs_write" else None
    if digest is not None:
        file["hashes"] = [{"algorithm_id": _SHA256, "algorithm": "SHA-256", "value": digest}]
    event = _event(run.last, FILE_ACTIVITY, activity, version)
    return event | {"actor": _actor(run.begin), "device": _device(run), "file": file} | _status(run)


def _http_event(run: Run, version: str) -> dict[str, Any]:
    method = str(run.operation("method") or "GET").upper()
    shown, host, port = _shown_url(run)
    url: dict[str, Any] = {"url_string": shown}
    event = _event(run.last, HTTP_ACTIVITY, _HTTP_METHODS.get(method, _OTHER), version)
    if host:
        url["hostname"] = host
        event["dst_endpoint"] = {"hostname": host}
        if port:
            url["port"] = event["dst_endpoint"]["port"] = port
    places = (run.get("network") or {}).get("destinations", ())
    if places:
        sent = sum(counted(place.get("bytes_out", 0)) for place in places)
        received = sum(counted(place.get("bytes_in", 0)) for place in places)
        event["traffic"] = {"bytes_out": sent, "bytes_in": received, "bytes": sent + received}
    return event | {"http_request": {"http_method": method, "url": url}} | _status(run)


def _api_event_of_run(run: Run, kind: str, version: str) -> dict[str, Any]:
    event = _event(run.last, API_ACTIVITY, _OTHER, version)
    event |= {"activity_name": kind or "unknown", "api": {"operation": str(run.get("capability") or kind or "unknown")}}
    return event | {"actor": _actor(run.begin), "src_endpoint": _source(run.begin)} | _status(run)


def _api_event(record: Record, version: str) -> dict[str, Any]:
    """Return the event of a record that is no execution: a consent, a grant, a policy, the log itself."""
    kind = str(record["type"])
    activity = _VERBS.get(kind.rpartition(".")[2], _OTHER)
    event = _event(record, API_ACTIVITY, activity, version)
    if activity == _OTHER:
        event["activity_name"] = kind.rpartition(".")[2]
    return event | {
        "api": {"operation": kind},
        "actor": _actor(record),
        "src_endpoint": _source(record),
        "status_id": _FAILURE if record.get("status") in ("denied", "error") else _SUCCESS,
        "unmapped": _unmapped(record),
    }


def _finding(run: Run, version: str) -> dict[str, Any]:
    record = run.last
    code, reason = run.error_code or "", str(record.get("reason") or "denied")
    finding: dict[str, Any] = {
        "uid": str(record["envelope_id"]),
        "title": f"{run.get('tool_name') or 'unknown'} denied: {reason}",
        "types": [code],
        "created_time": int(record["time_ms"]),
    }
    if record.get("rule"):
        finding["analytic"] = {
            "type_id": _RULE,
            "type": "Rule",
            "name": str(record["rule"]),
            "uid": str(record["rule"]),
        }
    event = _event(record, DETECTION_FINDING, _CREATE, version)
    risk = (run.get("risk") or {}).get("effective")
    event["metadata"]["profiles"] = ["security_control"]
    return event | {
        "finding_info": finding,
        "severity_id": _SEVERITY_OF_RISK.get(str(risk), 3),
        "status_id": _NEW,
        "status_code": code,
        "status_detail": reason,
        "action_id": _DENIED,
        "disposition_id": _BLOCKED,
        "is_alert": True,
        "message": finding["title"],
        "resources": [{"name": str(run.get("capability") or run.get("tool_name") or "unknown")}],
        "evidences": [{"actor": _actor(run.begin)}],
        "unmapped": _unmapped(run.begin),
    }


def _event(record: Record, class_uid: int, activity: int, version: str) -> dict[str, Any]:
    """Return the attributes that every class requires."""
    metadata: dict[str, Any] = {
        "version": VERSION,
        "product": {"name": "Ringfence", "vendor_name": "Ringfence", "version": version},
        "uid": f"{record['log_id']}/{record['seq']}",
        "event_code": str(record["type"]),
        "log_name": str(record["log_id"]),
        "sequence": int(record["seq"]),
        "original_time": rfc3339(int(record["time_ms"])),
        "correlation_uid": str(record["envelope_id"]),
    }
    if record.get("tenant"):
        metadata["tenant_uid"] = str(record["tenant"])
    return {
        "class_uid": class_uid,
        "category_uid": class_uid // 1000,
        "activity_id": activity,
        "type_uid": class_uid * 100 + activity,
        "severity_id": _INFORMATIONAL,
        "time": int(record["time_ms"]),
        "metadata": metadata,
    }


def _status(run: Run) -> dict[str, Any]:
    if not run.is_finished:
        return {"status_id": _OTHER_STATUS, "status": "running", "unmapped": _unmapped(run.begin)}
    status: dict[str, Any] = {
        "status_id": _SUCCESS if run.outcome == "succeeded" else _FAILURE,
        "start_time": run.started_ms,
        "unmapped": _unmapped(run.begin) | {"outcome": run.outcome},
    }
    if run.get("duration_ms") is not None:
        status["duration"] = run.get("duration_ms")
    if run.error_code is not None:
        status |= {"status_code": run.error_code, "status_detail": str(run.last.get("reason") or run.outcome)}
    return status


def _actor(record: Record) -> dict[str, Any]:
    """Return who acted: the agent as the application, the person it acts for as the user."""
    actor: dict[str, Any] = {"app_uid": str(record.get("subject_id") or "local")}
    if record.get("user_id"):
        actor["user"] = {"uid": str(record["user_id"])}
    if record.get("session_id"):
        actor["session"] = {"uid": str(record["session_id"])}
    return actor


def _device(run: Run) -> dict[str, Any]:
    sandbox = run.get("sandbox_id")
    return {"type_id": _VIRTUAL, "type": "Virtual", "uid": str(sandbox or run.get("log_id"))}


def _source(record: Record) -> dict[str, Any]:
    return {"uid": str(record["log_id"]), "svc_name": "ringfence"}


def _unmapped(record: Record) -> dict[str, Any]:
    """Return the correlation ids that OCSF has no place for."""
    names = ("tool_name", "call_id", "exec_id", "conversation_id", "turn_id", "task_id", "project_id", "skill_id")
    kept = {name: record[name] for name in (*names, "space_id", "grant_id", "policy_version_hash") if name in record}
    risk = record.get("risk")
    return kept | ({"risk": dict(risk)} if isinstance(risk, Mapping) else {})


def _shown_url(run: Run) -> tuple[str, str, int | None]:
    """Return the address without user, query and fragment, which may hold secrets, its host and its port."""
    found = _ADDRESS.search(str(run.operation("url") or run.get("capability") or ""))
    try:
        parts = urlsplit(found[0] if found else "")
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return "unknown", "", None
    if not host:
        return "unknown", "", None
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}", host, port
