"""Audit the pinned requirements; an advisory service that does not answer is said, never taken for a clean bill."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

UNREACHABLE = ("ConnectionError", "ConnectTimeout", "ReadTimeout", "Max retries exceeded", "ServiceError")


def main() -> int:
    """Audit every requirements file and return the exit status."""
    return max(audit(path) for path in sorted(Path("requirements").glob("*.txt")))


def audit(path: Path) -> int:
    """Ask pip-audit about one requirements file, print what it says, and return the exit status."""
    command = [sys.executable, "-m", "pip_audit", "--disable-pip", "--require-hashes", "--progress-spinner=off"]
    done = subprocess.run([*command, "--format=json", "-r", path], capture_output=True, text=True, check=False)
    status, lines = judge(done.stdout, done.stderr)
    for line in lines:
        print(f"audit: {path}: {line}")
    return status


def judge(report: str, complaint: str) -> tuple[int, list[str]]:
    """Return the exit status and the lines to print for what pip-audit wrote on its two streams."""
    try:
        dependencies = json.loads(report)["dependencies"]
    except ValueError:
        if any(sign in complaint for sign in UNREACHABLE):
            return 0, ["NOT audited: the advisory service cannot be reached from here"]
        return 1, ["pip-audit failed", *complaint.splitlines()]

    # pip-audit calls a package that the service does not know clean; a mirror may know none.
    unknown = [dependency["name"] for dependency in dependencies if "skip_reason" in dependency]
    if len(unknown) == len(dependencies):
        return 0, [f"NOT audited: the advisory service answers for none of the {len(unknown)} packages"]
    lines = [f"{name}: NOT audited, the advisory service does not know it" for name in unknown]
    findings = [
        f"{dependency['name']} {dependency['version']}: {finding['id']}, "
        f"fixed in {', '.join(finding['fix_versions']) or 'no version yet'}"
        for dependency in dependencies
        for finding in dependency.get("vulns", ())
    ]
    audited = len(dependencies) - len(unknown)
    return (1 if findings else 0), [*lines, *(findings or [f"no findings in {audited} packages"])]


if __name__ == "__main__":
    sys.exit(main())
