"""Read a `manifest.json`: every problem is found, with the path to it and what would mend it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from ringfence.authority import strict_json
from ringfence.authority.finding import Finding, Severity, errors, refuse_errors
from ringfence.authority.levels import SAFETY_CLASSES, SideEffect
from ringfence.authority.limit_names import Stated, read_limit
from ringfence.authority.manifest import DEFAULT_SAFETY, DEFAULT_SIDE_EFFECTS, Manifest, Runtime
from ringfence.authority.policy import EMPTY
from ringfence.capability.capabilities import Capabilities
from ringfence.capability.form import from_json, parse
from ringfence.dataclass import replace
from ringfence.errors import InvalidRequest

_T = TypeVar("_T")
MAX_BYTES = 1024 * 1024
SCHEMA_VERSIONS = (1,)
MAX_FETCHES = 8
ID = re.compile(r"[a-z0-9]+(\.[a-z0-9]+)+\Z")
_INPUT_NAME = re.compile(r"[A-Za-z0-9_]{1,64}\Z")
_AREAS = ("inputs", "work", "artifacts")
_LANGUAGES = {"bash": "bash", "sh": "bash", "python": "python", "python3": "python", "node": "javascript"}

_TOP = ("schema_version", "id", "name", "description", "interface", "runtime", "permissions", "limits",
        "version", "safety_class", "side_effect")  # fmt: skip
_REQUIRED = ("schema_version", "id", "name", "description", "interface", "runtime", "permissions")


def load_manifest(content: bytes, *, directory: str | None = None, file: str = "manifest.json") -> Manifest:
    """Read a manifest that will be used; `directory` is the name of the folder it lies in.

    Raises:
        InvalidRequest: It has an error; the first is in the message, with its path and what would mend it.
    """
    manifest, findings = read_manifest(content, directory=directory, file=file)
    refuse_errors(findings, reason="invalid_manifest")
    return manifest


def read_manifest(
    content: bytes, *, directory: str | None = None, file: str = "manifest.json"
) -> tuple[Manifest, list[Finding]]:
    """Read what can be read of a manifest, and say everything that is wrong with the rest."""
    reader = _Reader(file)
    try:
        if len(content) > MAX_BYTES:
            raise ValueError(f"it is larger than {MAX_BYTES} bytes")
        form = strict_json.read(content)
    except (ValueError, RecursionError) as error:
        reader.note("json", "", f"this is not JSON: {error}", "write one JSON object, in UTF-8, and no key twice")
        return Manifest("invalid.manifest"), reader.findings
    manifest = replace(_manifest(reader, form), text=content)
    if directory is not None and directory != manifest.id and not errors(reader.findings):
        reader.note("directory", "id", f"{manifest.id!r} lies in the folder {directory!r}", "give both the same name")
    return manifest, reader.findings


class _Reader:
    def __init__(self, file: str) -> None:
        self.file = file
        self.findings: list[Finding] = []

    def note(self, rule: str, path: str, message: str, fix: str, severity: Severity = Severity.ERROR) -> None:
        self.findings.append(Finding(severity, rule, path, message, fix, self.file))

    def fields(self, form: Any, path: str, known: Iterable[str], required: Iterable[str] = ()) -> dict[str, Any]:
        known = tuple(known)
        if not isinstance(form, dict):
            self.note("wrong_type", path, "must be an object", "write {…}")
            return {}
        for key in form.keys() - set(known):
            self.note(
                "unknown_field", f"{path}.{key}".lstrip("."), "is not a field", f"the fields are {', '.join(known)}"
            )
        for key in required:
            if key not in form:
                self.note("missing_field", f"{path}.{key}".lstrip("."), "is missing", "add it")
        return {key: form[key] for key in known if key in form}

    def value(self, fields: dict[str, Any], key: str, path: str, read: Callable[[Any], _T], default: _T) -> _T:
        if key not in fields:
            return default
        try:
            return read(fields[key])
        except InvalidRequest as error:
            self.note("invalid_value", f"{path}.{key}".lstrip("."), str(error), error.fix or "see docs/skills.md")
            return default


def _manifest(reader: _Reader, form: Any) -> Manifest:
    fields = reader.fields(form, "", _TOP, _REQUIRED)
    sides = ("inputs", "outputs")
    interface = reader.fields(fields.get("interface", {}), "interface", sides, _given(fields, "interface", *sides))
    runtime = _runtime(reader, fields)
    return Manifest(
        id=reader.value(fields, "id", "", _id, "invalid.manifest"),
        name=reader.value(fields, "name", "", _text, ""),
        description=reader.value(fields, "description", "", _text, ""),
        schema_version=reader.value(fields, "schema_version", "", _schema_version, 1),
        version=reader.value(fields, "version", "", _text, ""),
        input_schema=reader.value(interface, "inputs", "interface", _schema, EMPTY),
        output_schema=reader.value(interface, "outputs", "interface", _schema, EMPTY),
        runtime=runtime,
        capabilities=_permissions(reader, fields, runtime),
        fetches=_fetches(reader, fields, interface),
        limits=_limits(reader, fields.get("limits", {})),
        safety_class=reader.value(fields, "safety_class", "", _safety, DEFAULT_SAFETY),
        side_effects=reader.value(fields, "side_effect", "", _side_effects, DEFAULT_SIDE_EFFECTS),
    )


def _runtime(reader: _Reader, fields: dict[str, Any]) -> Runtime:
    names = ("kind", "image", "entrypoint")
    runtime = reader.fields(fields.get("runtime", {}), "runtime", names, _given(fields, "runtime", *names))
    return Runtime(
        kind=reader.value(runtime, "kind", "runtime", _kind, "docker"),
        image=reader.value(runtime, "image", "runtime", _text, ""),
        entrypoint=reader.value(runtime, "entrypoint", "runtime", _words, ()),
    )


def _permissions(reader: _Reader, fields: dict[str, Any], runtime: Runtime) -> Capabilities:
    from ringfence.capability.code import CodeRun
    from ringfence.capability.fs import FsList, FsRead, FsWrite
    from ringfence.operation.code import Language, parse_language

    permissions = reader.fields(fields.get("permissions", {}), "permissions", ("fs", "net", "run", "capabilities"))
    granted: list[Any] = []
    fs = reader.fields(permissions.get("fs", {}), "permissions.fs", ("read", "write"))
    for key, kinds in (("read", (FsRead, FsList)), ("write", (FsWrite,))):
        globs: tuple[str, ...] = reader.value(fs, key, "permissions.fs", _area_globs, ())
        granted += [kind(glob) for glob in globs for kind in kinds]
    net = reader.fields(permissions.get("net", {}), "permissions.net", ("mode", "fetch"))
    reader.value(net, "mode", "permissions.net", _net_mode, "none")
    spoken = _LANGUAGES.get(runtime.entrypoint[0].rpartition("/")[2]) if runtime.entrypoint else None
    languages = tuple(map(parse_language, [spoken] if spoken else []))
    granted += map(CodeRun, reader.value(permissions, "run", "permissions", _languages, languages))
    granted += reader.value(permissions, "capabilities", "permissions", _capabilities, ())
    if not granted and not errors(reader.findings):
        reader.note(
            "grants_nothing", "permissions", "this manifest allows nothing, so every call of it is denied",
            f"name files in fs, or one of {', '.join(Language)} in run", Severity.WARNING,
        )  # fmt: skip
    return Capabilities(granted)


def _fetches(reader: _Reader, fields: dict[str, Any], interface: dict[str, Any]) -> tuple[str, ...]:
    """Read which inputs are URLs that the host fetches; each has to be one that a call always brings."""
    permissions = fields.get("permissions")
    net = permissions.get("net") if isinstance(permissions, dict) else None
    if not isinstance(net, dict) or "fetch" not in net:
        return ()
    names: tuple[str, ...] = reader.value(net, "fetch", "permissions.net", _input_names, ())
    inputs = interface.get("inputs")
    required = inputs.get("required") if isinstance(inputs, dict) else None
    for name in names:
        if not isinstance(required, list) or name not in required:
            reader.note(
                "invalid_value", "permissions.net.fetch", f"{name!r} is not an input that is required",
                "require it in interface.inputs",
            )  # fmt: skip
    return names


def _limits(reader: _Reader, form: Any) -> Stated:
    if not isinstance(form, dict):
        reader.note("wrong_type", "limits", "must be an object", "write {…}")
        return {}
    read: dict[str, float] = {}
    for name, value in form.items():
        try:
            limit, amount = read_limit(name, value)
        except InvalidRequest as error:
            reader.note("invalid_value", f"limits.{name}", str(error), error.fix or "write a number above 0")
            continue
        read[limit] = amount
    return read


def _given(fields: dict[str, Any], group: str, *names: str) -> tuple[str, ...]:
    """Report a group's missing fields only when the group itself is there."""
    return names if group in fields else ()


def _id(value: Any) -> str:
    if not isinstance(value, str) or not ID.match(value):
        raise _wrong(f"{value!r} is not an id such as shell.run", "use lower-case words joined by dots")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > 10_000:
        raise _wrong("must be text", "write some")
    return value


def _words(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not value or not all(isinstance(word, str) and word for word in value):
        raise _wrong("must be a list of texts", 'write ["bash", "-lc"]')
    return tuple(value)


def _schema_version(value: Any) -> int:
    if type(value) is not int or value not in SCHEMA_VERSIONS:
        raise _wrong(f"{value!r} is not a version of the schema", f"write {SCHEMA_VERSIONS[-1]}")
    return value


def _schema(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong("must be a JSON Schema", "write an object")
    return value


def _kind(value: Any) -> str:
    if value != "docker":
        raise _wrong(f"{value!r} is not a kind of runtime in schema 1", "write docker")
    return "docker"


def _net_mode(value: Any) -> str:
    if value != "none":
        raise _wrong(f"{value!r} is not allowed in schema 1", "write none, and reach the network by brokered requests")
    return "none"


def _input_names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not 0 < len(value) <= MAX_FETCHES:
        raise _wrong(f"must be a list of at most {MAX_FETCHES} inputs", 'write ["url"]')
    if not all(isinstance(name, str) and _INPUT_NAME.match(name) for name in value) or len(set(value)) != len(value):
        raise _wrong("must name inputs, each once, in letters, digits and underscores", 'write ["url"]')
    return tuple(value)


def _safety(value: Any) -> Any:
    known = {str(level): level for level in SAFETY_CLASSES}
    if not isinstance(value, str) or value.lower() not in known:
        raise _wrong(f"{value!r} is not a safety class", f"write one of {', '.join(known)}")
    return known[value.lower()]


def _side_effects(value: Any) -> frozenset[SideEffect]:
    words = value if isinstance(value, list) else [value]
    try:
        return frozenset(SideEffect(word.lower()) for word in words)
    except (ValueError, AttributeError):
        raise _wrong(f"{value!r} is not a side effect", f"write one of {', '.join(SideEffect)}") from None


def _area_globs(value: Any) -> Any:
    from ringfence.capability.glob import path_glob

    if not isinstance(value, list) or not all(isinstance(glob, str) for glob in value):
        raise _wrong("must be a list of globs", 'write ["inputs/**"]')
    for glob in value:
        path_glob(glob)
        if glob.split("/")[0] not in _AREAS or "/" not in glob:
            raise _wrong(f"{glob!r} lies in none of {', '.join(_AREAS)}", "begin it with inputs/, work/ or artifacts/")
        if not {"", "."}.isdisjoint(glob.split("/")):  # the published schema takes one spelling of a path
            raise _wrong(
                f"{glob!r} has a name that is empty or '.'", "write work/** for all of work, and no '//' or '.'"
            )
    return tuple(value)


def _languages(value: Any) -> tuple[Any, ...]:
    from ringfence.operation.code import parse_language

    if not isinstance(value, list):
        raise _wrong("must be a list of languages", 'write ["python"]')
    return tuple(map(parse_language, value))


def _capabilities(value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise _wrong("must be a list of capabilities", 'write ["fs.read:/workspace/inputs"] or [{"FsRead": {…}}]')
    return tuple(parse(item) if isinstance(item, str) and item != "TmpUse" else from_json(item) for item in value)


def _wrong(problem: str, fix: str) -> InvalidRequest:
    return InvalidRequest(problem, reason="invalid_value", fix=fix)
