"""An operation as a record describes it: enough for the guard to judge it again, nothing of what it carries.

Contents, values of variables and arguments never enter a record: their sizes and one digest do. Whoever kept the
content can give it back to `operation_of`, and it is believed only if it has that digest.
"""

from __future__ import annotations

import json
from binascii import b2a_base64
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from ringfence.capability.canonical import canonical
from ringfence.dataclass import dataclass
from ringfence.errors import InvalidRequest
from ringfence.evidence.effects import harmless_text, printable_text
from ringfence.operation.code import CodeRun, Language
from ringfence.operation.secret import read_ask
from ringfence.outcome import Digest

if TYPE_CHECKING:
    from ringfence.evidence.programs import Called
    from ringfence.operation.form import Operation

MOST_LISTED = 256
"""Of arguments, variables and files; how many there were is always said."""

Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CannotTell:
    """A question that the record does not answer, and why."""

    reason: str


def describe(operation: Operation) -> dict[str, Any]:
    """Return the `op` member of a record."""
    if isinstance(operation, CodeRun):
        return _printable(_describe_code(operation))
    return _printable({"kind": operation.kind, **_DESCRIBED[operation.kind](operation)})


def content_of(operation: Operation) -> bytes:
    """Return the bytes that `inputs_digest` is of: the code, what is written, else the whole operation as JSON."""
    if isinstance(operation, CodeRun):
        return operation.code.encode("utf-8", "surrogatepass")
    if operation.kind == "fs_write":
        content: bytes = operation.content  # type: ignore[union-attr]
        return content
    from ringfence.operation.form import summary, to_json

    try:
        form: dict[str, Any] = to_json(operation)  # type: ignore[arg-type]
    except KeyError:  # a need has no form of its own
        form = {"op": operation.kind, "need": summary(operation)}
    try:
        return canonical(form)
    except InvalidRequest:
        return json.dumps(form, sort_keys=True, separators=(",", ":")).encode()


def inputs_digest_of(operation: Operation) -> dict[str, str | int]:
    """Return the `inputs_digest` member of a record (S0-110); every run makes one, so it takes the short way."""
    from hashlib import sha256  # not at the top: it is slow to import

    content = content_of(operation)
    b64 = b2a_base64(sha256(content).digest(), newline=False).decode("ascii")
    return {"algo": "sha256", "b64": b64, "size": len(content)}


def redacted_args(operation: Operation) -> list[str]:
    """Return the `args` member: how long each argument is."""
    return [_size_of(argument) for argument in getattr(operation, "args", ())[:MOST_LISTED]]


def env_keys(operation: Operation) -> list[str]:
    """Return the names of the variables an operation brings; all of them, because the guard judges each."""
    return [harmless_text(name, escaped="") for name in sorted(getattr(operation, "env", ()))]


def inputs_of(operation: Operation) -> list[dict[str, str | int]]:
    """Return the `inputs` member: the files a run of code brings, by their path in the workspace."""
    if not isinstance(operation, CodeRun) or not (operation.files or operation.inputs):
        return []
    import hashlib  # not at the top: most runs bring no files

    named = [(f"work/{path}", content) for path, content in operation.files.items()]
    named += [(f"inputs/{path}", content) for path, content in operation.inputs.items()]
    return [
        {"path": harmless_text(path), "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for path, content in sorted(named)[:MOST_LISTED]
    ]


def operation_of(record: Record, content: bytes | None = None) -> Operation | CannotTell:
    """Return an operation that the guard judges as it judged the recorded one.

    `content` is what `content_of` returned then. Without it a script stands for its programs, and bytes for their
    number: whether that is enough depends on the profile, and `short_of` in `evidence.replay` says so.
    """
    if content is not None and Digest.of(content).to_dict() != record.get("inputs_digest"):
        return CannotTell("the content is not what the record names by its digest")
    op = record.get("op")
    if not isinstance(op, Mapping):
        return CannotTell("the record does not describe its operation")
    if op.get("escaped") not in (None, _PERCENT):
        return CannotTell("the operation names something that is not Unicode text")
    try:
        if "escaped" in op:
            op = {name: _each(_unescaped, value) for name, value in op.items()}
        if op["kind"] == "code_run":
            return _code_of(record, op, content)
        return _brokered_of(op, content)
    except (KeyError, TypeError, ValueError, AttributeError, InvalidRequest):
        return CannotTell("the record does not describe its operation in any way this version knows")


def called_of(record: Record) -> Called | None:
    """Return what the record says about the programs of its script, or nothing when it could not be summed up."""
    from ringfence.evidence.programs import Called

    op = record["op"]
    names = op.get("programs")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return None
    unclear = op.get("unclear") is not False
    # an older record does not say so: where all was clear there were hardly any
    return Called(tuple(names), unclear, op.get("suspects", unclear) is not False)


class OfSize(bytes):
    """Bytes of which only the number is known."""

    size: int

    def __new__(cls, size: int) -> OfSize:
        """Hold no bytes at all, however many there were."""
        self = super().__new__(cls)
        self.size = size
        return self

    def __len__(self) -> int:
        return self.size


_PERCENT: Final = "percent"


def _printable(form: dict[str, Any]) -> dict[str, Any]:
    """Return the description with every name in it as `%XX` bytes if one of them would act on a terminal.

    A C1 control or an override of the reading direction is valid JSON, and would be obeyed where a log is printed.
    `escaped` says how to have them back; a lone surrogate is no Unicode, and comes back as no other name.
    """
    names = [name for value in form.values() for name in (value if isinstance(value, list) else (value,))]
    if all(name.isprintable() for name in names if isinstance(name, str)):
        return form
    told = {name: _each(_escaped, value) for name, value in form.items()}
    return {**told, "escaped": _PERCENT if all(map(_is_unicode, names)) else True}


def _each(change: Callable[[str], str], value: Any) -> Any:
    if isinstance(value, list):
        return [_each(change, each) for each in value]
    return change(value) if isinstance(value, str) else value


def _escaped(name: str) -> str:
    return printable_text(name, escaped="%")


def _unescaped(name: str) -> str:
    from urllib.parse import unquote  # not at the top: hardly any name is escaped

    back = unquote(name, errors="strict")
    if _escaped(back) != name:
        raise ValueError("no name is escaped like this")
    return back


def _describe_code(operation: CodeRun) -> dict[str, Any]:
    form: dict[str, Any] = {
        "kind": "code_run",
        "language": str(operation.language),
        "arg_count": len(operation.args),
        "stdin_bytes": len(operation.stdin),
    }
    if operation.packages:
        form["packages"] = list(operation.packages)
    if operation.preload:
        form["preload"] = list(operation.preload)
    if operation.ports:
        form["ports"] = sorted(operation.ports)
    if operation.secrets:
        form["secrets"] = sorted(map(str, operation.secrets))
    if operation.domains:
        form["domains"] = sorted(operation.domains)
    if operation.files or operation.inputs:
        form["file_count"] = len(operation.files) + len(operation.inputs)
    if operation.language is Language.BASH:
        from ringfence.evidence.programs import called

        found = called(operation.code)
        if found is not None:
            form["programs"] = list(found.programs)
            form["unclear"] = found.unclear
            form["suspects"] = found.suspects
    return form


def _described_url(operation: Any) -> dict[str, Any]:
    from ringfence.operation.target import target

    try:
        where = target(operation.url)
    except InvalidRequest:
        return {"invalid_url": True}
    path, question, _ = where.path.partition("?")
    form: dict[str, Any] = {"url": where.origin + path}
    if question:
        form["has_query"] = True
    return form


def _described_file(operation: Any) -> dict[str, Any]:
    form: dict[str, Any] = {"path": operation.path}
    for name in ("offset", "len", "limit"):
        if getattr(operation, name, None) is not None:
            form[name] = getattr(operation, name)
    return form


def _described_picture(operation: Any) -> dict[str, Any]:
    form: dict[str, Any] = {"has_selector": operation.selector is not None, "full_page": operation.full_page}
    for name in ("width", "height"):
        if getattr(operation, name) is not None:
            form[name] = getattr(operation, name)
    return form


_DESCRIBED: dict[str, Callable[[Any], dict[str, Any]]] = {
    **dict.fromkeys(("fs_read", "fs_list", "fs_stat", "fs_mkdir", "fs_delete"), _described_file),
    "fs_write": lambda op: {"path": op.path, "bytes": len(op.content), "overwrite": op.overwrite},
    "net_http": lambda op: {"method": op.method, **_described_url(op), "body_bytes": len(op.body or b"")},
    "browser_nav": lambda op: {**_described_url(op), "backend": op.backend},
    "browser_extract": lambda op: {"has_selector": op.selector is not None, "what": op.what, "fields": len(op.fields)},
    "browser_screenshot": _described_picture,
    "browser_click": lambda op: {},  # noqa: ARG005  a selector may quote what is on the page
    "browser_type": lambda op: {"characters": len(op.text)},
    "browser_close": lambda op: {},  # noqa: ARG005  it has nothing to it
    "proc_exec": lambda op: {"tool": op.tool, "arg_count": len(op.args)},
    "tmp_alloc": lambda op: {"size_bytes": op.size_bytes},
    "tmp_free": lambda op: {},  # noqa: ARG005  the handle is good for using the space
    "ws_commit": lambda op: {"exec_id": op.exec_id, "force": op.force},
    "ws_discard": lambda op: {"exec_id": op.exec_id},
    "ws_pending": lambda op: {},  # noqa: ARG005  it has nothing to it
    "ws_snapshot": lambda op: {"label": op.label} if op.label else {},
    "ws_snapshots": lambda op: {},  # noqa: ARG005  there is nothing to say
    "ws_restore": lambda op: {"snapshot_id": op.snapshot_id, "snapshot_before": op.snapshot_before},
    "ws_reset": lambda op: {"snapshot_before": op.snapshot_before},
    "ws_diff": lambda op: {} if op.since is None else {"since": op.since},
    "ws_snapshot_delete": lambda op: {"snapshot_id": op.snapshot_id},
    "ws_checkout": lambda op: {"repository": op.repository},
    "secret_use": lambda op: {"name": op.name},
    "port_open": lambda op: {"port": op.port},
    "gpu_use": lambda op: {"gpu_class": op.gpu_class},
    "host_use": lambda op: {"path": op.path},
}


_NEEDS = ("secret_use", "port_open", "gpu_use", "host_use")


def _code_of(record: Record, op: Mapping[str, Any], content: bytes | None) -> CodeRun | CannotTell:
    language = Language(op["language"])
    if content is not None:
        code = content.decode("utf-8", "surrogatepass")
    elif language is Language.BASH:
        summed_up = called_of(record)
        code = "" if summed_up is None else summed_up.script()
    else:
        code = ""
    env = {_text(name): "" for name in record.get("env_keys", ())}
    ports = tuple(map(_number, op.get("ports", ())))
    secrets = tuple(map(read_ask, op.get("secrets", ())))
    packages = tuple(map(_text, op.get("packages", ())))
    domains = tuple(map(_text, op.get("domains", ())))
    return CodeRun(language, code, env=env, packages=packages, ports=ports, secrets=secrets, domains=domains)


def _brokered_of(op: Mapping[str, Any], content: bytes | None) -> Operation | CannotTell:
    from ringfence.operation import brokered, needs
    from ringfence.operation.form import from_json

    kind = op["kind"]
    if kind == "fs_write":
        body = OfSize(_number(op["bytes"])) if content is None else content
        return brokered.FsWrite(_text(op["path"]), body, op["overwrite"] is True)
    if content is not None and kind not in _NEEDS:
        whole = from_json(json.loads(content))
        return whole if whole.kind == kind else CannotTell("the content is of an operation of another kind")
    if op.get("invalid_url"):
        return CannotTell("the URL was none that could be read")
    match kind:
        case "net_http":
            return brokered.NetHttp(_text(op["method"]), _text(op["url"]), body=OfSize(_number(op["body_bytes"])))
        case "browser_nav":
            return brokered.BrowserNav(_text(op["url"]), _text(op.get("backend", brokered.EXTERNAL_BROWSER)))
        case "browser_extract":
            return brokered.BrowserExtract(what=_text(op.get("what", "text")))
        case "browser_screenshot":
            width, height = (_number(op[name]) if name in op else None for name in ("width", "height"))
            return brokered.BrowserScreenshot(full_page=op["full_page"] is True, width=width, height=height)
        case "browser_click":
            return brokered.BrowserClick("")
        case "browser_type":
            return brokered.BrowserType("", "")
        case "browser_close":
            return brokered.BrowserClose()
        case "proc_exec":
            return brokered.ProcExec(_text(op["tool"]), ("",) * min(_number(op["arg_count"]), 1))
        case "tmp_alloc":
            return brokered.TmpAlloc(_number(op["size_bytes"]))
        case "tmp_free":
            return brokered.TmpFree("")
        case "ws_commit" | "ws_discard" | "ws_pending":
            return from_json({"op": kind, **{name: op[name] for name in ("exec_id", "force") if name in op}})
        case "ws_snapshot" | "ws_snapshots" | "ws_restore" | "ws_reset" | "ws_diff":
            return from_json({"op": kind, **{name: value for name, value in op.items() if name != "kind"}})
        case "ws_snapshot_delete" | "ws_checkout":
            return from_json({"op": kind, **{name: value for name, value in op.items() if name != "kind"}})
        case "secret_use":
            return needs.SecretUse(_text(op["name"]))
        case "port_open":
            return needs.PortOpen(_number(op["port"]))
        case "gpu_use":
            return needs.GpuUse(_text(op["gpu_class"]))
        case "host_use":
            return needs.HostUse(_text(op["path"]))
        case "fs_read" | "fs_list" | "fs_stat" | "fs_mkdir" | "fs_delete":
            on_path: dict[str, Callable[[str], Operation]] = {
                "fs_read": brokered.FsRead,
                "fs_list": brokered.FsList,
                "fs_stat": brokered.FsStat,
                "fs_mkdir": brokered.FsMkdir,
            }
            return on_path.get(kind, brokered.FsDelete)(_text(op["path"]))
        case _:
            return CannotTell(f"this version knows no operation {str(kind)[:40]!r}")


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("not text")
    return value


def _number(value: object) -> int:
    if type(value) is not int or value < 0:
        raise TypeError("not a number")
    return value


def _size_of(argument: str) -> str:
    size = len(argument) if argument.isascii() else len(argument.encode("utf-8", "surrogatepass"))
    return f"[{size} bytes]"


def _is_unicode(value: object) -> bool:
    try:
        str(value).encode()
    except UnicodeEncodeError:
        return False
    return True
