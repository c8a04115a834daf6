"""How this host reaches other ones, as its file, the environment and an application say."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.command_line import ringfence
from tests.hostile_web import authority

from ringfence import wiring
from ringfence.egress.settings import NetSettings
from ringfence.errors import InvalidRequest
from ringfence.service.settings import read_settings
from ringfence.wiring.network import net_settings

ONE, OTHER = "2001:db8:64::/96", "2001:db8:65::/96"


def home_with(path: Path, text: str) -> Path:
    (path / "config.toml").write_text(text)
    return path


def test_a_home_that_says_nothing_has_the_network_of_the_host(tmp_path: Path) -> None:
    assert net_settings(tmp_path, {}, NetSettings()) == NetSettings()


def test_the_environment_stands_above_the_file_and_the_application_above_both(tmp_path: Path) -> None:
    ca_file, _ = authority(tmp_path)
    home = home_with(tmp_path, f'[net]\nca_file = "{ca_file}"\nnat64 = ["{ONE}"]\n')
    assert net_settings(home, {}, NetSettings()) == NetSettings(ca_file, (ONE,))
    above = {"RINGFENCE_NET_NAT64": f"{OTHER}, {ONE}"}
    assert net_settings(home, above, NetSettings()) == NetSettings(ca_file, (OTHER, ONE))
    assert net_settings(home, above, NetSettings(nat64=(OTHER,))).nat64 == (OTHER,)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("net = 1", "net: must be a section"),
        ("[net]\nproxy = 'x'", "config.toml:2, net.proxy: there is no such key; known: ca_file, nat64"),
        ("# of ours\n[net]\nca_file = 'relative.pem'", "config.toml:3, net.ca_file: must be an absolute path"),
        ("[net]\nca_file = '/nowhere/ca.pem'", "config.toml:2, net.ca_file: /nowhere/ca.pem cannot be read"),
        ("[net]\nca_file = '/etc/hostname'", "holds no certificate in PEM"),
        ("[net]\n\nnat64 = '64::/96'", "config.toml:3, net.nat64: must be a list of prefixes"),
        ("[net]\nnat64 = ['2001:db8::/32']", "no prefix of 96 bits"),
        ("[net]\nnat64 = ['::/0']", "no prefix of 96 bits"),
        ("[net]\nnat64 = ['::ffff:0:0/96']", "no prefix of 96 bits"),
        ("[net]\nnat64 = ['10.0.0.0/8']", "no prefix of 96 bits"),
        ("[net]\nnat64 = ['2001:db8::1/96']", "no prefix of 96 bits"),
    ],
)
def test_what_is_no_network_is_refused_and_named(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(InvalidRequest, match=named) as refused:
        wiring.build(wiring.Settings(home_with(tmp_path, text)))
    assert refused.value.reason == "invalid_config"


def test_a_variable_and_an_application_are_held_to_the_same(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="the environment, RINGFENCE_NET_NAT64"):
        net_settings(tmp_path, {"RINGFENCE_NET_NAT64": "2001:db8::/32"}, NetSettings())
    with pytest.raises(InvalidRequest, match="96 bits"):
        NetSettings(nat64=("2001:db8::/32",))


def test_the_command_says_it_in_one_line_with_the_fix(tmp_path: Path) -> None:
    home = home_with(tmp_path, "[net]\nca = '/x'\n")
    done = ringfence(home, "run", "-c", "print(1)")
    assert (done.returncode, done.stdout) == (2, "")
    assert "config.toml:2, net.ca: there is no such key" in done.stderr
    assert "correct net.ca, or leave it out" in done.stderr


def test_a_service_leaves_the_section_to_the_home(tmp_path: Path) -> None:
    file = home_with(tmp_path, f'[net]\nnat64 = ["{ONE}"]\n') / "config.toml"
    read_settings(file, must_exist=False, environment={})
    with pytest.raises(InvalidRequest, match="belongs into the home's"):
        read_settings(file, must_exist=True, environment={})
