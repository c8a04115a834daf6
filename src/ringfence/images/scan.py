"""Hold an image's bill of materials against a vulnerability database, with trivy or grype where one is installed."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ringfence.dataclass import dataclass
from ringfence.errors import Unavailable
from ringfence.images.archive import Archive, scan_of

SEVERITIES = ("unknown", "negligible", "low", "medium", "high", "critical")
_SCAN_SECONDS = 900.0


@dataclass(frozen=True, slots=True)
class Vulnerability:
    """One known weakness of one package, as the scanner names it."""

    id: str
    package: str
    version: str
    severity: str
    fixed_in: str | None


@dataclass(frozen=True, slots=True)
class Scan:
    """What a scanner said about one archive, and when."""

    scanner: str
    scanned_at: int
    sha256: str
    """Of the archive."""
    found: tuple[Vulnerability, ...]

    def at_least(self, severity: str) -> list[Vulnerability]:
        """Return those that are as bad as `severity`, or worse."""
        return [each for each in self.found if SEVERITIES.index(each.severity) >= SEVERITIES.index(severity)]

    def to_json(self) -> dict[str, Any]:
        """Return the scan as plain JSON values."""
        return {**asdict(self), "found": [asdict(each) for each in self.found]}


def scan_from_json(said: Mapping[str, Any]) -> Scan:
    """Return a scan that was kept."""
    return Scan(
        said["scanner"], said["scanned_at"], said["sha256"], tuple(Vulnerability(**each) for each in said["found"])
    )


def kept_scan(archive: Archive) -> Scan | None:
    """Return the last scan of `archive`, unless the archive was made anew since."""
    try:
        said = scan_from_json(json.loads(scan_of(archive).read_bytes()))
    except FileNotFoundError:
        return None
    return said if said.sha256 == archive.sha256 else None


def scan(bill: Path, *, sha256: str, now: int) -> Scan:
    """Ask the scanner that is installed about a bill of materials.

    Raises:
        Unavailable: There is no scanner, or it failed: nothing is known then, which is not the same as nothing found.
    """
    for name, (command, read) in _SCANNERS.items():
        program = shutil.which(name)
        if program is not None:
            answer = _run(name, [program, *command, *_target(name, bill)])
            found = tuple(
                sorted(read(answer), key=lambda each: (-SEVERITIES.index(each.severity), each.id, each.package))
            )
            return Scan(name, now, sha256, found)
    raise Unavailable(
        "no scanner is installed, so nothing is known about the image's weaknesses",
        fix=f"install trivy or grype and scan again, or give them {bill} elsewhere",
    )


def _target(name: str, bill: Path) -> list[str]:
    return [str(bill)] if name == "trivy" else [f"sbom:{bill}"]


def _run(name: str, command: list[str]) -> Mapping[str, Any]:
    try:
        ended = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SCAN_SECONDS, check=True
        )
        answer = json.loads(ended.stdout)
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{name} did not come to an end") from error
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or ["it said nothing"])[-1][:300]
        raise Unavailable(f"{name} failed: {last}", fix="most often it could not fetch its database") from error
    except ValueError as error:
        raise Unavailable(f"{name} did not answer in JSON: {error}") from error
    if not isinstance(answer, dict):
        raise Unavailable(f"{name} answered with no report")
    return answer


def _trivy(answer: Mapping[str, Any]) -> Iterator[Vulnerability]:
    for result in answer.get("Results") or ():
        for each in result.get("Vulnerabilities") or ():
            yield Vulnerability(
                str(each["VulnerabilityID"]),
                str(each["PkgName"]),
                str(each["InstalledVersion"]),
                _severity(each.get("Severity")),
                each.get("FixedVersion") or None,
            )


def _grype(answer: Mapping[str, Any]) -> Iterator[Vulnerability]:
    for match in answer.get("matches") or ():
        weakness, artifact = match["vulnerability"], match["artifact"]
        yield Vulnerability(
            str(weakness["id"]),
            str(artifact["name"]),
            str(artifact["version"]),
            _severity(weakness.get("severity")),
            ", ".join((weakness.get("fix") or {}).get("versions") or ()) or None,
        )


def _severity(said: object) -> str:
    """Return one of our names; what is not known is never taken for harmless by hiding it."""
    name = str(said).lower()
    return name if name in SEVERITIES else "unknown"


_SCANNERS: Mapping[str, tuple[list[str], Callable[[Mapping[str, Any]], Iterator[Vulnerability]]]] = {
    "trivy": (["sbom", "--quiet", "--format", "json"], _trivy),
    "grype": (["--quiet", "--output", "json"], _grype),
}
