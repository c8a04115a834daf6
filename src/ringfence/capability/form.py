"""Capabilities as JSON and as text: the closed union, where an unknown kind or field is an error and never ignored."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from ringfence.capability.kind import Kind, invalid

if TYPE_CHECKING:
    from ringfence.capability.browser import BrowserUse
    from ringfence.capability.code import CodeRun
    from ringfence.capability.exact import PortOpen, SecretUse, SysGpu, TmpUse
    from ringfence.capability.fs import FsHost, FsList, FsRead, FsWrite
    from ringfence.capability.net import NetHttp
    from ringfence.capability.process import ProcExec

    Capability: TypeAlias = (
        FsRead
        | FsWrite
        | FsList
        | NetHttp
        | BrowserUse
        | ProcExec
        | TmpUse
        | SysGpu
        | CodeRun
        | SecretUse
        | PortOpen
        | FsHost
    )

# Add-only. The modules are imported when a capability of theirs is met, because most runs meet one kind.
_HOMES: dict[str, tuple[str, str, frozenset[str]]] = {
    "FsRead": ("fs", "fs.read", frozenset({"path", "only"})),
    "FsWrite": ("fs", "fs.write", frozenset({"path", "only"})),
    "FsList": ("fs", "fs.list", frozenset({"path", "only"})),
    "NetHttp": ("net", "net.http", frozenset({"host", "port", "scheme", "methods", "paths"})),
    "BrowserUse": ("browser", "browser.use", frozenset({"scope"})),
    "ProcExec": ("process", "proc.exec", frozenset({"tool", "templates"})),
    "TmpUse": ("exact", "tmp.use", frozenset()),
    "SysGpu": ("exact", "sys.gpu", frozenset({"class"})),
    "CodeRun": ("code", "code.run", frozenset({"language"})),
    "SecretUse": ("exact", "secret.use", frozenset({"name"})),
    "PortOpen": ("exact", "port.open", frozenset({"port"})),
    "FsHost": ("fs", "fs.host", frozenset({"path"})),
}
KINDS = tuple(_HOMES)


def to_json(capability: Kind) -> dict[str, Any] | str:
    """Return `{"Kind": {fields}}`, or `"Kind"` where there are none."""
    fields = capability.fields()
    return {capability.tag: fields} if fields else capability.tag


def from_json(form: object) -> Capability:
    """Read what `to_json` returns.

    Raises:
        InvalidRequest: The kind or a field is unknown, or a value is wrong.
    """
    match form:
        case str(tag):
            fields: Any = {}
        case dict() if len(form) == 1:
            tag, fields = next(iter(form.items()))
        case _:
            raise invalid("capability", 'must be {"Kind": {fields}}')
    if tag not in _HOMES:
        raise invalid("capability", f"{str(tag)[:100]!r} is not one of {', '.join(_HOMES)}")
    known = _HOMES[tag][2]
    if not isinstance(fields, dict):
        raise invalid(tag, "its fields must be an object")
    unknown = fields.keys() - known
    if unknown:
        raise invalid(tag, f"{min(map(str, unknown))[:100]!r} is not a field of it")
    return cast("Capability", kind_of(tag).read(fields))


def parse(text: str) -> Capability:
    """Read the string form `domain.action:resource`.

    Raises:
        InvalidRequest: It names no capability.
    """
    name, _, resource = text.partition(":")
    for tag, (_, known, _) in _HOMES.items():
        if known == name:
            return cast("Capability", kind_of(tag).parse(resource))
    names = ", ".join(name for _, name, _ in _HOMES.values())
    raise invalid("capability", f"{text[:100]!r} does not begin with one of {names}")


def kind_of(tag: str) -> type[Kind]:
    """Return the kind that JSON calls `tag`, which must be one of `KINDS`."""
    module = import_module(f"ringfence.capability.{_HOMES[tag][0]}")
    return cast("type[Kind]", getattr(module, tag))
