"""Assess JavaScript and TypeScript by their grammar, so that an escaped or computed name is read as Node reads it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ringfence.authority.levels import RiskLevel
from ringfence.risk.assessment import Refusal, RiskAssessment, Sign, assessed, refused
from ringfence.risk.grammar import GrammarMissing, TooComplex, line_of, parse, text_of, walk
from ringfence.risk.sensitive import sensitive
from ringfence.risk.vocabulary import names

if TYPE_CHECKING:
    from tree_sitter import Node

_PURE_MODULES = names("path util url assert events querystring string_decoder punycode buffer timers perf_hooks stream")
_MODULES = {
    **dict.fromkeys(names("os zlib crypto readline console constants"), (RiskLevel.LOW, "reaches the system")),
    **dict.fromkeys(names("fs process tty"), (RiskLevel.MEDIUM, "reaches files or the process")),
    **dict.fromkeys(names("child_process cluster worker_threads"), (RiskLevel.HIGH, "starts processes or threads")),
    **dict.fromkeys(
        names("net http https http2 dgram tls dns axios node-fetch got ws undici request"),
        (RiskLevel.HIGH, "reaches the network"),
    ),
    **dict.fromkeys(names("vm module repl inspector v8 wasi"), (RiskLevel.HIGH, "runs or builds code at run time")),
}
_GLOBALS = {
    **dict.fromkeys(names("eval Function WebAssembly"), (RiskLevel.HIGH, "runs or builds code at run time")),
    **dict.fromkeys(names("GeneratorFunction AsyncFunction"), (RiskLevel.HIGH, "runs or builds code at run time")),
    **dict.fromkeys(names("fetch WebSocket XMLHttpRequest EventSource"), (RiskLevel.HIGH, "reaches the network")),
    **dict.fromkeys(names("globalThis global window self"), (RiskLevel.HIGH, "reaches every global by name")),
    **dict.fromkeys(names("Deno Bun Worker SharedArrayBuffer Atomics"), (RiskLevel.HIGH, "reaches the system")),
    **dict.fromkeys(names("process module exports __dirname __filename"), (RiskLevel.MEDIUM, "reaches the process")),
    **dict.fromkeys(names("Reflect Proxy"), (RiskLevel.MEDIUM, "reaches properties by computed text")),
}
_PROPERTIES = {
    **dict.fromkeys(names("constructor"), (RiskLevel.HIGH, "leads from any value to Function")),
    **dict.fromkeys(names("__proto__ __defineGetter__ __lookupGetter__"), (RiskLevel.HIGH, "changes every object")),
    **dict.fromkeys(
        names("mainModule binding _linkedBinding dlopen _load getBuiltinModule createRequire"),
        (RiskLevel.HIGH, "reaches native or hidden modules"),
    ),
    **dict.fromkeys(names("setPrototypeOf getPrototypeOf prepareStackTrace"), (RiskLevel.MEDIUM, "climbs prototypes")),
    **dict.fromkeys(names("execSync spawnSync execFile execFileSync"), (RiskLevel.HIGH, "starts processes")),
    **dict.fromkeys(names("rmSync rmdirSync unlinkSync"), (RiskLevel.MEDIUM, "removes files")),
    **dict.fromkeys(names("eval Function"), (RiskLevel.HIGH, "runs or builds code at run time")),
}
_RUNNERS = names("eval Function")
_DELAYS = names("setTimeout setInterval setImmediate")
_DECODERS = names("atob unescape decodeURIComponent fromCharCode fromCodePoint from toString inflateSync gunzipSync")
_ESCAPE = re.compile(r"\\(?:u\{([0-9a-fA-F]{1,6})\}|u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_LETTERS = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "\n": ""}
_DEEPEST = 30
_LONGEST = 4096


def assess_javascript(code: str, language: str = "javascript") -> RiskAssessment:
    """Return what `code` would reach, from its syntax tree alone; nothing of it runs."""
    signs: list[Sign] = []
    try:
        root = parse(language, code.encode())
        for node in walk(root):
            look = _LOOK.get(node.type)
            if look is not None:
                look(node, signs)
    except GrammarMissing as missing:
        return refused(language, Refusal.GRAMMAR_MISSING, str(missing))
    except TooComplex as bound:
        return refused(language, Refusal.TOO_COMPLEX, str(bound), signs)
    except UnicodeEncodeError:
        return refused(language, Refusal.UNPARSABLE, "not valid Unicode text")
    if root.has_error:
        return refused(language, Refusal.UNPARSABLE, f"not valid {language}, or beyond the grammar", signs)
    return assessed(language, signs)


def _say(signs: list[Sign], pattern: str, known: tuple[RiskLevel, str], node: Node) -> None:
    signs.append(Sign(pattern, known[0], known[1], line_of(node)))


def _judge_module(module: str | None, node: Node, signs: list[Sign]) -> None:
    if module is None:
        _say(signs, "computed import", (RiskLevel.HIGH, "imports a module whose name is computed"), node)
        return
    root = module.removeprefix("node:").partition("/")[0]
    if root in _PURE_MODULES:
        return
    known = _MODULES.get(root) or (RiskLevel.MEDIUM, "a module nobody here knows")
    _say(signs, f"import {module[:80]}", known, node)


def _look_at_import(node: Node, signs: list[Sign]) -> None:
    source = node.child_by_field_name("source")
    if source is not None:
        _judge_module(_fold(source), node, signs)


def _look_at_require_clause(node: Node, signs: list[Sign]) -> None:
    # TypeScript's `import fs = require("fs")`
    texts = [child for child in node.named_children if child.type == "string"]
    _judge_module(_fold(texts[0]) if texts else None, node, signs)


def _look_at_call(node: Node, signs: list[Sign]) -> None:
    function = node.child_by_field_name("function") or node.child_by_field_name("constructor")
    arguments = node.child_by_field_name("arguments")
    if function is None or arguments is None:
        return
    first = arguments.named_children[0] if arguments.named_child_count else None
    name = _name(function) if function.type == "identifier" else text_of(function)[:16]
    if function.type == "import" or name == "require":
        _judge_module(None if first is None else _fold(first), node, signs)
    elif name in _RUNNERS and _holds_decoder(arguments):
        _say(signs, f"decoded {name}", (RiskLevel.CRITICAL, "runs code that was hidden by an encoding"), node)
    elif (
        name in _DELAYS
        and first is not None
        and first.type not in ("arrow_function", "function_expression", "identifier")
    ):
        _say(signs, f"{name} of text", (RiskLevel.MEDIUM, "may run text as code"), node)


def _look_at_name(node: Node, signs: list[Sign]) -> None:
    name = _name(node)
    known = _GLOBALS.get(name)
    if known is not None:
        _say(signs, name, known, node)
    elif name == "require":
        # a plain call is judged by its module; any mention makes it at least a reader of the workspace
        _say(signs, "require", (RiskLevel.LOW, "loads modules"), node)


def _look_at_property(node: Node, signs: list[Sign]) -> None:
    name = _name(node)
    known = _PROPERTIES.get(name)
    if known is not None:
        _say(signs, name, known, node)


def _look_at_subscript(node: Node, signs: list[Sign]) -> None:
    index = node.child_by_field_name("index")
    if index is None or index.type == "number":
        return
    text = _fold(index)
    if text is None:
        _say(signs, "computed property", (RiskLevel.LOW, "reaches a property known only when it runs"), node)
        return
    known = _PROPERTIES.get(text) or _GLOBALS.get(text)
    if known is not None:
        _say(signs, text, known, node)


def _look_at_text(node: Node, signs: list[Sign]) -> None:
    found = sensitive(_unescaped(text_of(node)[1:-1][:_LONGEST]))
    if found is not None:
        _say(signs, f"names {found[0]}", (found[1], "a place programs have no business with"), node)


def _look_at_with(node: Node, signs: list[Sign]) -> None:
    _say(signs, "with", (RiskLevel.MEDIUM, "changes what names mean"), node)


_LOOK = {
    "import_statement": _look_at_import,
    "export_statement": _look_at_import,
    "import_require_clause": _look_at_require_clause,
    "call_expression": _look_at_call,
    "new_expression": _look_at_call,
    "identifier": _look_at_name,
    "shorthand_property_identifier": _look_at_name,
    "property_identifier": _look_at_property,
    "shorthand_property_identifier_pattern": _look_at_property,
    "subscript_expression": _look_at_subscript,
    "computed_property_name": _look_at_subscript,
    "string": _look_at_text,
    "template_string": _look_at_text,
    "with_statement": _look_at_with,
}


def _name(node: Node) -> str:
    r"""Return an identifier as the engine reads it: `ev\u0061l` is eval."""
    text = text_of(node)
    return _unescaped(text) if "\\" in text else text


def _fold(node: Node, depth: int = 0) -> str | None:
    """Return the text that `node` always has, or None when that cannot be told from here."""
    if depth > _DEEPEST:
        return None
    if node.type == "string":
        return _unescaped(text_of(node)[1:-1][:_LONGEST])
    if node.type == "template_string":
        text = text_of(node)[1:-1][:_LONGEST]
        return None if "${" in text else _unescaped(text)
    if node.type == "parenthesized_expression" and node.named_child_count == 1:
        return _fold(node.named_children[0], depth + 1)
    if node.type == "binary_expression":
        left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
        operator = node.child_by_field_name("operator")
        if left is None or right is None or operator is None or operator.type != "+":
            return None
        before, after = _fold(left, depth + 1), _fold(right, depth + 1)
        return None if before is None or after is None else (before + after)[:_LONGEST]
    return None


def _unescaped(text: str) -> str:
    def plain(match: re.Match[str]) -> str:
        digits = match[1] or match[2] or match[3]
        if digits:
            code = int(digits, 16)
            return chr(code) if code < 0x110000 else ""
        return _LETTERS.get(match[4], match[4])

    return _ESCAPE.sub(plain, text) if "\\" in text else text


def _holds_decoder(node: Node) -> bool:
    stack = [node]
    for _ in range(500):
        if not stack:
            return False
        part = stack.pop()
        if part.type in ("identifier", "property_identifier") and _name(part) in _DECODERS:
            return True
        stack.extend(part.named_children)
    return True
