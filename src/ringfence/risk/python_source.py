"""Assess a Python program by its syntax tree, so that no spelling, alias or joined string hides a name."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from ringfence.authority.levels import RiskLevel
from ringfence.risk.assessment import Refusal, RiskAssessment, Sign, assessed, refused
from ringfence.risk.python_names import (
    ATTRIBUTES,
    BUILTINS,
    DECODERS,
    DOTTED,
    MODULES,
    ORDINARY_DUNDERS,
    PURE_MODULES,
    PURE_PARTS,
)
from ringfence.risk.python_values import fold
from ringfence.risk.quiet import ASSESSED, hush_assessed_code
from ringfence.risk.sensitive import sensitive

LANGUAGE = "python"
MAX_SOURCE_CHARACTERS = 128 * 1024
MAX_NODES = 100_000

_IMPORTERS = frozenset({"__import__", "importlib.import_module", "importlib.__import__"})
_RUNNERS = frozenset({"eval", "exec", "compile"})
_WRITES = frozenset("wax+")
# Fields that hold no expression; leaving them out halves the walk.
_LEAFLESS = frozenset({"ctx", "op", "ops", "kind", "type_comment", "conversion", "is_async", "simple", "level"})


def assess_python(code: str) -> RiskAssessment:
    """Return what `code` would reach, from its syntax tree alone; nothing of it runs."""
    if len(code) > MAX_SOURCE_CHARACTERS:
        return refused(LANGUAGE, Refusal.TOO_LARGE, f"more than {MAX_SOURCE_CHARACTERS} characters are not analysed")
    hush_assessed_code()
    try:
        tree = ast.parse(code, ASSESSED)
    except SyntaxError as error:
        return refused(LANGUAGE, Refusal.UNPARSABLE, f"not valid Python: {error.msg} (line {error.lineno})")
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:
        return refused(LANGUAGE, Refusal.UNPARSABLE, f"Python's parser gave up: {type(error).__name__}")
    reader = _Reader()
    if not reader.collect(tree):
        return refused(LANGUAGE, Refusal.TOO_COMPLEX, f"more than {MAX_NODES} parts are not analysed")
    reader.judge()
    return assessed(LANGUAGE, reader.signs)


class _Reader:
    """Two passes: gather names and what they stand for, then judge every mention of them."""

    def __init__(self) -> None:
        self.signs: list[Sign] = []
        self._stands_for: dict[str, str] = {}
        self._decoded: set[str] = set()
        self._called: set[int] = set()
        self._mentions: list[ast.Name | ast.Attribute] = []
        self._calls: list[ast.Call] = []
        self._subscripts: list[ast.Subscript] = []
        self._imports: list[ast.Import | ast.ImportFrom] = []
        self._assignments: list[tuple[ast.expr, ast.expr]] = []

    def collect(self, tree: ast.AST) -> bool:
        """Sort the nodes by what is asked of them; say whether there were few enough."""
        stack: list[ast.AST] = [tree]
        seen = 0
        while stack:
            node = stack.pop()
            seen += 1
            if seen > MAX_NODES:
                return False
            kind = type(node)
            if kind is ast.Name or kind is ast.Attribute:
                self._mentions.append(node)  # type: ignore[arg-type]
            elif kind is ast.Constant:
                self._look_at_text(node)  # type: ignore[arg-type]
                continue
            elif kind is ast.Call:
                self._calls.append(node)  # type: ignore[arg-type]
            elif kind in _RARE:
                self._sort_rare(node)
            for name in _fields_of(kind):
                value = getattr(node, name)
                if type(value) is list:
                    stack.extend(part for part in reversed(value) if isinstance(part, ast.AST))
                elif isinstance(value, ast.AST):
                    stack.append(value)
        return True

    def judge(self) -> None:
        """Say what the gathered names reach."""
        for statement in self._imports:
            self._judge_import(statement)
        for target, value in self._assignments:
            self._learn(target, value)
        for call in self._calls:
            self._judge_call(call)
        for subscript in self._subscripts:
            self._judge_subscript(subscript)
        for mention in self._mentions:
            self._judge_mention(mention)

    def _sort_rare(self, node: ast.AST) -> None:
        if isinstance(node, ast.Import | ast.ImportFrom):
            self._imports.append(node)
        elif isinstance(node, ast.Assign):
            self._assignments.extend((target, node.value) for target in node.targets)
        elif isinstance(node, ast.NamedExpr | ast.AnnAssign):
            if node.value is not None:
                self._assignments.append((node.target, node.value))
        elif isinstance(node, ast.Subscript):
            self._subscripts.append(node)
        elif isinstance(node, ast.MatchClass):
            # `case object(__self__=x)` reads an attribute without an attribute in sight
            for name in node.kwd_attrs:
                self._judge_attribute(name, node)

    def _say(self, pattern: str, known: tuple[RiskLevel, str], node: ast.AST) -> None:
        self.signs.append(Sign(pattern, known[0], known[1], getattr(node, "lineno", 0)))

    # --- imports ---

    def _judge_import(self, statement: ast.Import | ast.ImportFrom) -> None:
        if isinstance(statement, ast.Import):
            for name in statement.names:
                self._stands_for[name.asname or name.name.partition(".")[0]] = (
                    name.name if name.asname else name.name.partition(".")[0]
                )
                self._judge_module(name.name, statement, "import")
            return
        if statement.level:
            self._say("relative import", (RiskLevel.MEDIUM, "runs a module of the workspace"), statement)
            return
        module = statement.module or ""
        self._judge_module(module, statement, "import")
        for name in statement.names:
            dotted = f"{module}.{name.name}"
            self._stands_for[name.asname or name.name] = dotted
            self._judge_dotted(dotted, statement)
            self._judge_attribute(name.name, statement)

    def _judge_module(self, module: str, node: ast.AST, how: str) -> None:
        root = module.partition(".")[0]
        if root in PURE_MODULES and (module == root or module in PURE_PARTS):
            return
        known = MODULES.get(module) or MODULES.get(root) or (RiskLevel.MEDIUM, "a module nobody here knows")
        self._say(f"{how} {module}", known, node)

    # --- what a name stands for ---

    def _learn(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple | ast.List) and isinstance(value, ast.Tuple | ast.List):
            for one, its in zip(target.elts, value.elts, strict=False):
                self._learn(one, its)
            return
        if not isinstance(target, ast.Name):
            return
        dotted = self._dotted(value)
        if dotted is not None and dotted != target.id:
            self._stands_for[target.id] = dotted
        if self._is_decoded([value]):
            self._decoded.add(target.id)

    def _dotted(self, node: ast.AST) -> str | None:
        """Return the dotted name `node` leads to: through aliases, `getattr`, imports by text and `sys.modules`."""
        tail: list[str] = []
        for _ in range(64):
            if isinstance(node, ast.Attribute):
                tail.append(node.attr)
                node = node.value
            elif isinstance(node, ast.Name):
                root = self._stands_for.get(node.id, node.id)
                return ".".join([root, *reversed(tail)])
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute) and node.args:
                function = self._dotted_name(node.func)
                if function in _IMPORTERS:
                    module = fold(node.args[0])
                    return None if module is None else ".".join([module, *reversed(tail)])
                if function == "vars":
                    node = node.args[0]
                    continue
                name = fold(node.args[1]) if function == "getattr" and len(node.args) > 1 else None
                if name is None:
                    return None
                tail.append(name)
                node = node.args[0]
            elif isinstance(node, ast.Subscript):
                key = fold(node.slice)
                if key is None:
                    return None
                if self._dotted_name(node.value) == "sys.modules":
                    return ".".join([key, *reversed(tail)])
                tail.append(key)
                node = node.value
                if isinstance(node, ast.Attribute) and node.attr == "__dict__":
                    node = node.value
            else:
                return None
        return None

    def _dotted_name(self, node: ast.AST) -> str | None:
        """Return the dotted name of plain names and attributes."""
        tail: list[str] = []
        while isinstance(node, ast.Attribute) and len(tail) < 64:
            tail.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return None
        return ".".join([self._stands_for.get(node.id, node.id), *reversed(tail)])

    def _is_decoded(self, nodes: Iterable[ast.AST]) -> bool:
        """Whether the nodes hold a decoder's result, found by looking at most 500 parts deep."""
        stack = list(nodes)
        for _ in range(500):
            if not stack:
                return False
            node = stack.pop()
            if isinstance(node, ast.Call):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                if name in DECODERS or self._stands_for.get(name, "").rpartition(".")[2] in DECODERS:
                    return True
            if isinstance(node, ast.Name) and node.id in self._decoded:
                return True
            stack.extend(ast.iter_child_nodes(node))
        return True

    # --- what is done with it ---

    def _judge_call(self, call: ast.Call) -> None:
        name = self._dotted(call.func)
        if name is None:
            return
        name = name.removeprefix("builtins.").removeprefix("__builtins__.")
        if name in _RUNNERS and self._is_decoded([*call.args, *(word.value for word in call.keywords)]):
            self._say(f"decoded {name}", (RiskLevel.CRITICAL, "runs code that was hidden by an encoding"), call)
        elif name in _IMPORTERS and call.args:
            self._judge_dynamic_import(call)
        elif name == "getattr":
            self._judge_getattr(call)
        elif name == "open" or name.endswith(("io.open", "codecs.open")):
            self._judge_open(call)
        elif not isinstance(call.func, ast.Name | ast.Attribute):
            self._judge_dotted(name, call)

    def _judge_dynamic_import(self, call: ast.Call) -> None:
        module = fold(call.args[0])
        if module is None:
            self._say("computed import", (RiskLevel.HIGH, "imports a module whose name is computed"), call)
            return
        self._say("dynamic import", (RiskLevel.MEDIUM, "imports by text"), call)
        self._judge_module(module, call, "import")

    def _judge_getattr(self, call: ast.Call) -> None:
        if isinstance(call.func, ast.Name):
            self._called.add(id(call.func))
        name = fold(call.args[1]) if len(call.args) > 1 else None
        if name is not None:
            self._judge_attribute(name, call)
            dotted = self._dotted(call)
            if dotted is not None:
                self._judge_dotted(dotted, call)
            return
        owner = self._dotted(call.args[0]) if call.args else None
        root = (owner or "").partition(".")[0]
        if root in MODULES or root in PURE_MODULES:
            self._say(f"computed attribute of {root}", (RiskLevel.HIGH, "reaches into a module by computed text"), call)
        else:
            self._say("computed getattr", (RiskLevel.MEDIUM, "reaches attributes by computed text"), call)

    def _judge_open(self, call: ast.Call) -> None:
        if isinstance(call.func, ast.Name):
            self._called.add(id(call.func))
        given = next((word.value for word in call.keywords if word.arg == "mode"), None)
        mode = call.args[1] if len(call.args) > 1 else given
        text = "r" if mode is None else fold(mode)
        starred = any(isinstance(part, ast.Starred) for part in call.args) or any(w.arg is None for w in call.keywords)
        if text is None or starred or not _WRITES.isdisjoint(text):
            self._say("open for writing", (RiskLevel.MEDIUM, "changes files"), call)
        else:
            self._say("open", (RiskLevel.LOW, "reads files"), call)

    def _judge_subscript(self, subscript: ast.Subscript) -> None:
        if isinstance(subscript.slice, ast.Slice | ast.Name):
            return
        key = fold(subscript.slice)
        if key is None:
            return
        if key in ATTRIBUTES and key.startswith("__"):
            self._judge_attribute(key, subscript)
        elif key in BUILTINS:
            self._say(key, BUILTINS[key], subscript)
        dotted = self._dotted(subscript)
        if dotted is not None and "." in dotted:
            self._judge_dotted(dotted, subscript)

    def _judge_mention(self, mention: ast.Name | ast.Attribute) -> None:
        if isinstance(mention, ast.Name):
            self._judge_name(mention)
            return
        self._judge_attribute(mention.attr, mention)
        dotted = self._dotted(mention)
        if dotted is not None:
            self._judge_dotted(dotted, mention)
            if mention.attr.startswith("_") and dotted.partition(".")[0] in PURE_MODULES:
                self._say(f"private {dotted}", (RiskLevel.MEDIUM, "reaches what a module keeps to itself"), mention)

    def _judge_name(self, name: ast.Name) -> None:
        known = BUILTINS.get(name.id)
        if known is not None:
            self._say(name.id, known, name)
        elif name.id == "getattr" and id(name) not in self._called:
            self._say("getattr", (RiskLevel.MEDIUM, "reaches attributes by text, from somewhere else"), name)
        elif name.id == "open" and id(name) not in self._called:
            self._say("open for writing", (RiskLevel.MEDIUM, "passes on the way to files"), name)
        elif name.id.startswith("__") and name.id.endswith("__"):
            self._judge_attribute(name.id, name)

    def _judge_attribute(self, name: str, node: ast.AST) -> None:
        known = ATTRIBUTES.get(name)
        if known is not None:
            self._say(name, known, node)
        elif name.startswith("__") and name.endswith("__"):
            if name not in ORDINARY_DUNDERS:
                self._say(name, (RiskLevel.MEDIUM, "a special attribute ordinary programs do not name"), node)
        elif name.startswith("_") and name.strip("_") in MODULES:
            # `random._os` and its like: a module that another one imported for itself
            self._judge_module(name.strip("_"), node, "import")
        elif name in MODULES and isinstance(node, ast.Attribute | ast.ImportFrom | ast.Call):
            self._judge_leaked_module(name, node)

    def _judge_leaked_module(self, name: str, node: ast.AST) -> None:
        """`typing.sys`, `json.codecs`: pure modules hand out those they use."""
        owner = self._dotted_name(node.value) if isinstance(node, ast.Attribute) else ""
        root = (owner or "").partition(".")[0]
        if owner is None or root in PURE_MODULES or isinstance(node, ast.ImportFrom | ast.Call):
            self._judge_module(name, node, "import")

    def _judge_dotted(self, dotted: str, node: ast.AST) -> None:
        parts = dotted.split(".")
        for start in range(len(parts) - 1):
            # the last two names decide, however long the way to them: `typing.sys.modules`, `random._os.system`
            tail = f"{parts[start].lstrip('_') or parts[start]}.{parts[start + 1]}"
            known = DOTTED.get(tail)
            if known is not None:
                self._say(tail, known, node)
        root = parts[0]
        if root in ("builtins", "__builtins__") and len(parts) > 1 and parts[1] in BUILTINS:
            self._say(parts[1], BUILTINS[parts[1]], node)

    def _look_at_text(self, constant: ast.Constant) -> None:
        if isinstance(constant.value, str | bytes):
            text = constant.value if isinstance(constant.value, str) else constant.value[:4096].decode("latin-1")
            found = sensitive(text)
            if found is not None:
                self._say(f"names {found[0]}", (found[1], "a place programs have no business with"), constant)
            if "__" in text:
                self._look_at_format(text, constant)

    def _look_at_format(self, text: str, constant: ast.Constant) -> None:
        """`'{0.__globals__}'.format(f)` reads attributes from inside a text."""
        for name in ("__globals__", "__subclasses__", "__builtins__", "__code__"):
            if f".{name}" in text:
                self._say(name, ATTRIBUTES[name], constant)


_RARE = frozenset(
    {
        ast.Import,
        ast.ImportFrom,
        ast.Assign,
        ast.NamedExpr,
        ast.AnnAssign,
        ast.Subscript,
        ast.MatchClass,
    }
)
_FIELDS: dict[type[ast.AST], tuple[str, ...]] = {}


def _fields_of(kind: type[ast.AST]) -> tuple[str, ...]:
    fields = _FIELDS.get(kind)
    if fields is None:
        fields = _FIELDS[kind] = tuple(name for name in kind._fields if name not in _LEAFLESS)
    return fields
