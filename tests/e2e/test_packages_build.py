"""Package environments built by the real clients, against the index, hostile wheels and killed builders.

The local wheels and source archives are made here, so that only the tests marked so need the index. Seen red: with
`--only-binary` left out, the source archive's build program ran and wrote its mark; with the client started
plainly, it outlived its killed builder.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import signal
import socket
import subprocess
import sys
import tarfile
import zipfile
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from ringfence.errors import InvalidRequest, Unavailable
from ringfence.runtimes.installer import Client, find_client, pip_client
from ringfence.runtimes.packages import build, find, sweep, verify
from ringfence.runtimes.python import python_runtime

pytestmark = pytest.mark.timeout(300)

SOURCE = str(Path(__file__).parents[2] / "src")
BUILDER = """
import sys
from pathlib import Path
from ringfence.runtimes.installer import Client
from ringfence.runtimes.packages import build
from ringfence.runtimes.python import python_runtime
store, requirement, name, *program = sys.argv[1:]
client = Client(name, tuple(program))
made = build([requirement], Path(store), python_runtime().executable, client=client, on_progress=print)
print(made.digest)
"""


@pytest.fixture(params=["uv", "pip"])
def client(request: pytest.FixtureRequest) -> Client:
    if request.param == "pip":
        return pip_client()
    found = find_client()
    if found.name != "uv":
        pytest.skip("uv is not installed")
    return found


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of archives that is all the clients can see."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    for name in ("PIP", "UV"):
        monkeypatch.setenv(f"{name}_FIND_LINKS", str(shelf))
        monkeypatch.setenv(f"{name}_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return shelf


def use_index(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    for name in ("PIP", "UV"):
        monkeypatch.delenv(f"{name}_NO_INDEX")
        monkeypatch.setenv(f"{name}_INDEX_URL", address)


def put_wheel(shelf: Path, name: str, files: Mapping[str, bytes], version: str = "1.0") -> Path:
    info = f"{name}-{version}.dist-info"
    content = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},sha256={_record_hash(data)},{len(data)}\n" for path, data in content.items())
    wheel = shelf / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, data in {**content, f"{info}/RECORD": f"{record}{info}/RECORD,,\n".encode()}.items():
            entry = zipfile.ZipInfo(path)
            entry.external_attr = 0o104777 << 16  # set-uid and open to all: modes are ours to choose
            archive.writestr(entry, data)
    return wheel


def put_source(shelf: Path, name: str, program: str) -> None:
    """Put a source archive on the shelf that builds itself, needing nothing else, by running `program`."""
    build_system = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
    with tarfile.open(shelf / f"{name}-1.0.tar.gz", "w:gz") as archive:
        for path, text in {"pyproject.toml": build_system, "backend.py": program, "PKG-INFO": metadata}.items():
            entry = tarfile.TarInfo(f"{name}-1.0/{path}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))


def _record_hash(data: bytes) -> str:
    return urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def imported(tree: Path, code: str) -> str:
    """Run `code` in the guest's interpreter with nothing but the standard library and `tree`."""
    program = f"import sys; sys.path.append({str(tree)!r}); {code}"
    command = [str(python_runtime().executable), "-I", "-S", "-B", "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def start_builder(store: Path, requirement: str, client: Client) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", BUILDER, str(store), requirement, client.name, *client.program],
        env={**os.environ, "PYTHONPATH": SOURCE},
        stdout=subprocess.PIPE,
        text=True,
    )


# --- from the index ---


def test_packages_from_the_index_work_from_a_read_only_tree(tmp_path: Path, client: Client) -> None:
    made = build(["six", "MarkupSafe>=2"], tmp_path / "store", python_runtime().executable, client=client)
    assert [package.name.lower() for package in made.packages] == ["markupsafe", "six"]
    code = "import six, markupsafe._speedups as c; print(six.PY3, c.__file__.endswith('.so'), six.__cached__)"
    compiled = made.path / "__pycache__" / f"six.{sys.implementation.cache_tag}.pyc"
    assert imported(made.path, code) == f"True True {compiled}"
    assert compiled.is_file()
    assert str(tmp_path).encode() not in compiled.read_bytes()
    assert verify(made)


def test_a_package_without_wheels_on_the_index_is_refused(tmp_path: Path, client: Client) -> None:
    with pytest.raises(InvalidRequest) as refused:
        build(["docopt"], tmp_path / "store", python_runtime().executable, client=client)
    assert refused.value.reason == "no_wheel"


@pytest.mark.parametrize("requirement", ["no-such-package-of-ringfence", "six==99"])
def test_a_package_that_does_not_exist_is_the_requests_fault(tmp_path: Path, client: Client, requirement: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        build([requirement], tmp_path / "store", python_runtime().executable, client=client)
    assert refused.value.reason == "package_not_found"


# --- from archives made here ---


def test_a_source_archive_is_refused_and_its_program_never_runs(tmp_path: Path, shelf: Path, client: Client) -> None:
    mark = tmp_path / "ran"
    put_source(shelf, "sourceonly", f"open({str(mark)!r}, 'w').close()\n")
    with pytest.raises(InvalidRequest) as refused:
        build(["sourceonly"], tmp_path / "store", python_runtime().executable, client=client)
    assert refused.value.reason == "no_wheel"
    assert not mark.exists()
    assert list((tmp_path / "store").iterdir()) == []


def test_no_line_of_a_wheel_runs_on_the_host(tmp_path: Path, shelf: Path, client: Client) -> None:
    mark = tmp_path / "ran"
    strike = f"open({str(mark)!r}, 'w').close()\n".encode()
    names = ("hostile/__init__.py", "sitecustomize.py", "usercustomize.py", "pip/__init__.py", "pip/__main__.py")
    files = dict.fromkeys((*names, "compileall.py", "setup.py"), strike)
    put_wheel(shelf, "hostile", {**files, "hostile.pth": b"import hostile\n", "broken.py": b"def (:\n"})
    made = build(["hostile"], tmp_path / "store", python_runtime().executable, client=client)
    assert verify(made)
    assert not mark.exists()


def test_files_are_readable_by_any_guest_and_set_uid_by_none(tmp_path: Path, shelf: Path, client: Client) -> None:
    put_wheel(shelf, "modes", {"modes/__init__.py": b"", "modes/data.bin": b"\0"})
    before = os.umask(0o077)
    try:
        made = build(["modes"], tmp_path / "store", python_runtime().executable, client=client)
    finally:
        os.umask(before)
    found = {path.lstat().st_mode & 0o7777 for path in (made.path, *made.path.rglob("*"))}
    assert found <= {0o755, 0o644}
    assert (tmp_path / "store").stat().st_mode & 0o7777 == 0o700


def test_the_applications_directory_does_not_decide_what_is_installed(
    tmp_path: Path, shelf: Path, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_wheel(shelf, "wanted", {"wanted.py": b"origin = 'shelf'\n"})
    planted = tmp_path / "application"
    planted.mkdir()
    mark = tmp_path / "ran"
    put_wheel(planted, "wanted", {"wanted.py": b"origin = 'planted'\n"}, version="9.0")
    (planted / "uv.toml").write_text(f'find-links = ["{planted}"]\n')
    (planted / "pip").mkdir()
    (planted / "pip/__main__.py").write_text(f"open({str(mark)!r}, 'w').close()\n")
    monkeypatch.chdir(planted)
    made = build(["wanted"], tmp_path / "store", python_runtime().executable, client=client)
    assert imported(made.path, "import wanted; print(wanted.origin)") == "shelf"
    assert not mark.exists()


def test_the_same_wheels_give_the_same_environment_wherever_it_is_built(
    tmp_path: Path, shelf: Path, client: Client
) -> None:
    put_wheel(shelf, "steady", {"steady/__init__.py": b"x = 1\n"})
    first, second = (
        build(["steady"], tmp_path / store, python_runtime().executable, client=client) for store in ("one", "two")
    )
    assert (first.key, first.digest) == (second.key, second.digest)


def test_a_finished_environment_is_not_built_again(tmp_path: Path, shelf: Path, client: Client) -> None:
    wheel = put_wheel(shelf, "once", {"once.py": b""})
    store, said = tmp_path / "store", list[str]()
    first = build(["once"], store, python_runtime().executable, client=client, on_progress=said.append)
    wheel.unlink()
    assert build(["Once "], store, python_runtime().executable, client=client, on_progress=said.append) == first
    assert said == [f"installing once with {client.name}", "compiling"]


DAMAGES: dict[str, Callable[[Path, Path], object]] = {
    "manifest gone": lambda _tree, manifest: manifest.unlink(),
    "manifest cut": lambda _tree, manifest: manifest.write_bytes(manifest.read_bytes()[:-40]),
    "other requirements": lambda _tree, manifest: manifest.write_text(manifest.read_text().replace("whole", "other")),
    "file gone": lambda tree, _manifest: (tree / "whole.py").unlink(),
    "file added": lambda tree, _manifest: (tree / "json.py").touch(),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_environment_is_not_used_and_is_built_again(tmp_path: Path, shelf: Path, damage: str) -> None:
    put_wheel(shelf, "whole", {"whole.py": b"x = 1\n"})
    store = tmp_path / "store"
    made = build(["whole"], store, python_runtime().executable)
    DAMAGES[damage](made.path, made.path.parent / "manifest.json")
    assert find(store, made.key) is None
    assert build(["whole"], store, python_runtime().executable) == made


def test_a_changed_file_is_found_by_the_full_check(tmp_path: Path, shelf: Path) -> None:
    put_wheel(shelf, "whole", {"whole/__init__.py": b"x = 1\n"})
    made = build(["whole"], tmp_path / "store", python_runtime().executable)
    assert verify(made)
    (made.path / "whole/__init__.py").write_bytes(b"x = 2\n")
    assert not verify(made)


def test_four_builders_at_once_make_one_environment(tmp_path: Path, shelf: Path, client: Client) -> None:
    put_wheel(shelf, "shared", {f"shared/part{number}.py": b"x = 1\n" for number in range(50)})
    builders = [start_builder(tmp_path / "store", "shared", client) for _ in range(4)]
    outputs = [builder.communicate()[0].splitlines() for builder in builders]
    assert [builder.returncode for builder in builders] == [0, 0, 0, 0]
    assert len({lines[-1] for lines in outputs}) == 1
    assert sum(line.startswith("installing") for lines in outputs for line in lines) == 1
    assert [path.name.startswith(".") for path in (tmp_path / "store").iterdir()] == [False]


def test_a_killed_builder_takes_its_client_along_and_leaves_nothing_that_is_used(
    tmp_path: Path, shelf: Path, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    with socket.create_server(("127.0.0.1", 0)) as index:  # takes the client's call and never answers
        index.settimeout(60)
        use_index(monkeypatch, f"http://127.0.0.1:{index.getsockname()[1]}/simple")
        with start_builder(store, "slow", client) as builder:
            connection, _ = index.accept()
            with connection:
                connection.settimeout(60)
                assert connection.recv(1)
                assert len(list(store.glob(".build-*"))) == 1
                os.kill(builder.pid, signal.SIGKILL)
                while connection.recv(65536):  # ends when the client is dead
                    pass
    assert [path.name for path in store.iterdir() if not path.name.startswith(".")] == []
    with next(store.glob("*.lock")).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the client holds it to its very end, a little after its connections
    sweep(store)
    assert list(store.iterdir()) == []


def test_what_a_killed_builder_left_does_not_hinder_the_next(tmp_path: Path, shelf: Path) -> None:
    put_wheel(shelf, "next", {"next.py": b"x = 1\n"})
    store = tmp_path / "store"
    key = build(["next"], tmp_path / "other", python_runtime().executable).key
    half = store / f".build-{key}-dead/home/packages"
    half.mkdir(parents=True)
    (half / "evil.py").touch()
    (store / f".{key}.lock").touch()
    made = build(["next"], store, python_runtime().executable)
    assert not (made.path / "evil.py").exists()
    assert [path.name for path in store.iterdir()] == [key]


def test_an_index_out_of_reach_is_unavailable_and_may_be_tried_again(
    tmp_path: Path, shelf: Path, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    use_index(monkeypatch, f"http://owner:hunter2@127.0.0.1:{port}/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    with pytest.raises(Unavailable) as unavailable:
        build(["six"], tmp_path / "store", python_runtime().executable, client=client)
    assert unavailable.value.reason == "package_index_unreachable"
    assert unavailable.value.retryable
    assert "hunter2" not in str(unavailable.value)


def test_a_store_that_cannot_be_written_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Unavailable) as unavailable:
        build(["six"], tmp_path / "file/store", python_runtime().executable)
    assert unavailable.value.reason == "package_store_unwritable"
