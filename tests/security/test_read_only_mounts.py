"""What the operator declares is in every box, for reading; what he did not declare nobody can have shown.

Seen red: over a plain read-only mount a guest connected to the socket in it.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ringfence
from ringfence.errors import InvalidRequest, IsolationUnavailable
from ringfence.workspaces.declared import MOST_MOUNTS, read_only_mounts

pytestmark = pytest.mark.guarantee(1, 2)

PROGRAM = """
import ctypes, errno, json, os, socket
def attempt(what, *arguments):
    try:
        what(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]
    return 'done'
libc = ctypes.CDLL(None, use_errno=True)
root = '/mnt/tools'
print(json.dumps({
    'names': sorted(os.listdir('/mnt')), 'read': open(root + '/bin/tool').read(), 'listed': sorted(os.listdir(root)),
    'write': attempt(open, root + '/bin/tool', 'w'), 'new': attempt(open, root + '/new', 'w'),
    'mkdir': attempt(os.mkdir, root + '/d'), 'unlink': attempt(os.unlink, root + '/bin/tool'),
    'rename': attempt(os.rename, root + '/bin', root + '/b'), 'chmod': attempt(os.chmod, root + '/bin/tool', 0o777),
    'truncate': attempt(os.truncate, root + '/bin/tool', 0), 'link': attempt(os.link, root + '/bin/tool', root + '/l'),
    'symlink': attempt(os.symlink, 'x', root + '/s'), 'utime': attempt(os.utime, root + '/bin/tool'),
    'beside': attempt(open, '/mnt/other', 'w'), 'makes': attempt(os.mkdir, '/mnt/other'),
    'out': attempt(open, root + '/out/secret'), 'up': attempt(open, root + '/../../../secret'),
    'pipe': attempt(os.open, root + '/pipe', os.O_WRONLY | os.O_NONBLOCK),
    'socket': attempt(socket.socket(socket.AF_UNIX).connect, root + '/socket'),
    'datagram': attempt(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto, b'x', root + '/socket'),
    'remount': libc.mount(None, root.encode(), None, 32 | 4096, None),
}))
"""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    os.chmod(tmp_path, 0o755)
    for above in tmp_path.parents[:2]:  # the box's user has to be able to come here
        if above.stat().st_uid == os.geteuid():
            os.chmod(above, 0o755)
    (tmp_path / "tools/bin").mkdir(parents=True)
    (tmp_path / "tools/bin/tool").write_text("compiler")
    (tmp_path / "tools/bin/tool").chmod(0o666)
    (tmp_path / "tools").chmod(0o777)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret").write_text("SECRET")
    (tmp_path / "tools/out").symlink_to(tmp_path / "outside")
    os.mkfifo(tmp_path / "tools/pipe")
    (tmp_path / "tools/pipe").chmod(0o666)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(tmp_path / "tools/socket"))
    (tmp_path / "tools/socket").chmod(0o666)
    listening.listen()
    made = tmp_path / "home"
    made.mkdir(mode=0o700)
    with listening:
        yield made


def declare(home: Path, **mounts: object) -> None:
    lines = [f"{name} = {json.dumps(str(path))}" for name, path in mounts.items()]
    (home / "config.toml").write_text("\n".join(["[workspace.ro_mounts]", *lines, ""]))


@pytest.mark.parametrize(
    "isolation",
    [
        pytest.param("native", marks=pytest.mark.needs("native")),
        pytest.param("gvisor", marks=pytest.mark.needs("gvisor")),
    ],
)
def test_a_declared_directory_is_there_and_cannot_be_changed(
    home: Path, isolation: str, request: pytest.FixtureRequest
) -> None:
    if isolation == "gvisor":
        request.getfixturevalue("gvisor_image")
    declare(home, tools=home.parent / "tools")
    before = {path: path.lstat() for path in sorted((home.parent / "tools").rglob("*"))}
    result = ringfence.run(PROGRAM, home=home, isolation=isolation, pool_size=0)
    assert result.exit_code == 0, result.stderr
    said: dict[str, Any] = json.loads(result.stdout)
    assert (said.pop("names"), said.pop("read"), said.pop("remount")) == (["tools"], "compiler", -1)
    assert said.pop("listed") == ["bin", "out", "pipe", "socket"]
    assert (said.pop("out"), said.pop("up")) == ("ENOENT", "ENOENT")
    assert "done" not in said.values()
    after = {path: path.lstat() for path in sorted((home.parent / "tools").rglob("*"))}
    assert {path: (s.st_ino, s.st_mode, s.st_size, s.st_ctime_ns) for path, s in before.items()} == {
        path: (s.st_ino, s.st_mode, s.st_size, s.st_ctime_ns) for path, s in after.items()
    }
    if isolation == "native":
        assert "/mnt/tools is a directory of the host, for reading" in result.isolation.notes
    else:
        made_from = result.isolation.container
        assert made_from is not None
        assert [mount.mode for mount in made_from.mounts if mount.target == "/mnt/tools"] == ["ro"]


@pytest.mark.needs("native")
def test_without_a_declaration_there_is_nothing(home: Path) -> None:
    result = ringfence.run("import os; print(os.path.exists('/mnt/tools'))", home=home, isolation="native", pool_size=0)
    assert (result.stdout, result.stderr) == ("False\n", "")


@pytest.mark.parametrize(
    "text",
    [
        "[workspace]\nmounts = {}",
        "[workspace]\nro_mounts = 1",
        "[workspace.ro_mounts]\ntools = 1",
        "[workspace.ro_mounts]\ntools = 'relative'",
        "[workspace.ro_mounts]\ntools = '/nowhere/at/all'",
        "[workspace.ro_mounts]\ntools = '/etc/passwd'",
        "[workspace.ro_mounts]\n'../x' = '/usr'",
        "[workspace.ro_mounts]\n'A' = '/usr'",
        "[workspace.ro_mounts]\nx = '/'",
        "[workspace.ro_mounts]\nx = '/proc/self'",
        "[workspace.ro_mounts]\nx = '/sys'",
        "[workspace.ro_mounts]\nx = '/dev/shm'",
        "[workspace.ro_mounts]\nx = '/var/run'",
        "workspace = 1",
        "[workspace",
        "[workspace.ro_mounts]\n" + "\n".join(f"m{n} = '/usr'" for n in range(MOST_MOUNTS + 1)),
    ],
)
def test_what_cannot_be_shown_is_refused_and_nothing_runs(home: Path, text: str) -> None:
    (home / "config.toml").write_text(text)
    with pytest.raises(InvalidRequest) as refused:
        read_only_mounts(home)
    assert refused.value.reason == "invalid_config"


@pytest.mark.parametrize("where", [".", "..", "workspace", "link"])
def test_the_home_is_shown_to_nobody(home: Path, where: str) -> None:
    (home / "workspace").mkdir()
    (home.parent / "link").symlink_to(home)
    declare(home, own=home.parent / "link" if where == "link" else home / where)
    with pytest.raises(InvalidRequest, match="lie within each other"):
        read_only_mounts(home)


@pytest.mark.needs("bwrap")
def test_bubblewrap_cannot_keep_guests_from_sockets_and_says_so(home: Path) -> None:
    declare(home, tools=home.parent / "tools")
    with pytest.raises(IsolationUnavailable, match="ro_mounts"):
        ringfence.run("print(1)", home=home, isolation="bwrap", pool_size=0)


@pytest.mark.needs("native")
def test_a_wrong_declaration_stops_every_run_of_the_home(home: Path) -> None:
    declare(home, tools="/nowhere/at/all")
    with pytest.raises(InvalidRequest, match="is no directory"):
        ringfence.run("print(1)", home=home, isolation="native", pool_size=0)


def test_a_file_that_is_not_the_homes_cannot_declare_what_nobody_would_read(home: Path, tmp_path: Path) -> None:
    from ringfence.service.settings import read_settings

    elsewhere = tmp_path / "service.toml"
    elsewhere.write_text("[workspace.ro_mounts]\ntools = '/usr'\n")
    with pytest.raises(InvalidRequest, match="belongs into the home's config"):
        read_settings(elsewhere, must_exist=True, environment={})
    declare(home, tools="/usr")
    read_settings(home / "config.toml", must_exist=False, environment={})
