"""`ringfence browse URL`: one page, opened, read and pictured as any door does it, and closed again."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringfence.errors import CapabilityBlocked, InvalidRequest
from ringfence.interfaces.cli.interrupt import Interrupts
from ringfence.interfaces.cli.options import StrictParser, positive_seconds

if TYPE_CHECKING:
    from ringfence.outcome import BrokerOutcome


def browse_command(words: Sequence[str]) -> int:
    """Carry out `ringfence browse` and return the exit code."""
    options = _parsed(words)
    Interrupts().install()
    from ringfence.portal import portal

    picture = None if options.screenshot is None else _new_file(options.screenshot)
    try:
        told = portal().call(_browsed(options))
        if picture is not None:
            _write(picture, options.screenshot, told["png"])
            picture = None
    finally:
        if picture is not None:  # nothing was saved, so nothing is left that looks as if
            os.close(picture)
            Path(options.screenshot).unlink()
    _print(told, as_json=options.json)
    return 0


def _parsed(words: Sequence[str]) -> argparse.Namespace:
    parser = StrictParser(prog="ringfence browse")
    parser.add_argument("url", metavar="URL")
    parser.add_argument("--extract", choices=("text", "links", "tree", "none"))
    parser.add_argument("--selector")
    parser.add_argument("--field", dest="fields", action="append", default=[], metavar="NAME=CSS")
    parser.add_argument("--screenshot", metavar="FILE")
    parser.add_argument("--full-page", dest="full_page", action="store_true")
    parser.add_argument("--project", default="browse")
    parser.add_argument("--policy")
    parser.add_argument("--role")
    parser.add_argument("--timeout", type=positive_seconds)
    parser.add_argument("--home")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(list(words))
    if options.fields and (options.extract or options.selector):
        parser.error("--field is instead of --extract and --selector")
    if not all(name and selector for name, _, selector in (each.partition("=") for each in options.fields)):
        parser.error("write --field as NAME=CSS")
    return options


async def _browsed(options: argparse.Namespace) -> dict[str, Any]:
    from ringfence.config import SandboxConfig
    from ringfence.facade import SandboxManager

    fields = {name: selector for name, _, selector in (each.partition("=") for each in options.fields)}
    what = "fields" if fields else options.extract or "text"
    config = SandboxConfig(
        home=options.home,
        policy_file=options.policy,
        role=options.role,
        pool_size=0,
        max_execution_time=None if options.timeout is None else f"{options.timeout:g}s",
    )
    async with SandboxManager(options.project, config=config) as manager:
        opened = await manager.browse_page(options.url)
        told: dict[str, Any] = {"opened": _of(opened), "extracted": None, "screenshot": None, "png": None}
        try:
            if what != "none":
                read = await manager.extract_page(what, selector=options.selector, fields=fields)
                told["extracted"] = {**_of(read), "content": _text(read)}
            if options.screenshot is not None:
                shot = await manager.screenshot_page(selector=options.selector, full_page=options.full_page)
                told |= {"screenshot": _of(shot), "png": shot.content}
        finally:
            await manager.close_page()
    return told


def _of(outcome: BrokerOutcome) -> dict[str, Any]:
    return {**outcome.out, "exec_id": outcome.exec_id, "evidence_id": outcome.evidence_id}


def _text(outcome: BrokerOutcome) -> str | None:
    return None if outcome.content is None else outcome.content.decode("utf-8", "replace")


def _new_file(path: str) -> int:
    """Take the name before the page is opened: a picture that cannot be saved is not worth the way."""
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise InvalidRequest(
            f"{path}: {error.strerror}", reason="invalid_path", fix="name a file that is not there yet"
        ) from error


def _write(descriptor: int, path: str, png: bytes | None) -> None:
    if png is None:
        raise CapabilityBlocked(f"the policy keeps contents out of results, so there is nothing for {path}")
    with os.fdopen(descriptor, "wb") as file:
        file.write(png)


def _print(told: dict[str, Any], *, as_json: bool) -> None:
    del told["png"]
    if as_json:
        sys.stdout.write(json.dumps(told) + "\n")
    else:
        opened, extracted = told["opened"], told["extracted"]
        blocked = f", refused: {', '.join(opened['blocked'])}" if opened["blocked"] else ""
        sys.stderr.write(f"{_line(opened['url'])} (status {opened['status']}{blocked})\n")
        if extracted is not None and extracted["content"] is not None:
            sys.stdout.write(_shown(extracted["content"]) + "\n")
    sys.stdout.flush()


def _line(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)


def _shown(text: str) -> str:
    """Return a page's text without what would act on a terminal: a page must not write over what was there before."""
    return "".join(character if character.isprintable() or character in "\n\t" else "\ufffd" for character in text)
