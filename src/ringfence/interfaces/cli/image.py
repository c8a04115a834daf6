"""`ringfence image`: make what containers start from; say how old it is, what is in it, what is known against it."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringfence.errors import InvalidRequest, IsolationUnavailable
from ringfence.images import archive as archives
from ringfence.images import rootfs
from ringfence.images.age import OLD_DAYS, age_in_days
from ringfence.images.recipe import SUITES, Recipe, import_changes
from ringfence.interfaces.cli.options import StrictParser, positive_count
from ringfence.workspaces.home import default_home

if TYPE_CHECKING:
    import argparse

    from ringfence.images.archive import Archive
    from ringfence.isolation.docker.engine import Engine

_ACTIONS = ("build", "list", "age", "scan", "sbom", "seccomp")
_ENGINE_SECONDS = 1800.0
_ARCHIVE_LABEL = "dev.ringfence.archive"


def image_command(words: Sequence[str]) -> int:
    """Carry out `ringfence image …` and return the exit code."""
    options = _parsed(words)
    if options.action == "seccomp":
        from ringfence.isolation.linux.seccomp.container import profile_text

        sys.stdout.write(profile_text())
        return 0
    shown, code = _ACTS[options.action](options)
    if options.json or options.action == "sbom":
        sys.stdout.write(json.dumps(shown) + "\n")
    else:
        sys.stdout.writelines(f"{line}\n" for line in _lines(options.action, shown))
    sys.stdout.flush()
    return code


def _parsed(words: Sequence[str]) -> argparse.Namespace:
    parser = StrictParser(prog="ringfence image")
    parser.add_argument("action", choices=_ACTIONS)
    parser.add_argument("--suite", choices=tuple(SUITES), default="bookworm")
    parser.add_argument("--requirements")
    parser.add_argument("--mirror")
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--archive-only", action="store_true")
    parser.add_argument("--dockerfile", action="store_true")
    parser.add_argument("--base")
    parser.add_argument("--max-days", type=positive_count)
    parser.add_argument("--fail-on", choices=("low", "medium", "high", "critical"), default="high")
    parser.add_argument("--home")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(list(words))
    of_build = ("mirror", "fresh", "archive_only", "dockerfile", "base")
    for name in (name for name in of_build if getattr(options, name) and options.action != "build"):
        parser.error(f"--{name.replace('_', '-')} is for build")
    if options.base and not options.dockerfile:
        parser.error("--base is for --dockerfile")
    if options.dockerfile and (options.archive_only or options.mirror or options.fresh):
        parser.error("--dockerfile leaves it to the engine what is made and kept")
    return options


# --- build ---


def _build(options: argparse.Namespace) -> tuple[dict[str, Any], int]:
    if options.dockerfile:
        return _build_with_engine(options), 0
    engine = None if options.archive_only else _engine(options)  # asked before minutes are spent
    made = rootfs.build(_recipe(options), archives.default_cache(), fresh=options.fresh, on_progress=_tell)
    shown = {**_described(made), "bill_of_materials": str(_bill(made, _image_name(options)))}
    if engine is None:
        return shown, 0
    image = engine.settings.image
    labels = {
        "org.opencontainers.image.created": _at(made.built_at),
        "org.opencontainers.image.base.name": f"debian:{made.suite}",
        "dev.ringfence.recipe": made.recipe_digest,
        _ARCHIVE_LABEL: made.sha256,
    }
    changes = [word for line in import_changes(labels) for word in ("--change", line)]
    engine.ask("import", *changes, str(made.path), image)
    return {**shown, "image": image, "image_digest": engine.image_digest(image)}, 0


def _build_with_engine(options: argparse.Namespace) -> dict[str, Any]:
    """Have the engine follow Dockerfile.sandbox; its base image comes from a registry."""
    import shutil
    import tempfile

    engine = _engine(options)
    with tempfile.TemporaryDirectory() as context:
        for name in ("Dockerfile.sandbox", "entrypoint.sh"):
            shutil.copy(archives.context_file(name), context)
        Path(context, "requirements.txt").write_text(_requirements(options))
        base = ("--build-arg", f"BASE={options.base}") if options.base else ()
        words = ("--file", f"{context}/Dockerfile.sandbox", "--tag", engine.settings.image, *base)
        # A network of the engine's own may not be there; what the build downloads it checks by signature or hash.
        engine.ask("build", "--network=host", *words, context)
    return {"image": engine.settings.image, "image_digest": engine.image_digest(engine.settings.image)}


def _recipe(options: argparse.Namespace) -> Recipe:
    return Recipe(options.suite, requirements=_requirements(options), mirror=options.mirror)


def _requirements(options: argparse.Namespace) -> str:
    if options.requirements is None:
        return rootfs.default_recipe().requirements
    try:
        return Path(options.requirements).read_text()
    except OSError as error:
        raise InvalidRequest(f"{options.requirements} cannot be read: {error.strerror}") from error


def _bill(made: Archive, image: str) -> Path:
    from ringfence.images.sbom import bill_of_materials

    path = archives.bill_of(made)
    archives.write_beside(path, bill_of_materials(made, image))
    return path


# --- look at what is there ---


def _list(options: argparse.Namespace) -> tuple[dict[str, Any], int]:
    shown: dict[str, Any] = {"archives": [_described(each) for each in archives.all_in(archives.default_cache())]}
    try:
        engine = _engine(options)
        said = json.loads(engine.ask("image", "inspect", engine.settings.image))[0]
        labels = said["Config"].get("Labels") or {}
        shown["engine"] = {
            "image": engine.settings.image,
            "image_digest": said["Id"],
            "created": said["Created"],
            "archive": labels.get(_ARCHIVE_LABEL),
        }
    except IsolationUnavailable as refusal:
        shown["engine"] = {"reason": refusal.reason, "problem": str(refusal)}
    return shown, 0


def _age(options: argparse.Namespace) -> tuple[dict[str, Any], int]:
    described = _described(_newest(options))
    limit = options.max_days or OLD_DAYS
    too_old = described["age_days"] > limit
    return {**described, "max_days": limit, "too_old": too_old}, int(too_old)


def _sbom(options: argparse.Namespace) -> tuple[dict[str, Any], int]:
    from ringfence.images.sbom import bill_of_materials

    return bill_of_materials(archives.verified(_newest(options)), _image_name(options)), 0


def _scan(options: argparse.Namespace) -> tuple[dict[str, Any], int]:
    from ringfence.images.scan import scan

    made = archives.verified(_newest(options))
    result = scan(_bill(made, _image_name(options)), sha256=made.sha256, now=int(time.time()))
    archives.write_beside(archives.scan_of(made), result.to_json())
    bad = result.at_least(options.fail_on)
    return {**result.to_json(), "fail_on": options.fail_on, "too_bad": len(bad)}, int(bool(bad))


_ACTS = {"build": _build, "list": _list, "age": _age, "sbom": _sbom, "scan": _scan}


def _newest(options: argparse.Namespace) -> Archive:
    of_suite = [each for each in archives.all_in(archives.default_cache()) if each.suite == options.suite]
    if not of_suite:
        raise InvalidRequest(
            f"no image of {options.suite} was built here", reason="not_found", fix="build one: ringfence image build"
        )
    return of_suite[0]


def _engine(options: argparse.Namespace) -> Engine:
    from ringfence.isolation.docker.configured import engine_settings
    from ringfence.isolation.docker.engine import Engine

    engine = Engine(engine_settings(_home(options), os.environ), patience=_ENGINE_SECONDS)
    try:
        engine.version()
    except IsolationUnavailable as error:
        if options.action == "build" and not options.dockerfile:
            error.fix = f"{error.fix}; or keep the archive alone, for gVisor: --archive-only"
        raise
    return engine


def _image_name(options: argparse.Namespace) -> str:
    from ringfence.isolation.docker.configured import engine_settings

    return engine_settings(_home(options), os.environ).image


def _home(options: argparse.Namespace) -> Path:
    return Path(options.home) if options.home is not None else default_home()


# --- say it ---


def _described(made: Archive) -> dict[str, Any]:
    return {
        "archive": str(made.path),
        "sha256": made.sha256,
        "suite": made.suite,
        "architecture": made.architecture,
        "size": made.size,
        "built_at": _at(made.built_at),
        "age_days": age_in_days(made, int(time.time())),
    }


def _lines(action: str, shown: dict[str, Any]) -> Iterator[str]:
    match action:
        case "build":
            yield from (
                f"{name}: {shown[name]}" for name in ("image", "image_digest", "archive", "sha256") if name in shown
            )
        case "list":
            for each in shown["archives"]:
                yield f"{each['suite']}  {each['age_days']} days  {each['size']:,} bytes  {each['archive']}"
            engine = shown["engine"]
            yield f"engine: {engine.get('problem') or '{image} {image_digest}'.format(**engine)}"
        case "age":
            yield f"{shown['age_days']} days{', too old: ringfence image build --fresh' if shown['too_old'] else ''}"
        case _:
            for each in shown["found"]:
                yield "{severity:<10}  {id:<20}  {package} {version}".format(**each)
            yield f"{shown['scanner']}: {len(shown['found'])} known, {shown['too_bad']} {shown['fail_on']} or worse"


def _at(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def _tell(line: str) -> None:
    sys.stderr.write(f"ringfence: {line}\n")
    sys.stderr.flush()
