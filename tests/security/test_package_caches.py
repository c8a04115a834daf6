"""What one tenant had built is nothing to another: not its version, not its files, not that it is there.

Seen red with one store for all: the second tenant got the first one's old version, and what was put into it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.e2e.test_packages_build import put_wheel

from ringfence import SandboxManager
from ringfence.authority.caller import Caller
from ringfence.errors import InvalidRequest
from ringfence.runtimes.packages import find, python_tag
from ringfence.runtimes.python import python_runtime
from ringfence.runtimes.requirements import environment_key, normalise
from ringfence.runtimes.tenants import environment_for

pytestmark = [pytest.mark.timeout(300), pytest.mark.guarantee(21)]
PYTHON = python_runtime().executable
KEY = environment_key(normalise(["thing"]), python_tag())


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of wheels that is all the package client can see."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    for name in ("PIP", "UV"):
        monkeypatch.setenv(f"{name}_FIND_LINKS", str(shelf))
        monkeypatch.setenv(f"{name}_NO_INDEX", "1")
    return shelf


def version_of(tenant: str, base: Path) -> str:
    return environment_for(tenant, ["thing"], base, PYTHON).packages[0].version


def test_who_asks_first_does_not_choose_for_everybody(tmp_path: Path, shelf: Path) -> None:
    put_wheel(shelf, "thing", {"thing.py": b"X = 1\n"}, "1.0")
    assert version_of("acme", tmp_path / "base") == "1.0"
    put_wheel(shelf, "thing", {"thing.py": b"X = 2\n"}, "2.0")
    assert version_of("other", tmp_path / "base") == "2.0"
    assert version_of("acme", tmp_path / "base") == "1.0"  # as long as he asks for the same, he gets the same
    assert find(tmp_path / "base", KEY) is None  # nobody built for everybody


def test_the_operators_environment_is_everybodys_and_nobody_else_builds_in_it(tmp_path: Path, shelf: Path) -> None:
    put_wheel(shelf, "thing", {"thing.py": b"X = 1\n"}, "1.0")
    shared = environment_for("local", ["thing"], tmp_path / "base", PYTHON)
    for tenant in ("acme", "other"):
        assert environment_for(tenant, ["thing"], tmp_path / "base", PYTHON) == shared
    assert not (tmp_path / "base/tenants").exists()


@pytest.mark.parametrize("tenant", ["", ".", "..", "../other", "a/b", "A", "acme\0", "tenants/other"])
def test_a_tenant_cannot_be_spelled_into_another_store(tmp_path: Path, tenant: str) -> None:
    with pytest.raises(InvalidRequest):
        environment_for(tenant, ["thing"], tmp_path / "base", PYTHON)
    assert not (tmp_path / "base").exists()


@pytest.mark.needs("native")
async def test_what_one_tenant_poisons_another_does_not_import(tmp_path: Path, shelf: Path) -> None:
    put_wheel(shelf, "thing", {"thing.py": b"X = 'clean'\n"})
    code = """
import thing, os
print(thing.X)
here = os.path.dirname(thing.__file__)
for path in (here + '/thing.py', here + '/evil.py', here + '/__pycache__/thing.pyc'):
    try:
        os.chmod(here, 0o777)
    except OSError:
        pass
    try:
        open(path, 'w').write('X = "poisoned"')
        print('wrote', path)
    except OSError:
        pass
"""
    async with SandboxManager(home=tmp_path / "home", pool_size=1) as house:
        acme, other = (house.acting_for(Caller(tenant), session_id="s") for tenant in ("acme", "other"))
        for _ in range(2):
            result = await acme.execute_code(code=code, packages=["thing"])
            assert (result.stdout, result.stderr) == ("clean\n", "")
        # the worst that could have happened: the tenant's own store is his to spoil
        own = find(tmp_path / "home/environments/tenants/acme", KEY)
        assert own is not None
        (own.path / "thing.py").write_text("X = 'poisoned'\n")
        for cached in (own.path / "__pycache__").iterdir():
            cached.unlink()
        async with SandboxManager(home=tmp_path / "home", pool_size=0) as again:
            spoiled = again.acting_for(Caller("acme"), session_id="s")
            assert (await spoiled.execute_code(code="import thing; print(thing.X)", packages=["thing"])).stdout == (
                "poisoned\n"
            )
            clean = again.acting_for(Caller("other"), session_id="s")
            assert (await clean.execute_code(code="import thing; print(thing.X)", packages=["thing"])).stdout == (
                "clean\n"
            )
        assert (await other.execute_code(code=code, packages=["thing"])).stdout == "clean\n"
