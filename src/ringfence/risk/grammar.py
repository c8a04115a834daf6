"""Read foreign languages with tree-sitter's grammars, within a deadline, and only when somebody asks.

Nothing here is imported by `import ringfence`. Without the extra `law` a program is refused, not guessed at.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from ringfence.risk.quiet import hush_parser_deadline

if TYPE_CHECKING:
    from tree_sitter import Language, Node

EXTRA = "law"
MAX_SOURCE_BYTES = 128 * 1024
MAX_NODES = 40_000
# Error recovery is worse than quadratic: 8 kB of `+,` took nine seconds, 128 kB of `ls|` took 22 GB (ADR 13). What is
# valid takes a millisecond, so this is reached by hostile input alone.
DEADLINE_MICROSECONDS = 100_000

_GRAMMARS = {
    "bash": ("tree_sitter_bash", "language"),
    "javascript": ("tree_sitter_javascript", "language"),
    "typescript": ("tree_sitter_typescript", "language_typescript"),
}


class GrammarMissing(Exception):
    """The grammar of a language, or a parser that can be stopped, is not installed."""


class TooComplex(Exception):
    """A source is too large, too deep or too tangled to be read within the bounds."""


def parse(language: str, source: bytes) -> Node:
    """Return the root of the tree of `source`.

    Raises:
        GrammarMissing: The extra is not installed.
        TooComplex: The source is too large, or took longer than the deadline.
    """
    if len(source) > MAX_SOURCE_BYTES:
        raise TooComplex(f"more than {MAX_SOURCE_BYTES} bytes")
    grammar = _load(language)
    hush_parser_deadline()
    # A parser is cheap and keeps state, so every source gets its own and threads share none.
    parser = import_module("tree_sitter").Parser(grammar, timeout_micros=DEADLINE_MICROSECONDS)
    try:
        tree = parser.parse(source)
    except ValueError:
        raise TooComplex(f"took longer than {DEADLINE_MICROSECONDS // 1000} ms to parse") from None
    root: Node = tree.root_node
    return root


def walk(root: Node) -> Iterator[Node]:
    """Yield every node in the order of the source, without recursion.

    Raises:
        TooComplex: There are more than `MAX_NODES`.
    """
    stack = [root]
    seen = 0
    while stack:
        node = stack.pop()
        seen += 1
        if seen > MAX_NODES:
            raise TooComplex(f"more than {MAX_NODES} parts")
        yield node
        stack.extend(reversed(node.children))


def text_of(node: Node) -> str:
    """Return the source of `node`."""
    return (node.text or b"").decode(errors="replace")


def line_of(node: Node) -> int:
    """Return the line `node` begins on, counting from 1."""
    return node.start_point[0] + 1


@cache
def _load(language: str) -> Language:
    package, function = _GRAMMARS[language]
    fix = f"pip install 'ringfence[{EXTRA}]'"
    try:
        binding = import_module("tree_sitter")
        grammar = getattr(import_module(package), function)()
    except ImportError:
        raise GrammarMissing(f"the {language} grammar is not installed; fix: {fix}") from None
    if not hasattr(binding.Parser, "timeout_micros"):
        raise GrammarMissing(f"this tree-sitter cannot be stopped by a deadline; fix: {fix}")
    loaded: Language = binding.Language(grammar)
    return loaded
