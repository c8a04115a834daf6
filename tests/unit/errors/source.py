"""Read off the source, without running it, which error is made with which reason."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Given:
    """One place where an error is made; `reason` is `None` where it cannot be told."""

    where: str
    code: str
    reason: str | None


def reasons_given(sources: Mapping[Path, ast.Module], base: tuple[str, str]) -> Iterator[Given]:
    """Yield every reason that the source gives an error; `base` is the code and default reason of `RingfenceError`."""
    kinds = error_classes(sources.values(), base)
    calls = [node for tree in sources.values() for node in ast.walk(tree) if isinstance(node, ast.Call)]
    for path, tree in sources.items():
        walk = _Walk(path, kinds, calls)
        walk.visit(tree)
        yield from walk.found


def error_classes(trees: Iterable[ast.Module], base: tuple[str, str]) -> dict[str, tuple[str, str]]:
    """Return the name of every error class with its code and default reason, its own or inherited."""
    known = {"RingfenceError": base}
    definitions = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    while True:
        fresh = [node for node in definitions if node.name not in known and _base_of(node) in known]
        if not fresh:
            return known
        for node in fresh:
            own = {
                target.id: ast.literal_eval(item.value)
                for item in node.body
                if isinstance(item, ast.Assign)
                for target in item.targets
                if isinstance(target, ast.Name) and target.id in ("code", "default_reason")
            }
            code, reason = known[_base_of(node)]
            known[node.name] = (own.get("code", code), own.get("default_reason", reason))


def _base_of(node: ast.ClassDef) -> str:
    return node.bases[0].id if node.bases and isinstance(node.bases[0], ast.Name) else ""


class _Walk(ast.NodeVisitor):
    def __init__(self, path: Path, kinds: dict[str, tuple[str, str]], calls: list[ast.Call]) -> None:
        self.found: list[Given] = []
        self._path, self._kinds, self._calls = path, kinds, calls
        self._classes: list[str] = []
        self._functions: list[ast.FunctionDef | ast.AsyncFunctionDef] = []

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._classes.append(node.name)
        self.generic_visit(node)
        self._classes.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._inside(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._inside(node)

    def _inside(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._functions.append(node)
        self.generic_visit(node)
        self._functions.pop()

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        made = self._error_made_by(node)
        if made is None:
            return
        code, default = self._kinds[made]
        written = next((word.value for word in node.keywords if word.arg == "reason"), ast.Constant(default))
        for reason in self._texts(written):
            self.found.append(Given(f"{self._path.name}:{node.lineno}", code, reason))

    def _error_made_by(self, node: ast.Call) -> str | None:
        match node.func:
            case ast.Name(id=name) if name in self._kinds:
                return name
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr="__init__"):
                own = self._classes[-1] if self._classes else ""
                return own if own in self._kinds and own != "RingfenceError" else None
            case _:
                return None

    def _texts(self, written: ast.expr) -> list[str | None]:
        """Return what the expression can be: a text, one of two, or what callers give as the parameter it names."""
        match written:
            case ast.Constant(value=str(text)):
                return [text]
            case ast.IfExp(body=one, orelse=other):
                return self._texts(one) + self._texts(other)
            case ast.Name(id=name):
                return self._given_as(name)
            case ast.JoinedStr(values=[ast.Constant(value=str(before)), ast.FormattedValue(value=ast.Name(id=name))]):
                return [None if text is None else before + text for text in self._given_as(name)]
            case _:
                return [None]

    def _given_as(self, parameter: str) -> list[str | None]:
        if not self._functions:
            return [None]
        function = self._functions[-1]
        positional = [argument.arg for argument in function.args.args if argument.arg not in ("self", "cls")]
        known = {*positional, *(argument.arg for argument in function.args.kwonlyargs)}
        texts: list[str | None] = []
        for call in self._calls if parameter in known else ():
            if getattr(call.func, "id", getattr(call.func, "attr", None)) != function.name:
                continue
            named = next((word.value for word in call.keywords if word.arg == parameter), None)
            place = positional.index(parameter) if parameter in positional else len(call.args)
            value = named or (call.args[place] if place < len(call.args) else None)
            texts.append(value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else None)
        return texts or [None]
