"""Another engine by configuration alone: podman, with its own store, makes the same boxes."""

from __future__ import annotations

import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.command_line import told

pytestmark = [pytest.mark.needs("podman", "root", "system_python"), pytest.mark.guarantee(29), pytest.mark.timeout(180)]

IMAGE = "localhost/ringfence-bare:tests"
WRITABLE = ("workspace/work", "workspace/artifacts", "home/sandbox", "tmp")
LOOK = """
import os, socket
print(os.getuid(), socket.gethostname(), open('/proc/self/mountinfo').read().count('nr_inodes='))
try:
    open('/workspace/inputs/x', 'w')
except OSError as error:
    print(error.errno)
"""


def bare_image(directory: Path) -> Path:
    """Make the tar of a root file system that has a shell, the directories of a run, and nothing else."""
    tarball = directory / "bare.tar"
    needed = subprocess.run(["ldd", "/bin/bash"], capture_output=True, text=True, check=True).stdout
    with tarfile.open(tarball, "w", dereference=True) as tar:
        files = ["/bin/bash", *re.findall(r"/\S+", needed)]
        # a rootless engine would make directories that are not named for itself alone
        above = {str(parent).lstrip("/") for path in files for parent in Path(path).parents} - {""}
        owners = {**dict.fromkeys(sorted({*above, "workspace", "home"}), 0), **dict.fromkeys(WRITABLE, 1000)}
        for path, owner in {".": 0, **owners}.items():
            entry = tarfile.TarInfo(path)
            entry.type, entry.mode, entry.uid, entry.gid = tarfile.DIRTYPE, 0o755, owner, owner
            tar.addfile(entry)
        for path in files:
            tar.add(path)
    return tarball


@pytest.fixture(scope="module")
def podman() -> Iterator[str]:
    """Give the command of a podman whose store is the test's own, with an image that has a shell and nothing else."""
    directory = Path(tempfile.mkdtemp(prefix="rf-podman-"))
    command = f"podman --root {directory}/root --runroot {directory}/run"
    tarball = bare_image(directory)
    made = subprocess.run(
        [*command.split(), "import", str(tarball), IMAGE], capture_output=True, text=True, check=False
    )
    try:
        if made.returncode:
            pytest.skip(f"podman does not work here: {made.stderr.strip()}")
        yield command
        left = subprocess.run([*command.split(), "ps", "--all", "--quiet"], capture_output=True, text=True, check=True)
        assert left.stdout == ""
        volumes = subprocess.run(
            [*command.split(), "volume", "ls", "--quiet"], capture_output=True, text=True, check=True
        )
        assert volumes.stdout == ""
    finally:
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            if line.split()[4].startswith(f"{directory}/"):
                subprocess.run(["umount", "-l", line.split()[4]], check=False)
        shutil.rmtree(directory, ignore_errors=True)


def test_podman_makes_the_same_boxes(podman: str, tmp_path: Path) -> None:
    words: dict[str, Any] = {
        "RINGFENCE_DOCKER_COMMAND": podman,
        "RINGFENCE_DOCKER_IMAGE": IMAGE,
        "RINGFENCE_DOCKER_BRING_PYTHON": "true",
    }
    answer = told(tmp_path, "run", "--isolation", "docker", "-c", LOOK, **words)
    uid, name, bounded = answer["stdout"].split("\n")[0].split()
    assert (uid, name) == ("1000", answer["sandbox_id"])
    assert int(bounded) >= 4  # every directory that can be written has a bound on files
    assert answer["stdout"].split("\n")[1] == "30"
    layers = answer["isolation"]
    assert layers["capabilities_empty"]
    assert layers["no_new_privs"]
    assert layers["seccomp_filters"] >= 2
    assert {"mnt", "pid", "net", "ipc", "uts"} <= set(layers["namespaces"])
    assert layers["container"]["argv"][0] == "podman"
    assert layers["container"]["image_digest"].startswith("sha256:")
