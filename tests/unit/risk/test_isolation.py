from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.authority.levels import IsolationLevel, RiskLevel, SideEffect
from ringfence.authority.profile import SecurityMode
from ringfence.outcome import Container, Layers, SandboxType
from ringfence.risk.effective import RiskInputs, effective_risk
from ringfence.risk.isolation import RequiredIsolation, isolation_of, required_isolation

SAFE, LOW, MEDIUM, HIGH, CRITICAL = RiskLevel
BROKER, PROCESS, OS, CONTAINER, GVISOR, MICROVM = IsolationLevel
PERMISSIVE, STRICT = SecurityMode.PERMISSIVE, SecurityMode.STRICT

TABLE = {
    (SAFE, PERMISSIVE): RequiredIsolation(PROCESS, PROCESS),
    (SAFE, STRICT): RequiredIsolation(OS, OS),
    (LOW, PERMISSIVE): RequiredIsolation(OS, OS),
    (LOW, STRICT): RequiredIsolation(CONTAINER, CONTAINER),
    (MEDIUM, PERMISSIVE): RequiredIsolation(OS, OS),
    (MEDIUM, STRICT): RequiredIsolation(CONTAINER, CONTAINER),
    (HIGH, PERMISSIVE): RequiredIsolation(OS, CONTAINER),
    (HIGH, STRICT): RequiredIsolation(CONTAINER, CONTAINER),
    (CRITICAL, PERMISSIVE): RequiredIsolation(CONTAINER, CONTAINER, needs_call_consent=True),
    (CRITICAL, STRICT): RequiredIsolation(CONTAINER, CONTAINER, needs_call_consent=True),
}
OBSERVED = Layers(
    namespaces=("user", "mnt", "pid", "net", "ipc", "uts", "cgroup"),
    capabilities_empty=True,
    no_new_privs=True,
    seccomp_filters=2,
    host_uid=100_000,
)


@pytest.mark.parametrize(("risk", "mode"), TABLE)
def test_the_isolation_of_code_is_read_from_one_table(risk: RiskLevel, mode: SecurityMode) -> None:
    assert required_isolation(risk, mode) == TABLE[risk, mode]


@pytest.mark.parametrize("mode", SecurityMode)
def test_more_risk_never_means_less_isolation(mode: SecurityMode) -> None:
    for lower, higher in zip(list(RiskLevel), list(RiskLevel)[1:], strict=False):
        assert required_isolation(lower, mode).least <= required_isolation(higher, mode).least
        assert required_isolation(lower, mode).preferred <= required_isolation(higher, mode).preferred


@pytest.mark.parametrize("risk", RiskLevel)
def test_strict_never_takes_less_than_permissive_and_never_a_plain_process(risk: RiskLevel) -> None:
    assert OS <= required_isolation(risk, STRICT).least >= required_isolation(risk, PERMISSIVE).least


def test_critical_code_gets_the_strongest_that_was_configured_and_never_less_than_a_container() -> None:
    assert required_isolation(CRITICAL, STRICT, strongest=MICROVM).least is MICROVM
    assert required_isolation(CRITICAL, STRICT, strongest=PROCESS).least is CONTAINER


@pytest.mark.parametrize("risk", RiskLevel)
def test_an_operation_that_runs_no_code_is_a_brokers(risk: RiskLevel) -> None:
    assert required_isolation(risk, STRICT, runs_code=False) == RequiredIsolation(BROKER, BROKER, risk is CRITICAL)


@pytest.mark.parametrize("kind", [SandboxType.NATIVE, SandboxType.BWRAP, SandboxType.DOCKER])
def test_a_box_with_every_layer_observed_is_container_class(kind: SandboxType) -> None:
    assert isolation_of(kind, OBSERVED) is CONTAINER


@pytest.mark.parametrize("missing", ["user", "mnt", "pid", "net", "ipc", "uts"])
def test_a_box_that_shares_a_namespace_with_the_host_is_not(missing: str) -> None:
    kept = tuple(name for name in OBSERVED.namespaces if name != missing)
    assert isolation_of(SandboxType.NATIVE, replace(OBSERVED, namespaces=kept)) is OS


@pytest.mark.parametrize(
    "lack",
    [{"capabilities_empty": False}, {"no_new_privs": False}, {"seccomp_filters": 0}],
    ids=lambda lack: next(iter(lack)),
)
def test_a_box_that_keeps_a_privilege_is_worth_no_more_than_a_process(lack: dict[str, bool]) -> None:
    assert isolation_of(SandboxType.NATIVE, replace(OBSERVED, **lack)) is PROCESS  # type: ignore[arg-type]


def test_a_box_nobody_observed_and_a_guest_that_is_host_root_count_for_little() -> None:
    assert isolation_of(SandboxType.NATIVE, Layers()) is PROCESS
    assert isolation_of(SandboxType.DOCKER, Layers()) is PROCESS
    assert isolation_of(SandboxType.SUBPROCESS, OBSERVED) is PROCESS
    assert isolation_of(SandboxType.NATIVE, replace(OBSERVED, host_uid=0)) is OS


# --- effective risk ---

levels = st.none() | st.sampled_from(RiskLevel)
DANGERS = ("host_files", "unrestricted_network", "private_network", "lasting_secret")
inputs = st.builds(
    RiskInputs,
    manifest=levels,
    policy=levels,
    grant=levels,
    assessed=levels,
    side_effects=st.frozensets(st.sampled_from(SideEffect)),
    dangers=st.lists(st.sampled_from(DANGERS), unique=True).map(tuple),
    confined=st.booleans(),
)


@given(inputs)
def test_the_effective_risk_is_the_highest_of_all_inputs(given_inputs: RiskInputs) -> None:
    risk = effective_risk(given_inputs)
    assert risk.level is max(level for _, level in risk.because)
    for level in (given_inputs.manifest, given_inputs.policy, given_inputs.grant, given_inputs.assessed):
        assert level is None or risk.level >= level


@given(inputs, st.sampled_from(SideEffect), st.sampled_from(DANGERS))
def test_nothing_that_is_added_lowers_it(before: RiskInputs, effect: SideEffect, danger: str) -> None:
    if not (
        before.side_effects
        or before.dangers
        or {before.manifest, before.policy, before.grant, before.assessed} - {None}
    ):
        return  # nothing known is HIGH; the first thing known may well be less
    more = replace(before, side_effects=before.side_effects | {effect}, dangers=(*before.dangers, danger))
    assert effective_risk(more).level >= effective_risk(before).level
    assert effective_risk(more).level is CRITICAL


@pytest.mark.parametrize(
    ("effect", "floor"),
    [
        (SideEffect.NONE, SAFE),
        (SideEffect.READ, LOW),
        (SideEffect.WRITE, MEDIUM),
        (SideEffect.FILESYSTEM, MEDIUM),
        (SideEffect.PROCESS, HIGH),
        (SideEffect.BROWSER, HIGH),
        (SideEffect.NETWORK, HIGH),
    ],
)
def test_an_effect_has_a_floor_whatever_was_declared(effect: SideEffect, floor: RiskLevel) -> None:
    assert effective_risk(RiskInputs(manifest=SAFE, policy=SAFE, side_effects=frozenset({effect}))).level is floor


def test_a_process_found_safe_and_confined_has_no_floor() -> None:
    confined = RiskInputs(assessed=SAFE, side_effects=frozenset({SideEffect.PROCESS}), confined=True)
    assert effective_risk(confined).level is SAFE
    assert effective_risk(replace(confined, confined=False)).level is HIGH
    assert effective_risk(replace(confined, assessed=LOW)).level is HIGH
    assert effective_risk(replace(confined, assessed=None)).level is HIGH


@pytest.mark.parametrize("danger", DANGERS)
def test_a_danger_is_critical_whoever_asks(danger: str) -> None:
    assert effective_risk(RiskInputs(assessed=SAFE, dangers=(danger,))).level is CRITICAL


def test_a_call_about_which_nothing_is_known_is_high() -> None:
    assert effective_risk(RiskInputs()).level is HIGH


CONTAINED = replace(
    OBSERVED, namespaces=("mnt", "pid", "net", "ipc", "uts"), host_uid=1000, container=Container("image", "sha256:1")
)


def test_a_container_is_one_without_a_user_namespace_of_its_own() -> None:
    assert isolation_of(SandboxType.DOCKER, CONTAINED) is CONTAINER
    assert isolation_of(SandboxType.NATIVE, CONTAINED) is OS


@pytest.mark.parametrize(
    "lacking",
    [
        {"host_uid": 0},
        {"seccomp_filters": 0},
        {"no_new_privs": False},
        {"capabilities_empty": False},
        {"namespaces": ("mnt", "pid", "ipc", "uts")},
    ],
)
def test_a_container_that_lacks_a_layer_is_none(lacking: dict[str, object]) -> None:
    assert isolation_of(SandboxType.DOCKER, replace(CONTAINED, **lacking)) is OS  # type: ignore[arg-type]


def test_a_container_that_nobody_here_saw_is_worth_its_engines_word_and_no_more() -> None:
    assert isolation_of(SandboxType.DOCKER, Layers(container=Container("image", "sha256:1"))) is OS
    assert isolation_of(SandboxType.DOCKER, Layers()) is PROCESS
