"""Lower a bash script to every command it could start, and name each construct that hides one.

The tree may be wrong where bash and the grammar differ, so what is not plainly understood is kept as `unclear`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from ringfence.dataclass import dataclass, field
from ringfence.risk.grammar import TooComplex, line_of, parse, text_of
from ringfence.risk.shell_words import WORDS, literal
from ringfence.risk.vocabulary import names

if TYPE_CHECKING:
    from tree_sitter import Node

Word = str | None

# A script may hold scripts that hold scripts, each read again, so one of them gets less room than other programs.
MAX_SCRIPT_BYTES = 32 * 1024
MAX_SCRIPT_NODES = 15_000
# The one error the parser's deadline does not stop: giving up a pipeline of 16,000 parts is a single step of seconds.
MAX_PIPES = 1000


@dataclass(frozen=True, slots=True)
class Command:
    """One simple command; a word of None is known only to the running shell."""

    argv: tuple[Word, ...]
    line: int = 0
    via: tuple[str, ...] = ()
    has_input: bool = False
    document: str | None = None

    @property
    def name(self) -> Word:
        """Return what is run, as it is written."""
        return self.argv[0] if self.argv else None


@dataclass(frozen=True, slots=True)
class Redirect:
    """A file opened by the shell itself; a target of None is known only to the running shell."""

    operator: str
    target: Word
    line: int

    @property
    def writes(self) -> bool:
        """Whether the file is opened for writing; copying a descriptor opens none."""
        return ">" in self.operator and not self.copies_descriptor

    @property
    def copies_descriptor(self) -> bool:
        """Whether it only says that one descriptor is another, as `2>&1` does."""
        return self.operator.endswith("&") and self.target is not None and self.target.rstrip("-").isdigit()


@dataclass(frozen=True, slots=True)
class Unclear:
    """A construct whose effect the tree alone does not tell."""

    what: str
    line: int


@dataclass(slots=True)
class Script:
    """What one script could start, open and hide."""

    commands: list[Command] = field(default_factory=list)
    redirects: list[Redirect] = field(default_factory=list)
    unclear: list[Unclear] = field(default_factory=list)
    functions: set[str] = field(default_factory=set)
    broken: bool = False


# Structure that only says when its parts run; the parts are judged one by one.
_STRUCTURE = names(
    "program list pipeline subshell redirected_statement negated_command if_statement elif_clause else_clause "
    "while_statement do_group comment command command_name heredoc_redirect heredoc_start heredoc_body heredoc_content "
    "heredoc_end herestring_redirect file_redirect file_descriptor string_content variable_name special_variable_name"
)
_CALLED = {
    "simple_expansion": "a variable",
    "expansion": "a variable",
    "command_substitution": "a command's output as text",
    "process_substitution": "a command as a file",
    "arithmetic_expansion": "arithmetic",
    "variable_assignment": "an assignment",
    "declaration_command": "a declaration",
    "unset_command": "an unset variable or function",
    "function_definition": "a function",
    "for_statement": "a loop variable",
    "c_style_for_statement": "arithmetic",
    "case_statement": "a case",
    "brace_expression": "a brace expansion",
    "ERROR": "a syntax error",
}
_HARMLESS_TEST = re.compile(r"(?:\[ [\w ./'\"=!-]* \]|\[\[ [\w ./'\"=!-]* \]\])\Z")
_PLAIN_DELIMITER = re.compile(r"(?P<quote>['\"]?)(?P<name>\w+)(?P=quote)\Z")
_LONGEST_TEST = 1024
_CONTINUATION = re.compile(r"(?<!\\)((?:\\\\)*)\\\n")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\x85\xa0\u1680\u2000-\u200f\u2028-\u202f\u205f-\u2064\u3000\ufeff]")


def read_script(code: str) -> Script:
    """Return what `code` could start.

    Raises:
        GrammarMissing: The extra is not installed.
        TooComplex: It is too large or too tangled to be read.
    """
    script = Script()
    if _CONTROL.search(code):
        # the grammar takes a carriage return for a blank, bash for a part of the word
        script.unclear.append(Unclear("control or invisible characters", 0))
    _read(code, script)
    if "\\\n" in code:
        # The grammar ends a word at a continued line, bash joins `cu\` and `rl`. Both readings are judged; where
        # quotes or comments make them differ from bash's third, neither can allow anything.
        _read(_CONTINUATION.sub(r"\1", code), script)
        if any(mark in code for mark in "#'`") or "<<" in code:
            script.unclear.append(Unclear("a continued line beside quotes or comments", 0))
    return script


def _read(code: str, script: Script) -> None:
    try:
        source = code.encode()
    except UnicodeEncodeError:
        raise TooComplex("not valid Unicode text") from None
    if len(source) > MAX_SCRIPT_BYTES:
        raise TooComplex(f"more than {MAX_SCRIPT_BYTES} bytes of bash")
    if source.count(b"|") > MAX_PIPES:
        raise TooComplex(f"more than {MAX_PIPES} pipes")
    root = parse("bash", source)
    script.broken = script.broken or root.has_error
    stack = [_Place(root)]
    for _ in range(MAX_SCRIPT_NODES):
        if not stack:
            return
        place = stack.pop()
        _look_at(place, script)
        if not place.node.child_count:
            continue
        if _leaves_out(place.node, source):
            script.unclear.append(Unclear("text the grammar passes over", line_of(place.node)))
        stack.extend(reversed(_below(place)))
    raise TooComplex(f"more than {MAX_SCRIPT_NODES} parts")


def _leaves_out(node: Node, source: bytes) -> bool:
    """Whether there is more than blanks between the parts of `node`: bytes that nobody would judge."""
    if node.type in ("string", "heredoc_body", "heredoc_redirect"):
        return False
    end = node.start_byte
    for child in node.children:
        if child.start_byte > end and source[end : child.start_byte].replace(b"\\\n", b"").strip(b" \t\n"):
            return True
        end = child.end_byte
    return False


class _Place(NamedTuple):
    """A node and what lies around it; asking a node for its parent would search from the root each time."""

    node: Node
    has_input: bool = False
    document: str | None = None
    in_word: bool = False
    in_plain_test: bool = False


def _below(place: _Place) -> list[_Place]:
    node, kind = place.node, place.node.type
    if kind == "pipeline":
        return _pipeline(place)
    fed, document = place.has_input, place.document
    word = place.in_word or kind in WORDS
    plain = place.in_plain_test or (kind == "test_command" and _is_plain_test(node))
    if kind != "redirected_statement":
        return [_Place(child, fed, document, word, plain) for child in node.children]
    outside = fed, document
    for redirect in node.children_by_field_name("redirect"):
        if redirect.type == "heredoc_redirect":
            fed, document = True, _here_document(redirect)
        elif redirect.type == "herestring_redirect":
            fed, document = True, _here_string(redirect)
        elif any(child.type.startswith("<") for child in redirect.children):
            fed, document = True, None
    return [
        _Place(child, *(outside if child.type.endswith("_redirect") else (fed, document)), word, plain)
        for child in node.children
    ]


def _pipeline(place: _Place) -> list[_Place]:
    """Everything after the first `|` reads what comes before; in a here-document's tail that is all of it."""
    places = []
    fed, document = place.has_input, place.document
    for child in place.node.children:
        if not child.is_named:
            fed, document = True, None
        places.append(_Place(child, fed, document))
    return places


def _is_plain_test(node: Node) -> bool:
    if node.end_byte - node.start_byte > _LONGEST_TEST:
        return False
    return _HARMLESS_TEST.match(text_of(node)) is not None


def _look_at(place: _Place, script: Script) -> None:
    node, kind = place.node, place.node.type
    if not node.is_named:
        if node.is_missing:
            script.unclear.append(Unclear("a syntax error", line_of(node)))
    elif kind == "command":
        _add_command(place, script)
    elif kind == "file_redirect":
        _add_redirect(node, script)
    elif kind == "file_descriptor":
        if not text_of(node).isdigit():
            # `-2>&1` is no descriptor to bash: it starts a program called -2
            script.unclear.append(Unclear("a descriptor that is no number", line_of(node)))
    elif kind == "function_definition":
        name = node.child_by_field_name("name")
        script.functions.add(text_of(name) if name is not None else "")
        script.unclear.append(Unclear(_CALLED[kind], line_of(node)))
    elif kind == "heredoc_redirect":
        if not _is_plain_document(node):
            # where the grammar ends it later than bash does, it swallows commands
            script.unclear.append(Unclear("a here-document whose end is not plain", line_of(node)))
    elif kind == "compound_statement":
        if not _is_group(node):
            script.unclear.append(Unclear("arithmetic, or a word that looks like a group", line_of(node)))
    elif kind == "test_command":
        if not _is_plain_test(node):
            # `[[ x -eq 'a[$(id)]' ]]` runs id: arithmetic evaluates text
            script.unclear.append(Unclear("a test that may evaluate text", line_of(node)))
    elif kind in WORDS:
        if not place.in_word and not place.in_plain_test and literal(node) is None:
            script.unclear.append(Unclear("a word only the shell can expand", line_of(node)))
    elif kind not in _STRUCTURE and not place.in_plain_test:
        script.unclear.append(Unclear(_CALLED.get(kind, kind.replace("_", " ")), line_of(node)))


def _is_group(node: Node) -> bool:
    """Whether it is `{ …; }`: to bash, `{}` and `{ls` are names of programs."""
    parts = node.children
    return len(parts) > 2 and parts[0].type == "{" and parts[1].start_byte > parts[0].end_byte


def _add_command(place: _Place, script: Script) -> None:
    node, fed, document = place.node, place.has_input, place.document
    argv: list[Word] = []
    for child in node.children:
        if child.type == "herestring_redirect":
            fed, document = True, _here_string(child)
        elif child.type == "file_redirect":
            if any(part.type.startswith("<") for part in child.children):
                fed, document = True, None
        elif child.type != "variable_assignment":
            # a bare token as an argument, such as `==`, means the grammar saw something else than a word
            argv.append(literal(child) if child.is_named else None)
    if argv:
        script.commands.append(Command(tuple(argv), line_of(node), (), fed, document))


def _here_string(redirect: Node) -> str | None:
    words = [child for child in redirect.named_children if child.type in WORDS]
    return literal(words[0]) if len(words) == 1 else None


def _here_document(redirect: Node) -> str | None:
    start = next((child for child in redirect.children if child.type == "heredoc_start"), None)
    body = next((child for child in redirect.children if child.type == "heredoc_body"), None)
    if start is None or body is None:
        return None
    text = text_of(body)
    quoted = any(mark in text_of(start) for mark in "'\"\\")
    return text if quoted or not any(mark in text for mark in "$`\\") else None


def _is_plain_document(redirect: Node) -> bool:
    parts = {child.type: text_of(child) for child in redirect.children}
    start = _PLAIN_DELIMITER.match(parts.get("heredoc_start", ""))
    if start is None or "<<-" in parts or "redirect" in parts:
        return False
    return all(line.strip() != start["name"] for line in parts.get("heredoc_body", "").splitlines())


def _add_redirect(node: Node, script: Script) -> None:
    operator = "".join(text_of(child) for child in node.children if not child.is_named)
    words = [child for child in node.named_children if child.type != "file_descriptor"]
    if not words and operator.endswith("&-"):
        return
    target = literal(words[0]) if len(words) == 1 else None
    script.redirects.append(Redirect(operator, target, line_of(node)))
