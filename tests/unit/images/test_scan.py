"""What trivy and grype say, read from reports of their published shapes; silence and failure are no all-clear."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ringfence.errors import Unavailable
from ringfence.images.archive import Archive, scan_of, write_beside
from ringfence.images.scan import Scan, Vulnerability, kept_scan, scan

TRIVY = {
    "SchemaVersion": 2,
    "ArtifactType": "cyclonedx",
    "Results": [
        {"Target": "debian 12", "Class": "os-pkgs", "Type": "debian"},
        {
            "Target": "debian 12",
            "Class": "os-pkgs",
            "Vulnerabilities": [
                {
                    "VulnerabilityID": "CVE-2024-0001",
                    "PkgName": "bash",
                    "InstalledVersion": "5.2.15-2",
                    "Severity": "MEDIUM",
                },
                {
                    "VulnerabilityID": "CVE-2024-0002",
                    "PkgName": "libc6",
                    "InstalledVersion": "2.36-9",
                    "FixedVersion": "2.36-10",
                    "Severity": "CRITICAL",
                },
            ],
        },
    ],
}
GRYPE = {
    "matches": [
        {
            "vulnerability": {
                "id": "CVE-2024-0003",
                "severity": "High",
                "fix": {"versions": ["1.1"], "state": "fixed"},
            },
            "artifact": {"name": "jq", "version": "1.0", "type": "deb"},
        },
        {
            "vulnerability": {"id": "GHSA-x", "severity": "Unheard of", "fix": {"versions": [], "state": "unknown"}},
            "artifact": {"name": "tar", "version": "2", "type": "npm"},
        },
    ]
}


def install(directory: Path, name: str, body: str) -> None:
    directory.mkdir(exist_ok=True)
    program = directory / name
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH on which a scanner can be put; the shell and cat are found without it."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path / "bin"


def answer(report: object) -> str:
    return f"/bin/cat <<'END'\n{json.dumps(report)}\nEND"


def asked(tmp_path: Path) -> Scan:
    return scan(tmp_path / "bill.json", sha256="0" * 64, now=5)


def test_trivys_report_is_read_worst_first(programs: Path, tmp_path: Path) -> None:
    install(programs, "trivy", f'[ "$1 $5" = "sbom {tmp_path}/bill.json" ] || exit 9\n{answer(TRIVY)}')
    found = asked(tmp_path)
    assert found.found == (
        Vulnerability("CVE-2024-0002", "libc6", "2.36-9", "critical", "2.36-10"),
        Vulnerability("CVE-2024-0001", "bash", "5.2.15-2", "medium", None),
    )
    assert [each.id for each in found.at_least("high")] == ["CVE-2024-0002"]


def test_grypes_report_is_read_and_a_severity_nobody_knows_stays_in_it(programs: Path, tmp_path: Path) -> None:
    install(programs, "grype", f'[ "$4" = "sbom:{tmp_path}/bill.json" ] || exit 9\n{answer(GRYPE)}')
    assert asked(tmp_path).found == (
        Vulnerability("CVE-2024-0003", "jq", "1.0", "high", "1.1"),
        Vulnerability("GHSA-x", "tar", "2", "unknown", None),
    )


@pytest.mark.parametrize("body", ["exit 1", "echo 'no database' >&2; exit 2", "echo not json", "echo '[]'"])
def test_a_scanner_that_fails_has_not_said_that_all_is_well(programs: Path, tmp_path: Path, body: str) -> None:
    install(programs, "trivy", body)
    with pytest.raises(Unavailable, match="trivy"):
        asked(tmp_path)


def test_no_scanner_is_an_error_with_a_fix(programs: Path, tmp_path: Path) -> None:
    with pytest.raises(Unavailable) as refused:
        asked(tmp_path)
    assert "trivy or grype" in str(refused.value.fix)


def test_a_scan_is_kept_for_the_archive_it_was_made_of(tmp_path: Path) -> None:
    archive = Archive(tmp_path / "rootfs-x.tar", "r", "bookworm", "x86_64", 1, "a" * 64, 1)
    assert kept_scan(archive) is None
    made = Scan("trivy", 3, "a" * 64, (Vulnerability("CVE-1", "p", "1", "low", None),))
    write_beside(scan_of(archive), made.to_json())
    assert kept_scan(archive) == made
    rebuilt = Archive(tmp_path / "rootfs-x.tar", "r", "bookworm", "x86_64", 2, "b" * 64, 1)
    assert kept_scan(rebuilt) is None
