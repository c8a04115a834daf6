"""Attack: read a file of the host that the box does not show, by name, by link, through /proc or by climbing."""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.security.conftest import Ask, Run

pytestmark = pytest.mark.guarantee(1)

SECRET = "SECRET-OF-THE-HOST"

READ_EACH = """
for path in given:
    try:
        said[path] = open(path, errors='replace').read()
    except OSError as error:
        said[path] = errno.errorcode[error.errno]
"""

AROUND_THE_ROOT = """
import os.path
path = given[0]
doors = ['/proc/self/root', '/proc/self/cwd/../../../../..', '/proc/thread-self/root', '/..', '/proc/1/cwd']
doors += [f'/proc/{pid}/root' for pid in range(1, 100)]
for number in range(64):
    doors += [f'/proc/self/fd/{number}', f'/proc/self/fd/{number}/..', f'/dev/fd/{number}/../..']
os.symlink(path, 'link')
said['link'] = attempt(open, 'link')
said['hard link'] = attempt(os.link, path, 'hard')
for door in doors:
    try:
        open(door + path)
        said[door] = 'done'
    except OSError:
        pass
root = os.open('/', os.O_RDONLY)
for _ in range(64):
    root = os.open('..', os.O_RDONLY, dir_fd=root)
said['climb'] = attempt(os.open, path.lstrip('/'), os.O_RDONLY, dir_fd=root)
said['chroot'] = attempt(os.chroot, '/tmp')
"""

WALK = """
import stat
names = set(given)
for directory, folders, files in os.walk('/'):
    said.update({os.path.join(directory, name): 'seen' for name in names & {*folders, *files}})
"""


@pytest.fixture
def planted(tmp_path: Path) -> Iterator[list[Path]]:
    """A secret in each place where an application keeps such things."""
    name = f"secret-{uuid.uuid4().hex}"
    home = Path.home()
    places = [tmp_path, Path(tempfile.gettempdir()), Path("/dev/shm"), Path.cwd(), home, home / ".ringfence"]
    made = []
    for place in places:
        try:
            place.mkdir(exist_ok=True)
            (place / name).write_text(SECRET)
        except OSError:  # not this user's to write in
            continue
        made.append(place / name)
    yield made
    for path in made:
        path.unlink()


def test_planted_secrets_cannot_be_read(backend: str, ask: Ask, unboxed: Ask, planted: list[Path]) -> None:
    paths = [str(path) for path in planted]
    assert len(paths) >= 3
    assert unboxed(READ_EACH, *paths) == dict.fromkeys(paths, SECRET)
    # an image has a /root of its own, which is shut
    shut = {path: "EACCES" for path in paths if backend == "docker" and path.startswith("/root/")}
    assert ask(READ_EACH, *paths) == {**dict.fromkeys(paths, "ENOENT"), **shut}


def test_no_walk_through_the_box_meets_a_planted_secret(ask: Ask, planted: list[Path]) -> None:
    assert ask(WALK, planted[0].name) == {}


def test_no_way_around_the_root_leads_to_the_host(ask: Ask, planted: list[Path]) -> None:
    said = ask(AROUND_THE_ROOT, str(planted[0]))
    assert said == {"link": "ENOENT", "hard link": "ENOENT", "climb": "ENOENT", "chroot": "EPERM"}


@pytest.mark.promise("G1 bare view")
def test_the_files_of_the_system_that_hold_secrets_are_not_there(ask: Ask) -> None:
    kept = ["/etc/shadow", "/etc/machine-id", "/etc/ssh", "/root", "/boot", "/sys", "/var/lib", "/var/run/docker.sock"]
    kept += ["/run/docker.sock", "/run/containerd/containerd.sock", "/run/systemd", "/dev/mem", "/dev/kmsg", "/dev/sda"]
    kept += [
        "/dev/vda",
        "/dev/kvm",
        "/dev/fuse",
        "/dev/net/tun",
        "/dev/tty",
        "/dev/ptmx",
        "/dev/pts/0",
        "/dev/pts/ptmx",
        "/etc/ssl/private",
    ]
    here = [path for path in kept if os.path.exists(path)]
    assert here
    assert ask(READ_EACH, *kept) == dict.fromkeys(kept, "ENOENT")


@pytest.mark.promise("G1 bare view")
def test_accounts_of_the_host_are_not_listed(box: Run) -> None:
    assert box("print(open('/etc/passwd').read())").stdout.split("\n")[0].startswith("sandbox:x:1000:1000:")
    assert "root" not in box("print(open('/etc/passwd').read())").stdout


def test_the_working_directory_of_the_application_does_not_shine_through(box: Run) -> None:
    assert box("import os; print(os.getcwd(), os.listdir('.'))").stdout == "/workspace/work []\n"
