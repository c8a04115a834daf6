"""The settings of a service: what a file, the environment and nothing at all come to."""

from __future__ import annotations

import contextlib
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.errors import InvalidRequest
from ringfence.paths.adapter import Side
from ringfence.service import settings
from ringfence.service.settings import ServiceSettings, read_settings, settings_from, usual_settings
from ringfence.service.surroundings import files_root


def test_without_a_file_the_defaults_hold(tmp_path: Path) -> None:
    assert read_settings(tmp_path / "config.toml", must_exist=False, environment={}) == usual_settings()


def test_a_file_that_was_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"config\.toml is not there"):
        read_settings(tmp_path / "config.toml", must_exist=True, environment={})


@pytest.mark.parametrize(("cores", "most"), [(1, 2), (2, 2), (3, 4), (64, 4)])
def test_small_machines_run_two_at_a_time(cores: int, most: int) -> None:
    assert usual_settings(cores).max_concurrent_execs == most


def test_the_environment_stands_above_the_file() -> None:
    written = {"server": {"port": 1, "cors_origins": ["https://a.example"]}, "sandbox": {"max_concurrent_execs": 3}}
    environment = {"RINGFENCE_SERVER_PORT": "9", "RINGFENCE_SERVER_CORS_ORIGINS": "https://b.example, http://c:8"}
    found = settings_from(written, "config.toml", environment)
    assert (found.port, found.max_concurrent_execs) == (9, 3)
    assert found.cors_origins == ("https://b.example", "http://c:8")


def test_the_surface_for_other_clients_is_there_only_for_whoever_asked() -> None:
    assert settings_from({}, "config.toml", {}).aio is False
    assert settings_from({"server": {"aio": True}}, "config.toml", {}).aio is True
    assert settings_from({"server": {"aio": True}}, "config.toml", {"RINGFENCE_SERVER_AIO": "false"}).aio is False
    for wrong in ("yes", 1):
        with pytest.raises(InvalidRequest, match=r"server\.aio: must be true or false"):
            settings_from({"server": {"aio": wrong}}, "config.toml", {})


def test_the_variables_of_a_compose_file_are_understood_and_ours_stand_above_them() -> None:
    theirs = {
        "SANDBOX_POOL_SIZE": "10",
        "SANDBOX_MAX_MEMORY": "512m",
        "SANDBOX_MAX_CPU": "1.0",
        "SANDBOX_NETWORK": "none",
        "SANDBOX_WORKSPACE_ROOT": "/is/nobodys",
    }
    settings = settings_from({"sandbox": {"pool_size": 1}}, "a file", theirs)
    assert (settings.pool_size, settings.network, settings.workspace_root) == (10, "none", None)
    assert settings.ceilings() == {"memory_bytes": 512 * 1024 * 1024, "cpus": 1.0}
    assert settings_from({}, "a file", {**theirs, "RINGFENCE_SANDBOX_POOL_SIZE": "3"}).pool_size == 3


def test_a_network_needs_a_policy_that_bounds_it() -> None:
    wide = settings_from({}, "a file", {"SANDBOX_NETWORK": "allowlist"})
    with pytest.raises(InvalidRequest, match="needs a policy"):
        wide.require_rules_for_network()
    replace(wide, policy="policy.yaml").require_rules_for_network()
    settings_from({}, "a file", {"SANDBOX_NETWORK": "none"}).require_rules_for_network()


def test_sections_of_other_parts_are_theirs() -> None:
    assert settings_from({"observe": {"anything": 1}}, "f", {}) == usual_settings()


@pytest.mark.parametrize(
    ("written", "named"),
    [
        ({"server": {"prot": 1}}, "f, server.prot: there is no such key"),
        ({"sever": {}}, "f, sever: there is no such section"),
        ({"server": 1}, "f, server: must be a section"),
        ({"server": {"port": "8"}}, "f, server.port: must be a whole number"),
        ({"server": {"port": True}}, "f, server.port"),
        ({"server": {"port": 65536}}, "f, server.port"),
        ({"server": {"host": "a b"}}, "f, server.host"),
        ({"server": {"cors_origins": ["*"]}}, "f, server.cors_origins"),
        ({"server": {"cors_origins": "https://a.example"}}, "f, server.cors_origins"),
        ({"server": {"drain_seconds": -1}}, "f, server.drain_seconds"),
        ({"server": {"database": "sqlite:///x"}}, "f, server.database"),
        ({"sandbox": {"workspace_root": "relative"}}, "f, sandbox.workspace_root"),
        ({"sandbox": {"max_concurrent_execs": 0}}, "f, sandbox.max_concurrent_execs"),
    ],
)
def test_what_is_wrong_is_named_with_its_file_and_key(written: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        settings_from(written, "f", {})
    assert named in str(refused.value)
    assert refused.value.reason == "invalid_config"


def test_a_variable_that_is_wrong_is_named() -> None:
    with pytest.raises(InvalidRequest, match="RINGFENCE_SERVER_PORT"):
        settings_from({}, "f", {"RINGFENCE_SERVER_PORT": "many"})


@pytest.mark.parametrize(("side", "root"), [(Side.LINUX, "/plain"), (Side.WSL, "/mnt/wsl"), (Side.WINDOWS, "D:\\work")])
def test_each_system_has_its_own_root(side: Side, root: str) -> None:
    written = {
        "sandbox": {"workspace_root": "/plain", "workspace_root_wsl": "/mnt/wsl", "workspace_root_win": "D:\\work"}
    }
    assert files_root(settings_from(written, "f", {}), side) == Path(root)
    assert files_root(ServiceSettings(), side) is None


def test_a_root_of_one_system_is_not_taken_for_the_others() -> None:
    assert files_root(ServiceSettings(workspace_root_win="D:\\work"), Side.LINUX) is None
    assert files_root(ServiceSettings(workspace_root="/plain"), Side.WSL) == Path("/plain")
    with pytest.raises(InvalidRequest, match="workspace_root_win is not set"):
        files_root(ServiceSettings(workspace_root_wsl="/mnt/d/work"), Side.WINDOWS)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(
    section=st.sampled_from(["server", "sandbox"]),
    entries=st.dictionaries(
        st.sampled_from(["host", "port", "cors_origins", "drain_seconds", "workspace_root", "pool_size", "x"]), _JSON
    ),
)
def test_anything_is_a_setting_or_refused_in_our_words(section: str, entries: dict[str, Any]) -> None:
    with contextlib.suppress(InvalidRequest):
        settings_from({section: entries}, "f", {})


def test_a_section_that_another_part_reads_stops_no_service(tmp_path: Path) -> None:
    source = Path(settings.__file__).parents[1]
    texts = [path.read_text() for path in source.rglob("*.py")]
    read = {name for text in texts for name in re.findall(r'section_of\(home, "(\w+)"\)', text)}
    assert read >= {"docker", "evidence", "grants", "net", "workspace"}
    for name in read:
        assert settings_from({name: {}}, "f", {}) == usual_settings()
        file = tmp_path / "other.toml"
        file.write_text(f"[{name}]\n")
        with pytest.raises(InvalidRequest, match=f"{name}: belongs into the home's config.toml"):
            read_settings(file, must_exist=True, environment={})
