"""Turn a word of bash into the text it always has; what only the running shell knows is None."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringfence.risk.grammar import text_of

if TYPE_CHECKING:
    from tree_sitter import Node

# Kinds of node that can be one argument, or a part of one.
WORDS = frozenset({"word", "number", "string", "raw_string", "ansi_c_string", "concatenation", "command_name"})

_GLOB = frozenset("*?[]")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v", "e": "\x1b", "E": "\x1b"}
_DEEPEST = 20


def literal(node: Node, depth: int = 0) -> str | None:
    """Return the text of the word `node`, or None if expansion, globbing or braces decide it."""
    kind, text = node.type, text_of(node)
    if depth > _DEEPEST:
        return None
    if "{}" in text and kind in ("word", "concatenation"):
        # an empty pair is no brace expansion: `find -exec` and `xargs -I{}` put a name there
        rest = text.replace("{}", "")
        return text if _bare(rest) == rest else None
    if kind == "word":
        return _bare(text)
    if kind == "number":
        return text if not node.named_child_count else None
    if kind == "raw_string":
        return text[1:-1]
    if kind == "string":
        return _double_quoted(text)
    if kind == "ansi_c_string":
        return _ansi_c(text[2:-1])
    if kind == "command_name":
        return literal(node.children[0], depth + 1) if node.child_count == 1 else None
    if kind == "concatenation":
        return _concatenated(node, depth)
    return None


def _concatenated(node: Node, depth: int) -> str | None:
    parts: list[str] = []
    end = node.start_byte
    for child in node.children:
        # bytes between two children would be bytes nobody judged
        part = literal(child, depth + 1) if child.is_named and child.start_byte == end else None
        if part is None:
            return None
        parts.append(part)
        end = child.end_byte
    return "".join(parts)


def _bare(text: str) -> str | None:
    if text[:1] == "~" or ":~" in text or "=~" in text:
        return None
    plain: list[str] = []
    characters = iter(text)
    for character in characters:
        if character == "\\":
            escaped = next(characters, None)
            if escaped is None:
                return None
            if escaped != "\n":
                plain.append(escaped)
        elif character in _GLOB or character in "{}$`'\"" or character < " ":
            return None
        else:
            plain.append(character)
    return "".join(plain)


def _double_quoted(text: str) -> str | None:
    if text[:1] != '"' or text[-1:] != '"' or len(text) < 2:  # `$"…"` is translated at run time
        return None
    plain: list[str] = []
    characters = iter(text[1:-1])
    for character in characters:
        if character in "$`":
            return None
        if character != "\\":
            plain.append(character)
            continue
        escaped = next(characters, None)
        if escaped is None:
            return None
        if escaped in '$`"\\':
            plain.append(escaped)
        elif escaped != "\n":
            plain += ["\\", escaped]
    return "".join(plain)


def _ansi_c(text: str) -> str | None:
    r"""Decode the inside of `$'…'`; None for what it may not contain, such as `\0`."""
    plain: list[str] = []
    at = 0
    while at < len(text):
        if text[at] != "\\":
            plain.append(text[at])
            at += 1
            continue
        letter = text[at + 1 : at + 2]
        if letter in _ESCAPES:
            plain.append(_ESCAPES[letter])
            at += 2
        elif letter and letter in "\\'\"?":
            plain.append(letter)
            at += 2
        else:
            digits, base, skip = _digits(text, at, letter)
            code = int(digits, base) if digits else 0
            if not 0 < code < 0x110000 or 0xD800 <= code < 0xE000:
                return None
            plain.append(chr(code))
            at += skip + len(digits)
    return "".join(plain)


def _digits(text: str, at: int, letter: str) -> tuple[str, int, int]:
    longest = {"x": 2, "u": 4, "U": 8}.get(letter)
    if longest is not None:
        return _leading(text[at + 2 : at + 2 + longest], "0123456789abcdefABCDEF"), 16, 2
    return _leading(text[at + 1 : at + 4], "01234567"), 8, 1


def _leading(text: str, allowed: str) -> str:
    return text[: len(text) - len(text.lstrip(allowed))]
