"""Fold the constant expressions with which Python code hides a name: joins, reversals, character codes."""

from __future__ import annotations

import ast

_DEEPEST = 40
_LONGEST = 4096


def fold(node: ast.AST, depth: int = 0) -> str | None:
    """Return the text that `node` always has, or None when that cannot be told from here."""
    if depth > _DEEPEST:
        return None
    if isinstance(node, ast.Constant):
        return _constant(node.value)
    if isinstance(node, ast.BinOp):
        return _operation(node, depth)
    if isinstance(node, ast.JoinedStr):
        return _joined([fold(part, depth + 1) for part in node.values], "")
    if isinstance(node, ast.FormattedValue):
        return fold(node.value, depth + 1) if node.format_spec is None else None
    if isinstance(node, ast.Subscript):
        return _reversed(node, depth)
    if isinstance(node, ast.Call):
        return _call(node, depth)
    return None


def _constant(value: object) -> str | None:
    if isinstance(value, str):
        return value[:_LONGEST]
    if isinstance(value, bytes):
        return value[:_LONGEST].decode("latin-1")
    return None


def _operation(node: ast.BinOp, depth: int) -> str | None:
    left = fold(node.left, depth + 1)
    if left is None:
        return None
    if isinstance(node.op, ast.Add):
        right = fold(node.right, depth + 1)
        return None if right is None else (left + right)[:_LONGEST]
    if isinstance(node.op, ast.Mod) and left.count("%s") == left.count("%"):
        values = node.right.elts if isinstance(node.right, ast.Tuple) else [node.right]
        texts = [fold(value, depth + 1) for value in values]
        if None not in texts and len(texts) == left.count("%s"):
            return (left % tuple(texts))[:_LONGEST]
    return None


def _reversed(node: ast.Subscript, depth: int) -> str | None:
    step = node.slice
    if not (isinstance(step, ast.Slice) and step.lower is None and step.upper is None):
        return None
    minus = step.step
    if not (isinstance(minus, ast.UnaryOp) and isinstance(minus.op, ast.USub) and _number(minus.operand) == 1):
        return None
    text = fold(node.value, depth + 1)
    return None if text is None else text[::-1]


def _call(node: ast.Call, depth: int) -> str | None:
    called, arguments = node.func, node.args
    if isinstance(called, ast.Name) and len(arguments) == 1:
        if called.id == "chr":
            code = _number(arguments[0])
            return chr(code) if code is not None and 0 <= code < 0x110000 else None
        return fold(arguments[0], depth + 1) if called.id == "str" else None
    if not isinstance(called, ast.Attribute):
        return None
    if called.attr == "join" and len(arguments) == 1 and isinstance(arguments[0], ast.List | ast.Tuple):
        between = fold(called.value, depth + 1)
        parts = [fold(part, depth + 1) for part in arguments[0].elts[:_LONGEST]]
        return None if between is None else _joined(parts, between)
    if called.attr == "join" and len(arguments) == 1:
        between, text = fold(called.value, depth + 1), fold(arguments[0], depth + 1)
        return None if between is None or text is None else between.join(text)[:_LONGEST]
    if called.attr == "replace" and len(arguments) == 2:
        texts = [fold(part, depth + 1) for part in (called.value, *arguments)]
        if texts[0] is None or texts[1] is None or texts[2] is None or len(texts[2]) > 8:
            return None
        return texts[0].replace(texts[1], texts[2])[:_LONGEST]
    if called.attr in ("decode", "lower", "strip", "upper") and len(arguments) <= 1:
        text = fold(called.value, depth + 1)
        if text is None or called.attr == "decode":
            return text
        return {"lower": text.lower, "upper": text.upper, "strip": text.strip}[called.attr]()
    return None


def _joined(parts: list[str | None], between: str) -> str | None:
    texts = [part for part in parts if part is not None]
    return between.join(texts)[:_LONGEST] if len(texts) == len(parts) else None


def _number(node: ast.AST) -> int | None:
    return node.value if isinstance(node, ast.Constant) and type(node.value) is int else None
