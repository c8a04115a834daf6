"""Unpack a requirements file's wheels for the image's Python: not one line of them runs while the image is made."""

from __future__ import annotations

from pathlib import Path

from ringfence.runtimes.installer import Client, explain, find_client, run

BUILD_SECONDS = 900.0


def unpack(requirements: str, python: str, workshop: Path) -> Path:
    """Return a directory with the packages of the requirements file `requirements`, for Python `python` (as `3.11`).

    Raises:
        InvalidRequest: A package does not exist, has no wheel, or is not the one whose hash the file gives.
        Unavailable: There is no package client, or the index does not answer.
    """
    listed, tree, log = workshop / "requirements.txt", workshop / "wheels", workshop / "pip.log"
    listed.write_text(requirements)
    tree.mkdir()
    ended = run(unpack_command(find_client(), listed, tree, python, log), workshop, BUILD_SECONDS, ())
    if ended.returncode != 0:
        names = [line.split(" ")[0] for line in requirements.splitlines() if line and line[0] not in "# "]
        raise explain(names, ended.stdout + ended.stderr, log.read_text() if log.is_file() else "")
    return tree


def unpack_command(client: Client, listed: Path, tree: Path, python: str, log: Path) -> list[str]:
    """Return the command of the package client; hashes in the file are checked, and one makes all of them needed."""
    options = ["--target", str(tree), "--python-version", python, "--requirement", str(listed)]
    if client.name == "uv":
        return [*client.program, "pip", "install", *options, "--no-build", "--no-progress", "--link-mode", "copy"]
    options += [
        "--only-binary",
        ":all:",
        "--no-compile",
        "--no-input",
        "--disable-pip-version-check",
        "--log",
        str(log),
    ]
    return [*client.program, "install", *options]
