"""A project may begin with a repository of the operator's: a copy of its own, and no way back to what was copied.

Seen red: copied as it lay, a repository brought the password of its remote and the hooks of the host into the box.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.http_service import Answer, Service, serving

from ringfence import SandboxManager
from ringfence.database.address import open_database
from ringfence.errors import InvalidRequest, QuotaExceeded, RingfenceError
from ringfence.journal.reader import reading
from ringfence.workspaces.registered import MOST_REPOSITORIES, repositories

pytestmark = [pytest.mark.guarantee(1, 2, 16, 21, 37), pytest.mark.needs("native")]
PASSWORD = "hunter2-of-the-remote"


def git(where: Path, *words: str) -> None:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "protocol.file.allow=always")
    subprocess.run(["git", *identity, *words], cwd=where, check=True, capture_output=True, timeout=50)


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with everything in it that must not come along, and everything that must."""
    root = tmp_path_factory.mktemp("operator")
    (root / "outside").write_text("SECRET OF THE HOST")
    library, made = root / "library", root / "app"
    for each in (library, made):
        each.mkdir()
        git(each, "init", "-q", "-b", "main")
        (each / "README").write_text(f"{each.name}\n")
        git(each, "add", ".")
        git(each, "commit", "-q", "-m", "first")
    git(made, "submodule", "--quiet", "add", str(library), "vendor/library")
    git(made, "commit", "-q", "-m", "second")
    git(made, "branch", "hooks")  # a branch of that name is history, and no hook
    git(made, "remote", "add", "origin", f"https://user:{PASSWORD}@git.example.com/app.git")
    git(made, "config", "http.extraheader", f"Authorization: Basic {PASSWORD}")
    git(made, "config", "core.hooksPath", "/opt/hooks")
    git(made, "config", "core.fsmonitor", "/opt/monitor")
    for hooks in (made / ".git/hooks", made / ".git/modules/vendor/library/hooks"):
        (hooks / "post-checkout").write_text("#!/bin/sh\ntouch /tmp/hooked\n")
        (hooks / "post-checkout").chmod(0o755)
    (made / ".git/git-crypt/keys").mkdir(parents=True)
    (made / ".git/git-crypt/keys/default").write_text(PASSWORD)  # where it keeps the key of an unlocked repository
    (made / "out").symlink_to(root / "outside")
    (made / "etc").symlink_to("/etc")
    os.mkfifo(made / "pipe")
    (made / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (made / "run.sh").chmod(0o4755)
    (made / "private").mkdir(mode=0o700)
    (made / "private/notes").write_text("for the service to read\n")
    (made / "private/notes").chmod(0o600)
    return made


def register(home: Path, text: str) -> None:
    home.mkdir(mode=0o700, exist_ok=True)
    (home / "config.toml").write_text(f"[workspace.repositories]\n{text}\n")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, app: Path) -> Iterator[Service]:
    home = tmp_path_factory.mktemp("served")
    only = json.dumps(str(app.parent / "library"))
    register(home, f'app = {json.dumps(str(app))}\nlibrary = {{path = {only}, tenants = ["acme"]}}')
    with serving(home) as running:
        yield running


@pytest.fixture(scope="module")
def keys(service: Service) -> dict[str, str]:
    return {tenant: service.make_key("agent", tenant) for tenant in ("acme", "other")}


def check_out(service: Service, key: str, project: str, repository: str) -> Answer:
    return service.ask("POST", f"/sandbox/workspaces/{project}/checkout", {"repository": repository}, key=key)


def shell(service: Service, key: str, project: str, command: str) -> Any:
    body = {"project_id": project, "exec": {"kind": "shell", "command": "bash", "args": ["-c", command]}}
    return service.ask("POST", "/sandbox/execs", body, key=key).json


def tree(root: Path) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        found[str(path)] = (status.st_ino, status.st_mode, status.st_nlink, status.st_size, status.st_ctime_ns)
    return found


def test_a_copy_is_edited_in_its_box_and_the_repository_is_never_touched(
    service: Service, keys: dict[str, str], app: Path
) -> None:
    before = tree(app)
    made = check_out(service, keys["acme"], "edited", "app")
    assert (made.status, made.json["repository"], made.json["skipped"]) == (201, "app", 1), made.body
    snapshot = service.ask("POST", "/sandbox/workspaces/edited/snapshots", {}, key=keys["acme"]).json["snapshot_id"]
    ran = shell(
        service, keys["acme"], "edited", "echo more >> README; rm -r vendor; chmod 777 run.sh; cat private/notes"
    )
    assert (ran["exit_code"], ran["stdout"]) == (0, "for the service to read\n"), ran
    diff = service.ask("GET", f"/sandbox/workspaces/edited/diff?since={snapshot}", key=keys["acme"]).json
    assert "+more" in diff["patch"]
    assert {change["path"] for change in diff["changes"]} >= {"README", "vendor", "run.sh"}
    assert tree(app) == before
    copies = service.home / "workspace/tenants/acme/projects/edited/work"
    assert not {path.lstat().st_ino for path in copies.rglob("*")} & {inode for inode, *_ in before.values()}


def test_history_comes_along_and_hooks_remotes_and_passwords_do_not(
    service: Service, keys: dict[str, str], app: Path
) -> None:
    assert check_out(service, keys["acme"], "history", "app").json["left_out"] >= 4
    work = service.home / "workspace/tenants/acme/projects/history/work"
    for path in work.rglob("*"):
        if path.is_file() and not path.is_symlink():
            assert PASSWORD.encode() not in path.read_bytes(), path
            assert not path.stat().st_mode & 0o7000
    assert [str(path) for path in work.rglob("hooks") if path.is_dir()] == []
    ran = shell(
        service, keys["acme"], "history",
        "git log --format=%s; git branch --list hooks; git config --list --local | sort; git -C vendor/library log"
        " --format=%s; git status --short; ls -d /tmp/hooked",
    )  # fmt: skip
    said = ran["stdout"].splitlines()
    assert said[:3] == ["second", "first", "  hooks"], ran
    assert said.count("first") == 2  # the submodule's own
    assert not {line.partition("=")[0] for line in said} & {"core.hookspath", "core.fsmonitor", "http.extraheader"}


def test_links_lead_nowhere_but_into_the_box(service: Service, keys: dict[str, str], app: Path) -> None:
    assert check_out(service, keys["other"], "links", "app").status == 201
    ran = shell(service, keys["other"], "links", "cat out; readlink etc")
    assert "SECRET" not in ran["stdout"] + ran["stderr"]
    for path in ("work/out", "work/etc/passwd"):
        read = service.ask("GET", f"/sandbox/workspaces/links/files?path={path}", key=keys["other"])
        assert (read.status, read.reason) == (403, "path_traversal")


def test_what_is_another_tenants_or_nobodys_is_refused_alike_and_makes_no_project(
    service: Service, keys: dict[str, str]
) -> None:
    foreign = check_out(service, keys["other"], "nothing", "library")
    unknown = check_out(service, keys["other"], "nothing", "no-such")
    assert (foreign.status, foreign.reason) == (404, "not_found")
    assert {**foreign.json, "details": {}} == {**unknown.json, "details": {}}
    listed = service.ask("GET", "/sandbox/workspaces", key=keys["other"]).json["projects"]
    assert "nothing" not in [project["project_id"] for project in listed]
    for tenant, names in (("other", ["app"]), ("acme", ["app", "library"])):
        told = service.ask("GET", "/sandbox/repositories", key=keys[tenant])
        assert told.json == {"repositories": [{"repository": name} for name in names]}
        assert str(service.home.parent) not in told.body.decode()


def test_files_that_are_there_are_never_replaced_by_a_copy(service: Service, keys: dict[str, str]) -> None:
    service.ask("PUT", "/sandbox/workspaces/full/files?path=work/mine", b"mine", key=keys["acme"])
    refused = check_out(service, keys["acme"], "full", "library")
    assert (refused.status, refused.reason) == (409, "not_empty")
    assert service.ask("GET", "/sandbox/workspaces/full/files?path=work/mine", key=keys["acme"]).body == b"mine"
    assert service.ask("POST", "/sandbox/workspaces/full/reset", key=keys["acme"]).status == 200
    assert check_out(service, keys["acme"], "full", "library").status == 201


@pytest.mark.parametrize("name", ["../app", "/srv/app", "", "App", "app\n", "a" * 64, "app/../app"])
def test_a_request_names_no_path_of_the_host(service: Service, keys: dict[str, str], name: str) -> None:
    assert check_out(service, keys["acme"], "paths", name).status == 422
    operation = {"project_id": "paths", "operation": {"op": "ws_checkout", "repository": name}}
    assert service.ask("POST", "/sandbox/ops", operation, key=keys["acme"]).reason == "invalid_operation"


async def attempt(home: Path, **limits: Any) -> RingfenceError:
    async with SandboxManager("p", home=home, pool_size=0, **limits) as manager:
        with pytest.raises(RingfenceError) as refused:
            await manager.workspace.checkout("big")
        assert await manager.workspace.list() == []
    return refused.value


async def test_a_repository_that_does_not_fit_leaves_the_project_empty(tmp_path: Path) -> None:
    (tmp_path / "big").mkdir()
    for number in range(40):
        (tmp_path / f"big/{number}").write_bytes(b"x" * 100_000)
    register(tmp_path / "home", f"big = {json.dumps(str(tmp_path / 'big'))}")
    policy = tmp_path / "policy.yaml"
    for rule in ("max_disk: 1MB", "max_inodes: 20"):
        policy.write_text(f"policies:\n  default:\n    {rule}\n")
        refused = await attempt(tmp_path / "home", policy_file=policy)
        assert isinstance(refused, QuotaExceeded)
        assert refused.reason == "workspace_disk"


async def test_what_borrows_objects_or_has_no_files_is_refused(tmp_path: Path, app: Path) -> None:
    for words in (("--shared",), ("--bare",)):
        made = tmp_path / words[0].strip("-")
        git(tmp_path, "clone", "-q", *words, str(app.parent / "library"), str(made))
        register(tmp_path / "home", f"big = {json.dumps(str(made))}")
        refused = await attempt(tmp_path / "home")
        assert isinstance(refused, InvalidRequest)
        assert "git repack" in str(refused.fix) or "checked out" in str(refused.fix)


async def test_a_linked_work_tree_comes_without_its_way_to_the_host(tmp_path: Path, app: Path) -> None:
    git(app.parent / "library", "worktree", "add", "-q", str(tmp_path / "linked"), "-b", f"b{tmp_path.name}")
    register(tmp_path / "home", f"linked = {json.dumps(str(tmp_path / 'linked'))}")
    async with SandboxManager("p", home=tmp_path / "home", pool_size=0) as manager:
        told = await manager.workspace.checkout("linked")
        assert [entry["name"] for entry in await manager.workspace.list()] == ["README"]
    assert told["left_out"] == 1
    with reading(open_database(tmp_path / "home", None)) as reader:
        found = [str(record.text) for log in reader.logs() for record in reader.records(log.number)]
    assert sum('"workspace.checked_out"' in text and '"repository":"linked"' in text for text in found) == 1
    assert not any(str(tmp_path) in text for text in found)


@pytest.mark.parametrize(
    "text",
    [
        "app = 1", "app = 'relative'", "app = '/nowhere/at/all'", "app = '/etc/passwd'", "'../x' = '/usr'",
        "'A' = '/usr'", "x = '/'", "x = '/proc/self'", "x = {path = '/usr', tenant = 'acme'}",
        "x = {path = '/usr', tenants = 'acme'}", "x = {path = '/usr', tenants = ['../x']}", "x = {tenants = ['acme']}",
        "x = '/usr'\n[workspace.other]\ny = '/usr'",
        "\n".join(f"m{n} = '/usr'" for n in range(MOST_REPOSITORIES + 1)),
    ],
)  # fmt: skip
def test_what_cannot_be_registered_is_refused(tmp_path: Path, text: str) -> None:
    register(tmp_path, text)
    with pytest.raises(InvalidRequest) as refused:
        repositories(tmp_path)
    assert refused.value.reason == "invalid_config"


def test_the_home_is_no_repository(tmp_path: Path) -> None:
    home = tmp_path / "home"
    for path in (home, tmp_path, home / "workspace"):
        register(home, f"x = {json.dumps(str(path))}")
        (home / "workspace").mkdir(exist_ok=True)
        with pytest.raises(InvalidRequest, match="lie within each other"):
            repositories(home)


def test_what_is_wrong_with_one_tenants_repository_no_other_tenant_learns(tmp_path: Path, app: Path) -> None:
    home, ledger = tmp_path / "home", tmp_path / "ledger"
    ledger.mkdir()
    named = f'ledger = {{path = {json.dumps(str(ledger))}, tenants = ["acme"]}}'
    register(home, f"app = {json.dumps(str(app))}\n{named}")
    with serving(home) as running:
        acme, other = (running.make_key("agent", tenant) for tenant in ("acme", "other"))
        ledger.rmdir()  # a disk that is not mounted
        for wrong in (named, named.replace("tenants", "tenant"), named.replace("ledger =", "LEDGER ="), "x = 5"):
            register(home, f"app = {json.dumps(str(app))}\n{wrong}")
            listed = running.ask("GET", "/sandbox/repositories", key=other)
            assert listed.json == {"repositories": [{"repository": "app"}]}, wrong
            foreign, unknown = (check_out(running, other, "p", name) for name in ("ledger", "nothing"))
            assert (foreign.status, foreign.body) == (404, unknown.body), wrong
        register(home, f"app = {json.dumps(str(app))}\n{named}")
        theirs = running.ask("GET", "/sandbox/repositories", key=acme)
        assert theirs.json == {"repositories": [{"repository": "app"}, {"repository": "ledger"}]}
        refused = check_out(running, acme, "p", "ledger")
        assert (refused.status, refused.reason) == (422, "invalid_config")
        assert str(tmp_path) not in refused.body.decode()  # where it lies nobody is told
        assert check_out(running, other, "q", "app").status == 201
