"""Look for a regular expression in the files below /workspace/work, and say where it is; runs in a box."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import sys

WORK = "/workspace/work"
MAX_FILES = 20_000
MAX_FILE_BYTES = 4 * 1024 * 1024
MAX_TEXT = 300
MAX_OUTPUT = 256 * 1024


def main() -> int:
    """Search, and print what was found as one JSON object."""
    asked = json.load(sys.stdin)
    pattern = re.escape(asked["pattern"]) if asked.get("literal") else asked["pattern"]
    try:
        wanted = re.compile(pattern, re.IGNORECASE if asked.get("ignore_case") else 0)
    except re.error as error:
        sys.stderr.write(f"pattern: {error}\n")
        return 2
    begin = os.path.normpath(os.path.join(WORK, asked.get("path", ".")))
    if begin != WORK and not begin.startswith(WORK + "/"):
        sys.stderr.write("path: it leads out of /workspace/work\n")
        return 2
    if not os.path.exists(begin):
        sys.stderr.write("path: there is nothing of this name\n")
        return 2
    sys.stdout.write(json.dumps(search(wanted, begin, asked.get("glob", "*"), asked.get("max_matches", 200))) + "\n")
    return 0


def search(wanted: re.Pattern[str], begin: str, glob: str, most: int) -> dict[str, object]:
    """Return the matching lines of every text file, in the order of their paths."""
    matches: list[dict[str, object]] = []
    searched = skipped = size = 0
    for path in files_below(begin):
        shown = os.path.relpath(path, WORK)
        if not fnmatch.fnmatch(os.path.basename(path), glob) and not fnmatch.fnmatch(shown, glob):
            continue
        if searched + skipped >= MAX_FILES:
            return told(matches, searched, skipped, truncated=True)
        text = text_of(path)
        if text is None:
            skipped += 1
            continue
        searched += 1
        for number, line in enumerate(text.splitlines(), 1):
            found = wanted.search(line)
            if found is None:
                continue
            if len(matches) >= most or size >= MAX_OUTPUT:
                return told(matches, searched, skipped, truncated=True)
            match = {"path": shown, "line": number, "column": found.start() + 1, "text": line[:MAX_TEXT]}
            size += len(json.dumps(match))
            matches.append(match)
    return told(matches, searched, skipped, truncated=False)


def files_below(begin: str) -> list[str]:
    """Return every file, following no link."""
    if not os.path.isdir(begin):
        return [begin]
    found = []
    for directory, _, names in os.walk(begin):
        found += [os.path.join(directory, name) for name in names]
    return sorted(found)


def text_of(path: str) -> str | None:
    """Return a file's text; nothing for a link, a device, something large or something that is no text."""
    if os.path.islink(path) or not os.path.isfile(path) or os.path.getsize(path) > MAX_FILE_BYTES:
        return None
    try:
        with open(path, "rb") as file:
            return file.read(MAX_FILE_BYTES).decode()
    except (OSError, UnicodeDecodeError):
        return None


def told(matches: list[dict[str, object]], searched: int, skipped: int, *, truncated: bool) -> dict[str, object]:
    """Return the outputs of the skill."""
    return {"matches": matches, "files_searched": searched, "files_skipped": skipped, "truncated": truncated}


sys.exit(main())
