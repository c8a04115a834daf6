"""The program that looks through a project's files: run in a box, where a pattern that never ends costs its asker.

It is given what to look for as JSON on its input and answers with JSON, as much as an answer may have.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MOST_BYTES = 700 * 1024
MOST_ENTRIES = 100_000
MOST_LINE = 2000
SUFFIXES = {
    "py": ("py", "pyi"), "js": ("js", "mjs", "cjs", "jsx"), "ts": ("ts", "tsx", "mts", "cts"), "rust": ("rs",),
    "c": ("c", "h"), "cpp": ("cpp", "cc", "hpp", "hh"), "yaml": ("yaml", "yml"), "html": ("html", "htm"),
    "sh": ("sh", "bash"), "markdown": ("md",),
}  # fmt: skip
"""The names of file types that are not their suffixes."""


class Found:
    """What was found, as far as an answer may be long."""

    def __init__(self, most: int) -> None:
        """Take at most so many."""
        self.all: list[Any] = []
        self.truncated = False
        self._left = most
        self._bytes = 0

    def add(self, one: Any) -> bool:
        """Take one more, and say whether there was room for it."""
        self._bytes += len(json.dumps(one)) + 2
        if not self._left or self._bytes > MOST_BYTES:
            self.truncated = True
            return False
        self._left -= 1
        self.all.append(one)
        return True


def listed(asked: dict[str, Any], found: Found) -> dict[str, Any]:
    """List what lies below a directory."""
    for path, _ in entries(asked["path"], asked["depth"], hidden=asked["hidden"]):
        if not found.add(described(path)):
            break
    return {}


def globbed(asked: dict[str, Any], found: Found) -> dict[str, Any]:
    """Find entries by a pattern of their paths."""
    for path, inside in entries(asked["path"], hidden=asked["hidden"]):
        if left_out(asked["exclude"], inside) or not fits(asked["pattern"], inside):
            continue
        if (path.is_file() or not asked["files_only"]) and not found.add(described(path)):
            break
    return {}


def named(asked: dict[str, Any], found: Found) -> dict[str, Any]:
    """Find files by a pattern of their names, or of their paths where it has a slash."""
    pattern = asked["pattern"]
    for path, inside in entries(asked["path"]):
        meant = fits(pattern, inside) if "/" in pattern else fnmatch.fnmatchcase(path.name, pattern)
        if meant and path.is_file() and not found.add(readable(str(path))):
            break
    return {}


def grepped(asked: dict[str, Any], found: Found) -> dict[str, Any]:
    """Find lines by an expression."""
    flags = (re.IGNORECASE if asked["ignore_case"] else 0) | (re.DOTALL | re.MULTILINE if asked["multiline"] else 0)
    wanted = re.compile(re.escape(asked["pattern"]) if asked["fixed"] else asked["pattern"], flags)
    searched, matched, skip = 0, 0, asked["skip"]
    for path in chosen(asked):
        text = text_of(path, asked["max_size"])
        if text is None:
            continue
        searched += 1
        before = len(found.all)
        for one in matches(wanted, text, asked):
            if skip:
                skip -= 1
            elif not found.add({"file": readable(str(path)), **one}):
                break
        matched += len(found.all) > before
        if found.truncated:
            break
    return {"files_searched": searched, "files_matched": matched}


LOOKS = {"list": listed, "glob": globbed, "find": named, "grep": grepped}


def entries(root: str, deepest: int | None = None, *, hidden: bool = True) -> Iterator[tuple[Path, str]]:
    """Yield what lies below a directory, each with how it is called from there."""
    seen = 0
    os.scandir(root).close()  # which a walk would pass over in silence where it is no directory
    for where, directories, files in os.walk(root):
        inside = Path(where).relative_to(root)
        directories[:] = sorted(name for name in directories if hidden or not name.startswith("."))
        names = sorted([*directories, *(name for name in files if hidden or not name.startswith("."))])
        if deepest is not None and len(inside.parts) + 1 >= deepest:
            directories.clear()
        for name in names:
            seen += 1
            if seen > MOST_ENTRIES:
                return
            yield Path(where, name), str(inside / name)


def chosen(asked: dict[str, Any]) -> Iterator[Path]:
    """Yield the files that are to be read."""
    root, include, kind = Path(asked["path"]), asked["include"], asked["type"]
    if not root.is_dir():
        root.stat()
        yield root
        return
    for path, inside in entries(asked["path"], None if asked["recursive"] else 1):
        if not path.is_file() or left_out(asked["exclude"], inside):
            continue
        if include and not any(fnmatch.fnmatchcase(path.name, one) or fits(one, inside) for one in include):
            continue
        if kind is None or path.suffix[1:] in SUFFIXES.get(kind, (kind,)):
            yield path


def text_of(path: Path, most: int) -> str | None:
    """Return the text of a file that is one, and not too long."""
    try:
        with path.open("rb") as file:
            content = file.read(most + 1)
    except OSError:
        return None
    return None if len(content) > most or b"\0" in content[:8192] else content.decode("utf-8", "replace")


def matches(wanted: re.Pattern[str], text: str, asked: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield where a text has what is wanted, by line."""
    lines = [line[:MOST_LINE] for line in text.splitlines()]
    if asked["multiline"]:
        numbers: Any = sorted({text.count("\n", 0, match.start()) for match in wanted.finditer(text)})
    else:
        numbers = (number for number, line in enumerate(text.splitlines()) if wanted.search(line))
    for number in numbers:
        yield {
            "line_number": number + 1,
            "line_content": lines[number] if number < len(lines) else "",
            "context_before": lines[max(0, number - asked["before"]) : number],
            "context_after": lines[number + 1 : number + 1 + asked["after"]],
        }


def fits(pattern: str, inside: str) -> bool:
    """Whether a path is meant by a pattern; `**` is any number of directories."""
    translated = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    parts = re.findall(r"\*\*/|\*\*|\*|\?|\[[^]/]+\]|[^*?\[]+|\[", pattern)
    expression = (
        translated.get(part) or (part if len(part) > 1 and part[0] == "[" else re.escape(part)) for part in parts
    )
    return re.fullmatch("".join(expression), inside) is not None


def left_out(patterns: list[str], inside: str) -> bool:
    """Whether a path, or a directory above it, is named by one of the patterns."""
    return any(
        fits(pattern, inside)
        or any(fnmatch.fnmatchcase(part, pattern.rstrip("/*") or pattern) for part in inside.split("/"))
        for pattern in patterns
    )


def described(path: Path) -> dict[str, Any]:
    """Return what is known of an entry."""
    status = path.lstat()
    return {
        "path": readable(str(path)),
        "name": readable(path.name),
        "is_directory": path.is_dir(),
        "size": status.st_size,
        "modified": status.st_mtime,
        "permissions": f"{status.st_mode & 0o777:o}",
    }


def readable(name: str) -> str:
    """Return a name as text that every reader takes."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def main() -> None:
    """Answer what standard input asks."""
    asked = json.load(sys.stdin)
    found = Found(asked["most"])
    try:
        told = {**LOOKS[asked["look"]](asked, found), "found": found.all, "truncated": found.truncated}
    except OSError as error:
        told = {"errno": error.errno}
    except re.error as error:
        told = {"pattern": str(error)[:200]}
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main()
