"""What a browser in a box is started with, may call, is asked and answers: what of it is decided in pure code."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.browser import chromium
from ringfence.browser.filter import browser_filter
from ringfence.browser.picture import LONGEST, Clip, checked_png, clip
from ringfence.browser.refused import refused
from ringfence.browser.selectors import plain_css
from ringfence.browser.tree import DEEPEST, outline
from ringfence.browser.view import view
from ringfence.capability.capabilities import Capabilities
from ringfence.capability.net import NetHttp
from ringfence.egress.proxy.rules import Rules
from ringfence.errors import CapabilityBlocked, InvalidRequest, RingfenceError, TimedOut, Unavailable
from ringfence.isolation.linux import kernel
from ringfence.isolation.linux.seccomp.filters import base_filter
from ringfence.isolation.linux.seccomp.numbers import machine_named
from ringfence.isolation.linux.seccomp.simulator import Simulator
from ringfence.isolation.linux.seccomp.verdict import ALLOW

MACHINE = "x86_64"
NUMBERS = machine_named(MACHINE).numbers
ARCH = machine_named(MACHINE).audit_arch


def verdict(name: str, *arguments: int) -> int:
    padded = [*arguments, *[0] * (6 - len(arguments))]
    return Simulator(browser_filter(MACHINE)).verdict(NUMBERS[name], ARCH, padded)


@pytest.mark.parametrize(
    "name",
    [
        *("mount", "umount2", "pivot_root", "move_mount", "open_tree", "fsopen", "setns", "bpf", "perf_event_open"),
        *("io_uring_setup", "keyctl", "add_key", "ptrace", "process_vm_readv", "userfaultfd", "init_module"),
        *("kexec_load", "open_by_handle_at", "clone3", "swapon", "reboot", "pidfd_getfd"),
    ],
)
def test_the_filter_of_a_browser_refuses_what_its_own_sandbox_does_not_need(name: str) -> None:
    assert verdict(name) != ALLOW


@pytest.mark.parametrize("call", ["clone", "unshare"])
def test_a_browser_makes_the_namespaces_of_its_sandbox_and_no_others(call: str) -> None:
    assert verdict(call, kernel.CLONE_NEWUSER | kernel.CLONE_NEWPID | kernel.CLONE_NEWNET) == ALLOW
    for other in (kernel.CLONE_NEWNS, kernel.CLONE_NEWIPC, kernel.CLONE_NEWUTS, kernel.CLONE_NEWCGROUP):
        assert verdict(call, kernel.CLONE_NEWUSER | other) != ALLOW


@pytest.mark.parametrize("family", [16, 17, 38, 40])  # netlink, packet, alg, vsock
def test_a_browser_gets_no_socket_of_a_foreign_family(family: int) -> None:
    assert verdict("socket", family, 1, 0) != ALLOW


def test_every_call_that_a_guest_is_refused_for_good_a_browser_is_refused_too() -> None:
    guest = Simulator(base_filter(MACHINE))
    widened = {"clone", "unshare", "chroot", "prlimit64", "inotify_init1", "inotify_add_watch", "inotify_rm_watch"}
    ours = Simulator(browser_filter(MACHINE))
    for name, number in NUMBERS.items():
        if name not in widened and guest.verdict(number, ARCH, [0] * 6) != ALLOW:
            assert ours.verdict(number, ARCH, [0] * 6) != ALLOW, name


def test_the_flags_leave_one_way_out_and_keep_the_sandbox_on() -> None:
    flags = chromium.arguments(800, 600)
    assert "--proxy-bypass-list=<-loopback>" in flags
    assert "--remote-debugging-pipe" in flags
    assert not [flag for flag in flags if "no-sandbox" in flag or "disable-web-security" in flag or "port=" in flag]
    assert len({flag.partition("=")[0] for flag in flags}) == len(flags), "the last of two would win"


def test_the_policy_in_the_box_shows_pages_of_http_alone_and_takes_no_files() -> None:
    policy = json.loads(chromium.policy())
    assert policy["URLBlocklist"] == ["*"]
    assert not [url for url in policy["URLAllowlist"] if url.startswith(("file", "data", "view-source", "devtools"))]
    assert policy["DownloadRestrictions"] == 3


def test_the_view_has_no_programs_of_the_host_no_home_and_no_configuration() -> None:
    seen = view()
    assert not {"/usr/bin", "/usr/sbin", "/usr/local", "/etc", "/home", "/root", "/var", "/sys", "/run"} & set(
        seen["trees"]
    )
    assert seen["environment"]["HOME"] == chromium.HOME


@pytest.mark.parametrize(
    "selector",
    [
        *("xpath=//a", "//a", "text=Hello", "css=a", "internal:control=enter-frame", "a >> b", "..", "id=x"),
        *("_react=App", "(//a)[1]", "", "   ", "a\0b", "a" * 1001, "nth=0", "data-testid=x", "layout:right-of=a"),
    ],
)
def test_what_a_driver_would_read_as_a_language_is_no_selector(selector: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        plain_css(selector)
    assert refusal.value.reason == "invalid_selector"


@pytest.mark.parametrize(
    "selector",
    ["a", "#id .class > b ~ c + d", "input[name='a=b']", "a:nth-child(2n+1)", "[href^='//x']", "*", ".a, .b"],
)
def test_plain_css_is_left_as_it_is(selector: str) -> None:
    assert plain_css(selector) == selector


def test_a_picture_is_refused_by_its_size_before_it_is_taken() -> None:
    assert clip({"x": 0.4, "y": 1.5, "width": 10, "height": 10}, 200) == Clip(0, 1, 11, 11)
    for width, height in ((1280, 100_000), (LONGEST + 1, 1), (5000, 5000)):
        with pytest.raises(CapabilityBlocked) as refusal:
            clip({"x": 0, "y": 0, "width": width, "height": height}, 16_000_000)
        assert refusal.value.reason == "too_large"


@given(st.fixed_dictionaries({name: st.floats() | st.integers() | st.none() for name in ("x", "y", "width", "height")}))
def test_no_rectangle_that_a_page_can_give_makes_a_picture_too_large(rectangle: dict[str, Any]) -> None:
    try:
        found = clip(rectangle, 1_000_000)
    except RingfenceError:
        return
    assert 0 < found.width * found.height <= 1_000_000
    assert found.x >= 0
    assert found.y >= 0


def test_another_picture_than_was_asked_for_is_refused() -> None:
    head = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4s2I", 13, b"IHDR", 10, 10)
    assert checked_png(head, Clip(0, 0, 10, 10)) == head
    for data in (b"GIF89a", head.replace(b"\x00\x0a", b"\x01\x0a"), b""):
        with pytest.raises(InvalidRequest):
            checked_png(data, Clip(0, 0, 10, 10))


def test_an_outline_is_in_order_and_says_when_there_is_more() -> None:
    nodes: list[dict[str, Any]] = [
        {"nodeId": "1", "role": {"value": "RootWebArea"}, "name": {"value": "T"}, "childIds": ["2", "3"]},
        {"nodeId": "2", "ignored": True, "role": {"value": "none"}, "childIds": ["4"]},
        {"nodeId": "3", "role": {"value": "link"}, "name": {"value": "second"}},
        {"nodeId": "4", "role": {"value": "heading"}, "name": {"value": "first"}, "childIds": ["1"]},
    ]
    found = outline(nodes, 10)
    assert [(node["depth"], node["name"]) for node in found["nodes"]] == [(0, "T"), (1, "first"), (1, "second")]
    assert not found["truncated"]
    assert outline(nodes, 2)["truncated"]


def test_an_outline_of_a_chain_is_no_deeper_than_json_readers_go() -> None:
    chain = [
        {"nodeId": str(n), "role": {"value": "group"}, "name": {"value": "x"}, "childIds": [str(n + 1)]}
        for n in range(500)
    ]
    assert max(node["depth"] for node in outline(chain, 1000)["nodes"]) == DEEPEST


RULES = Rules(Capabilities([NetHttp("web.example.com", methods=frozenset({"GET"}))]))


@pytest.mark.parametrize(
    ("said", "kind", "reason"),
    [
        ("x-ringfence-reason: host", CapabilityBlocked, "domain"),
        ("x-ringfence-reason: address", CapabilityBlocked, "private_address"),
        ("x-ringfence-reason: whatever", CapabilityBlocked, "blocked"),
        ("Page.goto: net::ERR_BLOCKED_BY_ADMINISTRATOR at file:///", CapabilityBlocked, "scheme"),
        ("Page.goto: net::ERR_TUNNEL_CONNECTION_FAILED", CapabilityBlocked, "domain"),
        ("Page.goto: net::ERR_CERT_AUTHORITY_INVALID", Unavailable, "tls"),
        ("Page.goto: Timeout 1000ms exceeded", TimedOut, "read_timeout"),
        ("Page.goto: Download is starting", CapabilityBlocked, "mime"),
        ("Page.goto: net::ERR_EMPTY_RESPONSE", Unavailable, "connect_failed"),
        ("something else", Unavailable, "connect_failed"),
    ],
)
def test_the_browsers_word_for_it_becomes_a_code_and_a_reason(said: str, kind: type, reason: str) -> None:
    error = refused(said, "https://hidden.example.net/", RULES, ())
    assert type(error) is kind
    assert error.reason == reason


def test_a_machine_without_chromium_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chromium, "_PROGRAMS", ("/nonexistent/chromium",))
    with pytest.raises(Unavailable) as refusal:
        chromium.find_chromium()
    assert refusal.value.reason == "browser_backend_missing"
    assert "install chromium" in str(refusal.value.fix)
