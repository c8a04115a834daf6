"""The bill of materials of a root file system: what Debian, Python and npm say is in it, as CycloneDX 1.6.

Read from the archive itself and not from the recipe, so that it lists what is there, wanted or not.
"""

from __future__ import annotations

import json
import re
import tarfile
import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from email.parser import HeaderParser
from typing import Any
from urllib.parse import quote

from ringfence.dataclass import dataclass
from ringfence.images.archive import Archive
from ringfence.version import __version__

_DPKG_STATUS = "./var/lib/dpkg/status"
_OS_RELEASE = "./etc/os-release"
_DIST_INFO = re.compile(r"\./.*\.(?:dist-info/METADATA|egg-info/PKG-INFO|egg-info)")
_NPM_PACKAGE = re.compile(r"\./.*/node_modules/(?:@[^/]+/)?[^/]+/package\.json")
_MOST_BYTES = 64 << 20  # of one file that is read from an archive
_NAMESPACE = uuid.UUID("b7c2a6de-2f0e-4a4e-9d43-5d6f0a3c1e52")


@dataclass(frozen=True, slots=True, order=True)
class Component:
    """One package, by the address that scanners know it under."""

    kind: str
    name: str
    version: str
    qualifiers: tuple[tuple[str, str], ...] = ()

    @property
    def purl(self) -> str:
        """The package URL."""
        path = "/".join(quote(part, safe="") for part in self.name.split("/"))
        asked = "&".join(f"{key}={quote(value, safe='')}" for key, value in self.qualifiers)
        return f"pkg:{self.kind}/{path}@{quote(self.version, safe='')}{f'?{asked}' if asked else ''}"


def bill_of_materials(archive: Archive, image: str) -> dict[str, Any]:
    """Return the document about `archive`: the same bytes give the same document."""
    system, components = _contents(archive)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, archive.sha256)}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(archive.built_at, UTC).isoformat(),
            "tools": {"components": [{"type": "application", "name": "ringfence", "version": __version__}]},
            "component": {
                "type": "container",
                "bom-ref": "image",
                "name": image,
                "version": archive.recipe_digest[:16],
                "hashes": [{"alg": "SHA-256", "content": archive.sha256}],
            },
        },
        "components": [
            {
                "type": "operating-system",
                "bom-ref": "system",
                "name": system.get("ID", "linux"),
                "version": system.get("VERSION_ID", ""),
            },
            *(_component(each) for each in sorted(components)),
        ],
    }


def _component(component: Component) -> dict[str, str]:
    name = component.name.rpartition("/")[2] if component.kind == "deb" else component.name
    purl = component.purl
    return {"type": "library", "bom-ref": purl, "name": name, "version": component.version, "purl": purl}


def _contents(archive: Archive) -> tuple[Mapping[str, str], set[Component]]:
    system: dict[str, str] = {}
    status = ""
    found: set[Component] = set()
    with tarfile.open(archive.path, "r:") as tar:
        for member in tar:
            if not member.isfile() or member.size > _MOST_BYTES:
                continue
            if member.name == _DPKG_STATUS:
                status = _text(tar, member)
            elif member.name == _OS_RELEASE or member.name.endswith("usr/lib/os-release"):
                system = _release(_text(tar, member))
            elif _DIST_INFO.fullmatch(member.name):
                found |= set(_python(_text(tar, member)))
            elif _NPM_PACKAGE.fullmatch(member.name):
                found |= set(_npm(_text(tar, member)))
    return system, found | set(_debian(status, system))


def _debian(status: str, system: Mapping[str, str]) -> Iterator[Component]:
    distro = f"{system.get('ID', 'debian')}-{system.get('VERSION_ID', '')}"
    for paragraph in status.split("\n\n"):
        said = HeaderParser().parsestr(paragraph)
        if said.get("Status", "").endswith(" installed"):
            qualifiers = [("arch", said["Architecture"]), ("distro", distro)]
            if source := said.get("Source", "").partition(" ")[0]:  # advisories are about source packages
                qualifiers.append(("upstream", source))
            yield Component("deb", f"debian/{said['Package']}", said["Version"], tuple(qualifiers))


def _python(metadata: str) -> Iterator[Component]:
    said = HeaderParser().parsestr(metadata)
    if said.get("Name") and said.get("Version"):
        yield Component("pypi", re.sub(r"[-_.]+", "-", said["Name"]).lower(), said["Version"])


def _npm(manifest: str) -> Iterator[Component]:
    try:
        said = json.loads(manifest)
        name, version = str(said["name"]), str(said["version"])
    except (ValueError, TypeError, KeyError):  # many packages keep a manifest of nothing, for the loader only
        return
    yield Component("npm", name, version)


def _release(text: str) -> dict[str, str]:
    pairs = (line.partition("=") for line in text.splitlines())
    return {name: value.strip('"') for name, _, value in pairs}


def _text(tar: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    file = tar.extractfile(member)
    return "" if file is None else file.read().decode("utf-8", "replace")
