"""YAML as a plain tree that knows its lines, read event by event: nothing is constructed, nothing is repeated.

Stricter than YAML: one document, no anchors (so no bombs), no tags (so no objects), no key twice, nothing that cannot
be seen, and the words of YAML 1.2, where `no` and `on` are text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ringfence.dataclass import dataclass
from ringfence.errors import InvalidRequest, RuntimeMissing

MAX_BYTES = 8 * 1024 * 1024
MAX_DEPTH = 16
_MENDING = "indent with spaces, close what was opened, and put text with special characters in quotes"

# Line ends that editors do not show, letters without width, and what turns the direction of reading: whoever looks the
# document over must see what we read.
_UNSEEN = re.compile(
    "[\\x85\\xad\\u061c\\u180e\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\ufeff\\U000e0000-\\U000e0fff]|\r(?!\n)"
)
_WORDS = {"true": True, "True": True, "false": False, "False": False, "null": None, "~": None, "": None}
# 010 is eight to some and ten to others: it stays text, which no number is read from
_WHOLE = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,14})\Z")
_REAL = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,14})\.[0-9]{1,15}\Z")


@dataclass(frozen=True, slots=True)
class Node:
    """A value and where it stands; in a mapping also where its key stands. Lines and columns count from 1."""

    value: str | int | float | bool | list[Node] | dict[str, Node] | None
    line: int
    column: int
    key_line: int = 0
    key_column: int = 0


class YamlInvalid(InvalidRequest):
    """The text is not the YAML we read; it says where."""

    def __init__(self, message: str, line: int, column: int, fix: str | None = None) -> None:
        """Keep the place as numbers."""
        super().__init__(message, reason="invalid_yaml", fix=fix, line=line, column=column)
        self.line = line
        self.column = column


def read_yaml(content: bytes) -> Node:
    """Read one document.

    Raises:
        YamlInvalid: It is not YAML, or uses more of YAML than we read.
        RuntimeMissing: There is no YAML parser on this machine.
    """
    try:
        import yaml  # a policy file is optional, and so is its parser
    except ModuleNotFoundError:
        raise RuntimeMissing(
            "reading a policy file takes PyYAML, which is not installed",
            reason="extra_missing",
            fix="pip install 'ringfence[law]'",
        ) from None
    if len(content) > MAX_BYTES:
        raise YamlInvalid(f"the document is larger than {MAX_BYTES} bytes", 1, 1, "leave out what it does not need")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise YamlInvalid("the document is not UTF-8", line, 1, "save it as UTF-8") from None
    unseen = _UNSEEN.search(text)
    if unseen is not None:
        line = text.count("\n", 0, unseen.start()) + 1
        column = unseen.start() - text.rfind("\n", 0, unseen.start())
        raise YamlInvalid(f"there is U+{ord(unseen[0]):04X}, which nobody sees", line, column, "remove it")
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return _Composer(yaml.parse(text, Loader=loader)).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        raise YamlInvalid(error.problem or "this is not YAML", line, column, _MENDING) from None
    except yaml.YAMLError as error:
        raise YamlInvalid(str(error).splitlines()[0], 1, 1, _MENDING) from None


class _Composer:
    """Turns events into nodes."""

    def __init__(self, events: Iterator[Any]) -> None:
        self._events = ((type(event).__name__, event) for event in events)

    def document(self) -> Node:
        root: Node | None = None
        for name, event in self._events:
            if name in ("StreamStartEvent", "StreamEndEvent", "DocumentStartEvent", "DocumentEndEvent"):
                continue
            if root is not None:
                raise _refused(event, "there is more than one document", "keep one policy in one file")
            root = self._node(name, event, 0)
        return root or Node(None, 1, 1)

    def _node(self, name: str, event: Any, depth: int) -> Node:
        if name == "AliasEvent" or event.anchor is not None:
            raise _refused(event, "anchors and aliases are not read", "write the value where it is meant")
        if event.tag is not None:
            raise _refused(event, f"the tag {event.tag!r} is not read", "write the plain value")
        if depth > MAX_DEPTH:
            raise _refused(event, f"nested deeper than {MAX_DEPTH}", "flatten it")
        line, column = event.start_mark.line + 1, event.start_mark.column + 1
        if name == "ScalarEvent":
            return Node(_scalar(event), line, column)
        if name == "SequenceStartEvent":
            return Node(list(self._until("SequenceEndEvent", depth)), line, column)
        return Node(self._mapping(depth), line, column)

    def _until(self, end: str, depth: int) -> Iterator[Node]:
        for name, event in self._events:
            if name == end:
                return
            yield self._node(name, event, depth + 1)

    def _mapping(self, depth: int) -> dict[str, Node]:
        entries: dict[str, Node] = {}
        for name, event in self._events:
            if name == "MappingEndEvent":
                break
            key = self._node(name, event, depth + 1)
            if not isinstance(key.value, str):
                raise _refused(event, f"the key {key.value!r} is not text", "put it in quotes")
            if key.value in entries:
                first = entries[key.value].key_line
                raise _refused(event, f"the key {key.value!r} is already on line {first}", "remove one of the two")
            node = self._node(*next(self._events), depth + 1)
            entries[key.value] = Node(node.value, node.line, node.column, key.line, key.column)
        return entries


def _scalar(event: Any) -> str | int | float | bool | None:
    text: str = event.value
    if not event.implicit[0]:  # in quotes
        return text
    if text in _WORDS:
        return _WORDS[text]
    if _WHOLE.match(text):
        return int(text)
    return float(text) if _REAL.match(text) else text


def _refused(event: Any, problem: str, fix: str) -> YamlInvalid:
    return YamlInvalid(problem, event.start_mark.line + 1, event.start_mark.column + 1, fix)
