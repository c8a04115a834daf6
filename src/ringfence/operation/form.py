"""Operations as JSON and as the one line that evidence keeps; what is not exactly an operation is refused."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from typing import Any

from ringfence.errors import InvalidRequest
from ringfence.operation import brokered, code, needs, workspace, workspace_proposals
from ringfence.operation.path import workspace_path
from ringfence.operation.secret import references
from ringfence.operation.target import METHODS, target

Operation = code.CodeRun | brokered.Brokered | needs.Need

_Read = Callable[[str, object], Any]
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
MAX_ARGUMENTS = 1024
MAX_ARGUMENT_BYTES = 128 * 1024
MAX_HEADERS = 100
MAX_LABEL = 200
MAX_SELECTOR = 4096
MAX_SELECTORS = 100
MAX_TYPED = 10_000
EXTRACTS = ("text", "links", "tree", "fields")
_REPOSITORY = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}\Z")
_SNAPSHOT_ID = re.compile(r"snap_[0-9a-f]{32}\Z")


def demands(operation: Operation) -> tuple[Operation, ...]:
    """Return what must be allowed for `operation` to be: itself, a page's download, what code reaches and uses."""
    if isinstance(operation, code.CodeRun):
        secrets = (needs.SecretUse(ask.name) for ask in operation.secrets)
        reached = map(needs.HostReach, operation.domains)
        return (operation, *map(needs.PortOpen, operation.ports), *reached, *secrets)
    if isinstance(operation, brokered.NetHttp):
        return (operation, *map(needs.SecretUse, references(operation.headers)))
    if isinstance(operation, brokered.BrowserNav):
        return (operation, brokered.NetHttp("GET", operation.url))
    return (operation,)


def summary(operation: Operation) -> str:
    """Return `domain.action:resource` as evidence keeps it: no content, no query string, no argument."""
    match operation:
        case code.CodeRun():
            return f"code.run:{operation.language}"
        case brokered.NetHttp():
            return f"net.http:{operation.method}:{_shown_url(operation.url)}"
        case brokered.BrowserNav():
            return f"browser.open:{_shown_url(operation.url)}"
        case brokered.BrowserExtract() | brokered.BrowserScreenshot() | brokered.BrowserClick():
            return operation.kind.replace("_", ".")
        case brokered.BrowserType() | brokered.BrowserClose():
            return operation.kind.replace("_", ".")
        case brokered.ProcExec():
            return f"proc.exec:{operation.tool}"
        case brokered.TmpAlloc():
            return f"tmp.alloc:{operation.size_bytes}"
        case brokered.TmpFree():
            return "tmp.free"
        case workspace_proposals.WsCommit() | workspace_proposals.WsDiscard():
            name = operation.exec_id if _NAME.fullmatch(operation.exec_id) else "invalid"
            return f"{operation.kind.replace('_', '.')}:{name}"
        case workspace.WsRestore() | workspace.WsSnapshotDelete():
            return f"{operation.kind.replace('_', '.')}:{_shown_id(operation.snapshot_id)}"
        case workspace.WsCheckout():
            return f"ws.checkout:{operation.repository if is_repository(operation.repository) else 'invalid'}"
        case needs.SecretUse():
            return f"secret.use:{operation.name}"
        case needs.HostReach():
            return f"net.http:{operation.host}"
        case needs.PortOpen():
            return f"port.open:{operation.port}"
        case needs.GpuUse():
            return f"sys.gpu:{operation.gpu_class}"
        case needs.HostUse():
            return f"fs.host:{operation.path}"
        case _:
            return f"{operation.kind.replace('_', '.')}:{_shown_path(operation.path)}"


def to_json(operation: brokered.Brokered) -> dict[str, Any]:
    """Return `operation` as the JSON object that `from_json` reads."""
    form: dict[str, Any] = {"op": operation.kind}
    for name, (key, _, default) in _FIELDS[operation.kind].items():
        value = getattr(operation, name)
        if value == default and default is not _REQUIRED:
            continue
        if isinstance(value, bytes):
            value = base64.b64encode(value).decode()
        elif isinstance(value, tuple):
            value = list(value)
        elif isinstance(value, Mapping):
            value = dict(value)
        form[key] = value
    return form


def from_json(form: object) -> brokered.Brokered:
    """Read a brokered operation; an unknown kind or field, or a value of another type, is refused.

    Raises:
        InvalidRequest: Naming the field and what is wrong with it.
    """
    if not isinstance(form, dict):
        raise _refused("op", "must be an object")
    kind = form.get("op")
    if not isinstance(kind, str) or kind not in _FIELDS:
        raise _refused("op", f"is not one of {', '.join(_FIELDS)}")
    fields = _FIELDS[kind]
    unknown = form.keys() - {key for key, _, _ in fields.values()} - {"op"}
    if unknown:
        raise _refused(min(map(str, unknown)), f"is not a field of {kind}")
    values: dict[str, Any] = {}
    for name, (key, read, default) in fields.items():
        if key in form:
            values[name] = read(key, form[key])
        elif default is _REQUIRED:
            raise _refused(key, f"is missing from {kind}")
    operation: brokered.Brokered = _KINDS[kind](**values)
    check(operation)
    return operation


def check(operation: brokered.Brokered) -> None:
    """Refuse an operation that could not be carried out exactly as written; where a path leads is the guard's to say.

    Raises:
        InvalidRequest: Naming the field and what is wrong with it.
    """
    kind = getattr(operation, "kind", None)
    if _KINDS.get(str(kind)) is not type(operation):
        raise InvalidRequest(f"{type(operation).__name__} is not a brokered operation", reason="unknown_operation")
    for name, (key, read, default) in _FIELDS[operation.kind].items():
        value = getattr(operation, name)
        if value != default or default is _REQUIRED:
            read(key, value)
    if isinstance(operation, brokered.NetHttp | brokered.BrowserNav):
        target(operation.url)
    if isinstance(operation, brokered.BrowserExtract):
        _check_extract(operation)


def _refused(key: str, problem: str) -> InvalidRequest:
    return InvalidRequest(f"{key[:100]} {problem}", reason="invalid_operation", field=key[:100])


def _shown_url(url: str) -> str:
    try:
        where = target(url)
    except InvalidRequest:
        return "invalid"
    return where.origin + where.path.partition("?")[0].removesuffix("/")


def _shown_path(path: str) -> str:
    try:
        return workspace_path(path)
    except InvalidRequest:
        return "invalid"


def _shown_id(name: str) -> str:
    return name if is_snapshot_id(name) else "invalid"


def is_repository(name: object) -> bool:
    """Whether `name` can be one that an operator registered a repository under."""
    return isinstance(name, str) and _REPOSITORY.match(name) is not None


def is_snapshot_id(name: object) -> bool:
    """Whether `name` can be a snapshot's id, and no path."""
    return isinstance(name, str) and _SNAPSHOT_ID.match(name) is not None


def _snapshot_id(key: str, value: object) -> str:
    if not isinstance(value, str) or not is_snapshot_id(value):
        raise _refused(key, "must be the id of a snapshot, as a list shows it")
    return value


def _repository(key: str, value: object) -> str:
    if not isinstance(value, str) or not is_repository(value):
        raise _refused(key, "must be the name of a repository, as a list shows it")
    return value


def _label(key: str, value: object) -> str:
    if not isinstance(value, str) or len(value) > MAX_LABEL or not value.isprintable():
        raise _refused(key, f"must be at most {MAX_LABEL} printable characters")
    return value


def _text(key: str, value: object) -> str:
    if not isinstance(value, str) or not value or "\0" in value or len(value) > MAX_ARGUMENT_BYTES:
        raise _refused(key, "must be text, not empty, without NUL")
    return value


def _amount(key: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**53:
        raise _refused(key, "must be a whole number from 0")
    return value


def _flag(key: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise _refused(key, "must be true or false")
    return value


def _bytes(key: str, value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    try:
        return base64.b64decode(value, validate=True)  # type: ignore[arg-type]
    except (TypeError, ValueError, binascii.Error):
        raise _refused(key, "must be base64 text") from None


def _method(key: str, value: object) -> str:
    if not isinstance(value, str) or value not in METHODS:
        raise _refused(key, f"must be one of {', '.join(sorted(METHODS))}")
    return value


def _arguments(key: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or len(value) > MAX_ARGUMENTS:
        raise _refused(key, f"must be a list of at most {MAX_ARGUMENTS} texts")
    for argument in value:
        if not isinstance(argument, str) or "\0" in argument or len(argument) > MAX_ARGUMENT_BYTES:
            raise _refused(key, "must hold text without NUL")
    return tuple(value)


def _choice(*words: str) -> _Read:
    def read(key: str, value: object) -> str:
        if not isinstance(value, str) or value not in words:
            raise _refused(key, f"must be one of {', '.join(words)}")
        return value

    return read


def _selector(key: str, value: object) -> str:
    if len(text := _text(key, value)) > MAX_SELECTOR:
        raise _refused(key, f"must be a CSS selector of at most {MAX_SELECTOR} characters")
    return text


def _selectors(key: str, value: object) -> dict[str, str]:
    if not isinstance(value, Mapping) or len(value) > MAX_SELECTORS:
        raise _refused(key, f"must map at most {MAX_SELECTORS} names to CSS selectors")
    return {_label(key, name): _selector(key, selector) for name, selector in value.items()}


def _typed(key: str, value: object) -> str:
    if not isinstance(value, str) or "\0" in value or len(value) > MAX_TYPED:
        raise _refused(key, f"must be at most {MAX_TYPED} characters without NUL")
    return value


def _check_extract(operation: brokered.BrowserExtract) -> None:
    if (operation.what == "fields") is not bool(operation.fields):
        raise _refused("fields", "names what is found by which selector, where what is fields, and only there")
    if operation.fields and operation.selector is not None:
        raise _refused("selector", "has no meaning beside fields, which bring their own")


def _headers(key: str, value: object) -> dict[str, str]:
    if not isinstance(value, Mapping) or len(value) > MAX_HEADERS:
        raise _refused(key, f"must be an object of at most {MAX_HEADERS} texts")
    for name, text in value.items():
        # a line break would begin another header, or another request
        if not isinstance(name, str) or not isinstance(text, str) or not (name + text).isprintable() or not name:
            raise _refused(key, "must map printable names to printable texts")
    return dict(value)


_REQUIRED = object()
_PATH: dict[str, tuple[str, _Read, object]] = {"path": ("path", _text, _REQUIRED)}
_SNAPSHOT: dict[str, tuple[str, _Read, object]] = {"snapshot_id": ("snapshot_id", _snapshot_id, _REQUIRED)}
_BEFORE: dict[str, tuple[str, _Read, object]] = {"snapshot_before": ("snapshot_before", _flag, False)}
_SELECTOR: dict[str, tuple[str, _Read, object]] = {"selector": ("selector", _selector, None)}
_SELECTED: dict[str, tuple[str, _Read, object]] = {"selector": ("selector", _selector, _REQUIRED)}

_KINDS: dict[str, type[brokered.Brokered]] = {
    kind.kind: kind
    for kind in (
        brokered.FsRead,
        brokered.FsWrite,
        brokered.FsList,
        brokered.FsStat,
        brokered.FsMkdir,
        brokered.FsDelete,
        brokered.NetHttp,
        brokered.BrowserNav,
        brokered.BrowserExtract,
        brokered.BrowserScreenshot,
        brokered.BrowserClick,
        brokered.BrowserType,
        brokered.BrowserClose,
        brokered.ProcExec,
        brokered.TmpAlloc,
        brokered.TmpFree,
        workspace_proposals.WsCommit,
        workspace_proposals.WsDiscard,
        workspace_proposals.WsPending,
        workspace.WsSnapshot,
        workspace.WsSnapshots,
        workspace.WsRestore,
        workspace.WsReset,
        workspace.WsDiff,
        workspace.WsSnapshotDelete,
        workspace.WsCheckout,
    )
}

# attribute → (key in JSON, reader, what it is when absent)
_FIELDS: dict[str, dict[str, tuple[str, _Read, object]]] = {
    "fs_read": {**_PATH, "offset": ("offset", _amount, None), "len": ("len", _amount, None)},
    "fs_write": {
        **_PATH,
        "content": ("bytes_b64", _bytes, _REQUIRED),
        "overwrite": ("overwrite", _flag, False),
    },
    "fs_list": {**_PATH, "cursor": ("cursor", _text, None), "limit": ("limit", _amount, None)},
    "fs_stat": _PATH,
    "fs_mkdir": _PATH,
    "fs_delete": _PATH,
    "net_http": {
        "method": ("method", _method, _REQUIRED),
        "url": ("url", _text, _REQUIRED),
        "headers": ("headers", _headers, {}),
        "body": ("body_b64", _bytes, None),
    },
    "browser_nav": {
        "url": ("url", _text, _REQUIRED),
        "backend": ("backend", _choice(brokered.EXTERNAL_BROWSER, brokered.AIO_BROWSER), brokered.EXTERNAL_BROWSER),
    },
    "browser_extract": {
        **_SELECTOR,
        "what": ("what", _choice(*EXTRACTS), "text"),
        "fields": ("fields", _selectors, {}),
    },
    "browser_screenshot": {
        **_SELECTOR,
        "full_page": ("full_page", _flag, False),
        "width": ("width", _amount, None),
        "height": ("height", _amount, None),
    },
    "browser_click": _SELECTED,
    "browser_type": {**_SELECTED, "text": ("text", _typed, _REQUIRED)},
    "browser_close": {},
    "proc_exec": {
        "tool": ("tool", _text, _REQUIRED),
        "args": ("args", _arguments, ()),
        "timeout_ms": ("timeout_ms", _amount, None),
    },
    "tmp_alloc": {"size_bytes": ("size_bytes", _amount, _REQUIRED)},
    "tmp_free": {"handle": ("handle", _text, _REQUIRED)},
    "ws_commit": {"exec_id": ("exec_id", _text, _REQUIRED), "force": ("force", _flag, False)},
    "ws_discard": {"exec_id": ("exec_id", _text, _REQUIRED)},
    "ws_pending": {},
    "ws_snapshot": {"label": ("label", _label, "")},
    "ws_snapshots": {},
    "ws_restore": {**_SNAPSHOT, **_BEFORE},
    "ws_reset": _BEFORE,
    "ws_diff": {"since": ("since", _snapshot_id, None)},
    "ws_snapshot_delete": _SNAPSHOT,
    "ws_checkout": {"repository": ("repository", _repository, _REQUIRED)},
}
