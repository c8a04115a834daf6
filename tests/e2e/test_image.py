"""The sandbox image as `ringfence image` makes it, in a real engine: what is in it, who runs, what it leaves out."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.model.bom import Bom
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from tests import container_engine

from ringfence.images import archive as archives
from ringfence.images import rootfs
from ringfence.isolation.linux.seccomp.container import PROFILE

pytestmark = [pytest.mark.once, pytest.mark.needs("docker")]

NAME = "ringfence/sandbox:by-command"


def ringfence(*words: str, timeout: float = 50, **variables: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "RINGFENCE_DOCKER_URL": container_engine.engine().url, "RINGFENCE_DOCKER_IMAGE": NAME}
    command = [sys.executable, "-m", "ringfence", "image", *words]
    return subprocess.run(
        command, env={**environ, **variables}, capture_output=True, text=True, timeout=timeout, check=False
    )


def answer(*words: str, **options: Any) -> dict[str, Any]:
    done = ringfence(*words, "--json", **options)
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    return said


@cache
def built() -> dict[str, Any]:
    """Give the archive, which `tools/sandbox-image` made, to the engine, as a person does."""
    return answer("build")


def inside(*words: str, image: str = NAME, user: str = "sandbox") -> str:
    options = (
        f"--user={user}",
        "--rm",
        "--network=none",
        "--cap-drop=ALL",
        "--security-opt=no-new-privileges",
        "--read-only",
    )
    engine = container_engine.engine()
    done = engine.docker("run", *options, f"--security-opt=seccomp={PROFILE}", "--tmpfs=/tmp", image, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


@cache
def config(image: str = NAME) -> dict[str, Any]:
    built()
    (said,) = json.loads(container_engine.engine().docker("image", "inspect", image).stdout)
    return dict(said)


def test_what_was_built_is_in_the_engine_under_the_configured_name_and_says_what_it_is() -> None:
    assert (built()["image"], built()["image_digest"]) == (NAME, config()["Id"])
    labels = config()["Config"]["Labels"]
    assert labels["dev.ringfence.archive"] == built()["sha256"]
    assert labels["org.opencontainers.image.base.name"] == "debian:bookworm"


def check_programs(image: str) -> None:
    script = (
        "python3 --version; python --version; jq --version; bash --version | head -1; git --version; node --version"
    )
    said = inside(
        "bash", "-c", f"{script}; npm --version; find --version | head -1; ls --version | head -1", image=image
    )
    names = [line.split()[0].split("-")[0] for line in said.splitlines()]
    assert names[:5] == ["Python", "Python", "jq", "GNU", "git"]
    assert int(names[5].removeprefix("v").split(".")[0]) >= 24
    assert names[7:] == ["find", "ls"]


def check_user(image: str) -> None:
    said = inside("bash", "-c", "id -un; id -u; id -g; id -G; getent passwd sandbox; pwd", image=image)
    entry = "sandbox:x:1000:1000::/home/sandbox:/bin/bash"
    assert said.splitlines() == ["sandbox", "1000", "1000", "1000", entry, "/workspace"]


def check_places(image: str) -> None:
    places = ("/workspace", "/workspace/inputs", "/workspace/work", "/workspace/artifacts", "/output", "/output/.")
    assert (
        inside("stat", "-L", "-c", "%U:%G %F", *places, image=image).splitlines() == ["sandbox:sandbox directory"] * 6
    )
    links = "readlink /output /workspace/output /workspace/code /workspace/data /var/tmp"
    expected = ["/workspace/artifacts", "artifacts", "work", "work", "/tmp"]
    assert inside("bash", "-c", links, image=image).splitlines() == expected


def check_entry_point(image: str) -> None:
    said = config(image)["Config"]
    assert (said["Entrypoint"], said["User"], said["WorkingDir"]) == (["/entrypoint.sh"], "sandbox", "/workspace")
    # Twenty orphans end; an init that does not reap keeps them as zombies.
    script = (
        "for n in $(seq 20); do (true & exec true); done; sleep 0.2; tr '\\0' ' ' </proc/1/cmdline;"
        "grep -l '^State:.Z' /proc/[0-9]*/status | wc -l"
    )
    said_inside = inside("bash", "-c", script, image=image)
    assert said_inside.startswith("tini -g -- bash")
    assert said_inside.endswith("0\n")


def check_nobody_can_become_somebody_else(image: str) -> None:
    script = "find / -xdev -type f -perm /6000 2>/dev/null || :"  # without capabilities root may not look everywhere
    assert inside("bash", "-c", script, image=image, user="root") == ""


def check_caches_are_empty(image: str) -> None:
    caches = ("/var/lib/apt/lists", "/var/cache/apt/archives", "/root/.cache", "/home/sandbox/.cache")
    script = f"find {' '.join(caches)} -type f -not -name lock 2>/dev/null || :"
    assert inside("bash", "-c", script, image=image, user="root") == ""


CHECKS = [
    check_programs,
    check_user,
    check_places,
    check_entry_point,
    check_nobody_can_become_somebody_else,
    check_caches_are_empty,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_the_image_of_packages(check: Any) -> None:
    built()
    check(NAME)


def test_nothing_of_the_machine_that_built_it_is_in_it() -> None:
    built()
    kept = "find /etc/apt/apt.conf.d /root /home /var/log -type f | sort"
    said = {Path(line).name for line in inside("bash", "-c", kept, user="root").splitlines()}
    assert said <= {"01autoremove", "70debconf", ".bashrc", ".profile", ".bash_logout"}
    with subprocess.Popen(["tar", "xOf", built()["archive"], "./etc/hostname", "./etc/resolv.conf"], stdout=-1) as tar:
        assert tar.communicate()[0] == b"sandbox\n"


# --- the same by Dockerfile ---


@pytest.fixture(scope="module")
def by_dockerfile() -> Iterator[str]:
    """Have the engine follow Dockerfile.sandbox, from a base that no registry is asked for: our own, stripped."""
    engine, base = container_engine.engine(), "ringfence-tests/base"
    engine.load(container_engine.sandbox_rootfs(), base, changes=[])
    stripped = "ringfence-tests/stripped"
    # As python:3.12-slim has none of it: our user and places, the packages, and Debian's word against pip.
    undo = (
        "userdel -r sandbox 2>/dev/null; rm -rf /workspace /output /var/tmp /usr/local/bin/n* /usr/lib/python3*/EXTERN*"
        " /usr/local/lib/python3*/dist-packages/* && mkdir /var/tmp"
        " && cat /host-authorities >/etc/ssl/certs/ca-certificates.crt"
    )
    # Whom this machine believes about names, the build has to believe as well: a proxy may stand before the index.
    trusted = f"--volume={Path(ssl.get_default_verify_paths().openssl_cafile).resolve()}:/host-authorities:ro"
    done = engine.docker("run", "--network=none", "--name=stripping", trusted, base, "bash", "-c", undo)
    assert done.returncode == 0, done.stderr
    assert engine.docker("commit", "--change=USER root", "stripping", stripped).returncode == 0
    name = "ringfence/sandbox:by-dockerfile"
    words = ("build", "--dockerfile", "--base", stripped)
    done = ringfence(*words, "--json", timeout=280, RINGFENCE_DOCKER_IMAGE=name)
    assert done.returncode == 0, done.stdout
    yield name
    engine.docker("rm", "stripping")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_the_image_of_the_dockerfile(by_dockerfile: str, check: Any) -> None:
    check(by_dockerfile)


def test_the_dockerfile_names_the_base_and_what_is_in_it() -> None:
    text = archives.context_file("Dockerfile.sandbox").read_text()
    assert "ARG BASE=python:3.12-slim\nFROM ${BASE}\n" in text
    assert "USER sandbox\nWORKDIR /workspace\nENTRYPOINT" in text
    assert (
        Path(__file__)
        .parents[2]
        .joinpath("deploy/image/Dockerfile.sandbox")
        .samefile(archives.context_file("Dockerfile.sandbox"))
    )


# --- a list of packages ---


@pytest.mark.timeout(300)
def test_a_requirements_file_is_put_in(tmp_path: Path) -> None:
    """Not by another archive, which takes a minute: by mounting what one would be given, where it would be put."""
    from ringfence.images.wheels import unpack

    tree = unpack("iniconfig==2.0.0\n", "3.11", tmp_path)
    mounted = f"{tree}:/usr/local/lib/python3.11/dist-packages:ro"
    engine, image = container_engine.engine(), container_engine.sandbox_image()
    done = engine.docker(
        *(
            "run",
            "--rm",
            "--network=none",
            "-v",
            mounted,
            image,
            "python",
            "-c",
            "import iniconfig; print(iniconfig.__name__)",
        )
    )
    assert done.stdout == "iniconfig\n", done.stderr


# --- bill of materials, age, list, scan ---


def test_the_bill_of_materials_is_valid_and_names_what_the_image_has() -> None:
    built()
    text = ringfence("sbom").stdout
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    bill = Bom.from_json(json.loads(text))  # type: ignore[attr-defined]
    listed = {str(component.purl).partition("@")[0]: component.version for component in bill.components}
    packages = inside("dpkg-query", "-W", "-f", "pkg:deb/debian/${Package} ${Version}\\n").splitlines()
    assert {line.split()[0].replace("+", "%2B"): line.split()[1] for line in packages}.items() <= {
        name.replace("+", "%2B"): version for name, version in listed.items()
    }.items()
    installed = json.loads(inside("python3", "-m", "pip", "list", "--format=json", "--disable-pip-version-check"))
    assert {(f"pkg:pypi/{each['name']}", each["version"]) for each in installed} <= listed.items()
    assert listed["pkg:npm/npm"] == inside("npm", "--version").strip()
    assert Path(built()["bill_of_materials"]).is_file()


def test_the_list_shows_the_archive_and_what_the_engine_has_of_it() -> None:
    built()
    shown = answer("list")
    assert built()["archive"] in [each["archive"] for each in shown["archives"]]
    assert (shown["engine"]["image"], shown["engine"]["archive"]) == (NAME, built()["sha256"])


def test_an_old_image_is_told_by_the_exit_code(tmp_path: Path) -> None:
    cache = tmp_path / "ringfence" / "images"
    cache.mkdir(parents=True, mode=0o700)
    made = archives.find(rootfs.default_recipe(), archives.default_cache())
    assert made is not None
    for path in (made.path, made.path.with_suffix(".json")):
        (cache / path.name).symlink_to(path)
    young = ringfence("age", XDG_CACHE_HOME=str(tmp_path))
    assert young.returncode == 0, young.stderr
    manifest = cache / made.path.with_suffix(".json").name
    said = json.loads(manifest.read_text())
    manifest.unlink()
    manifest.write_text(json.dumps({**said, "built_at": said["built_at"] - 40 * 86_400}))
    old = ringfence("age", XDG_CACHE_HOME=str(tmp_path))
    assert (old.returncode, old.stdout.endswith("too old: ringfence image build --fresh\n")) == (1, True)
    assert ringfence("age", "--max-days", "60", XDG_CACHE_HOME=str(tmp_path)).returncode == 0


def test_a_scan_that_finds_something_bad_enough_fails(tmp_path: Path) -> None:
    scanner = tmp_path / "trivy"
    report = {"Results": [{"Vulnerabilities": [{"VulnerabilityID": "CVE-1", "PkgName": "p", "InstalledVersion": "1"}]}]}
    report["Results"][0]["Vulnerabilities"][0]["Severity"] = "HIGH"
    # It reads what it is given, as the real one does: not the bill, no report.
    scanner.write_text(f"#!/bin/sh\ngrep -q CycloneDX \"$5\" && echo '{json.dumps(report)}'\n")
    scanner.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    kept = Path(built()["archive"]).with_suffix(".scan.json")
    try:
        found = ringfence("scan", PATH=path)
        assert (found.returncode, found.stdout.splitlines()[-1]) == (1, "trivy: 1 known, 1 high or worse"), found.stderr
        assert ringfence("scan", "--fail-on", "critical", PATH=path).returncode == 0
    finally:
        kept.unlink(missing_ok=True)  # nobody really scanned it


# --- refusals ---


def test_no_engine_is_told_before_anything_is_built(tmp_path: Path) -> None:
    done = ringfence("build", RINGFENCE_DOCKER_URL=f"unix://{tmp_path}/none.sock", XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode == 7
    assert "--archive-only" in done.stderr
    assert not (tmp_path / "ringfence").exists()


AS_NOBODY = """
import os, sys
from pathlib import Path
from ringfence.images import rootfs
recipe, cache = rootfs.default_recipe(), Path(sys.argv[1])
os.chown(cache, 4243, 4243)
os.setgroups([]), os.setresgid(4243, 4243, 4243), os.setresuid(4243, 4243, 4243)
try:
    rootfs.build(recipe, cache)
except rootfs.IsolationUnavailable as error:
    print(error, '/', error.fix)
"""


def test_a_user_who_cannot_own_an_images_files_is_refused_with_the_reason() -> None:
    with tempfile.TemporaryDirectory(prefix="rf-image-") as cache:  # not below pytest's, which only root may enter
        done = subprocess.run([sys.executable, "-c", AS_NOBODY, cache], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("cannot make the sandbox image: an ordinary user needs"), done
    assert done.stdout.endswith("/ build it as root\n")


def test_a_cache_that_others_may_write_is_not_used(tmp_path: Path) -> None:
    cache = tmp_path / "ringfence" / "images"
    cache.mkdir(parents=True)
    cache.chmod(0o777)
    done = ringfence("build", "--archive-only", XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode == 7
    assert f"chmod 700 {cache}" in done.stderr


def test_the_profile_is_printed() -> None:
    assert ringfence("seccomp").stdout == PROFILE.read_text()
