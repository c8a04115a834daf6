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
    """Audit one requirements file: 0 without findings, 1 with."""
    command = [sys.executable, "-m", "pip_audit", "--disable-pip", "--require-hashes", "--progress-spinner=off"]
    done = subprocess.run([*command, "--format=json", "-r", path], capture_output=True, text=True, check=False)
    try:
        dependencies = json.loads(done.stdout)["dependencies"]
    except ValueError:
        if any(sign in done.stderr for sign in UNREACHABLE):
            print(f"audit: {path} NOT audited: the advisory service cannot be reached from here")
            return 0
        print(done.stderr, file=sys.stderr)
        return 1

    # A service that does not know a package answers like one that has nothing against it.
    unknown = [dependency["name"] for dependency in dependencies if "skip_reason" in dependency]
    findings = [
        f"audit: {path}: {dependency['name']} {dependency['version']}: {finding['id']}, "
        f"fixed in {', '.join(finding['fix_versions']) or 'no version yet'}"
        for dependency in dependencies
        for finding in dependency.get("vulns", ())
    ]
    if len(unknown) == len(dependencies):
        print(f"audit: {path} NOT audited: the advisory service answers for none of its {len(unknown)} packages")
        return 0
    if unknown:
        print(f"audit: {path}: no advisory data for {', '.join(unknown)}")
    print("\n".join(findings) or f"audit: {path}: no findings in {len(dependencies) - len(unknown)} packages audited")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
