"""Brokered operations come in one JSON form, and a URL or a path has one meaning."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.errors import InvalidRequest, PathTraversalError
from ringfence.operation import CodeRun, Language, needs
from ringfence.operation import brokered as op
from ringfence.operation.form import check, demands, from_json, summary, to_json
from ringfence.operation.path import host_path, is_beneath, relative, workspace_path
from ringfence.operation.target import Target, host_name, target

OPERATIONS: list[tuple[Any, dict[str, Any]]] = [
    (op.FsRead("a", 1, 2), {"op": "fs_read", "path": "a", "offset": 1, "len": 2}),
    (op.FsRead("a"), {"op": "fs_read", "path": "a"}),
    (op.FsWrite("a", b"\0x", True), {"op": "fs_write", "path": "a", "bytes_b64": "AHg=", "overwrite": True}),
    (op.FsWrite("a", b""), {"op": "fs_write", "path": "a", "bytes_b64": ""}),
    (op.FsList("a"), {"op": "fs_list", "path": "a"}),
    (op.FsList("a", "bmV4dA==", 2), {"op": "fs_list", "path": "a", "cursor": "bmV4dA==", "limit": 2}),
    (op.FsStat("a"), {"op": "fs_stat", "path": "a"}),
    (op.FsMkdir("a"), {"op": "fs_mkdir", "path": "a"}),
    (op.FsDelete("a"), {"op": "fs_delete", "path": "a"}),
    (
        op.NetHttp("POST", "https://a.com/", {"x": "y"}, b"b"),
        {"op": "net_http", "method": "POST", "url": "https://a.com/", "headers": {"x": "y"}, "body_b64": "Yg=="},
    ),
    (op.BrowserNav("https://a.com/"), {"op": "browser_nav", "url": "https://a.com/"}),
    (op.BrowserExtract("p"), {"op": "browser_extract", "selector": "p"}),
    (
        op.BrowserNav("https://a.com/", op.AIO_BROWSER),
        {"op": "browser_nav", "url": "https://a.com/", "backend": "aio_browser"},
    ),
    (op.BrowserExtract("p", "links"), {"op": "browser_extract", "selector": "p", "what": "links"}),
    (
        op.BrowserExtract(None, "fields", {"price": ".price"}),
        {"op": "browser_extract", "what": "fields", "fields": {"price": ".price"}},
    ),
    (op.BrowserScreenshot(None, True), {"op": "browser_screenshot", "full_page": True}),
    (
        op.BrowserScreenshot("p", width=800, height=600),
        {"op": "browser_screenshot", "selector": "p", "width": 800, "height": 600},
    ),
    (op.BrowserClick("a"), {"op": "browser_click", "selector": "a"}),
    (op.BrowserType("input", ""), {"op": "browser_type", "selector": "input", "text": ""}),
    (op.BrowserClose(), {"op": "browser_close"}),
    (
        op.ProcExec("git", ("status", ""), 5),
        {"op": "proc_exec", "tool": "git", "args": ["status", ""], "timeout_ms": 5},
    ),
    (op.TmpAlloc(1), {"op": "tmp_alloc", "size_bytes": 1}),
    (op.TmpFree("h"), {"op": "tmp_free", "handle": "h"}),
]


@pytest.mark.parametrize(("operation", "form"), OPERATIONS, ids=lambda value: str(value)[:30])
def test_every_operation_has_one_form(operation: Any, form: dict[str, Any]) -> None:
    check(operation)
    assert to_json(operation) == form
    assert from_json(form) == operation


def test_every_kind_of_the_interface_is_there() -> None:
    assert {form["op"] for _, form in OPERATIONS} == {
        "fs_read", "fs_write", "fs_list", "fs_stat", "fs_mkdir", "fs_delete", "net_http", "browser_nav",
        "browser_extract", "browser_screenshot", "browser_click", "browser_type", "browser_close",
        "proc_exec", "tmp_alloc", "tmp_free",
    }  # fmt: skip


@pytest.mark.parametrize(
    "form",
    [
        None,
        [],
        {},
        {"op": "fs_format"},
        {"op": ["fs_read"]},
        {"op": "fs_read"},
        {"op": "fs_read", "path": 1},
        {"op": "fs_read", "path": ""},
        {"op": "fs_read", "path": "a", "offset": -1},
        {"op": "fs_read", "path": "a", "len": True},
        {"op": "fs_read", "path": "a", "mode": "rw"},
        {"op": "fs_list", "path": "a", "cursor": 7},
        {"op": "fs_list", "path": "a", "limit": "2"},
        {"op": "fs_list", "path": "a", "limit": -1},
        {"op": "fs_write", "path": "a"},
        {"op": "fs_write", "path": "a", "bytes_b64": "?"},
        {"op": "fs_write", "path": "a", "bytes_b64": "", "overwrite": 1},
        {"op": "net_http", "method": "get", "url": "https://a.com"},
        {"op": "net_http", "method": "GET", "url": "ftp://a.com"},
        {"op": "net_http", "method": "GET", "url": "https://a.com", "headers": {"a": "b\r\nc: d"}},
        {"op": "net_http", "method": "GET", "url": "https://a.com", "headers": ["a"]},
        {"op": "browser_nav", "url": "javascript:alert(1)"},
        {"op": "browser_nav", "url": "file:///etc/passwd"},
        {"op": "browser_nav", "url": "https://a.com/", "backend": "another"},
        {"op": "browser_extract", "what": "html"},
        {"op": "browser_extract", "what": "fields"},
        {"op": "browser_extract", "fields": {"a": "b"}},
        {"op": "browser_extract", "what": "fields", "fields": {"a": "b"}, "selector": "p"},
        {"op": "browser_extract", "what": "fields", "fields": {"a": 1}},
        {"op": "browser_extract", "what": "fields", "fields": ["a"]},
        {"op": "browser_extract", "script": "document.cookie"},
        {"op": "browser_screenshot", "width": "800"},
        {"op": "browser_screenshot", "selector": "a" * 5000},
        {"op": "browser_click"},
        {"op": "browser_type", "selector": "input"},
        {"op": "browser_type", "selector": "input", "text": "a\0"},
        {"op": "browser_evaluate", "script": "1"},
        {"op": "proc_exec", "tool": "git", "args": "status"},
        {"op": "proc_exec", "tool": "git", "args": ["a\0"]},
        {"op": "tmp_alloc", "size_bytes": 2**60},
        {"op": "tmp_alloc", "size_bytes": "1"},
    ],
    ids=str,
)
def test_what_is_not_exactly_an_operation_is_refused(form: Any) -> None:
    with pytest.raises(InvalidRequest):
        from_json(form)


def test_where_a_path_leads_is_not_a_matter_of_its_form() -> None:
    assert from_json({"op": "fs_read", "path": "../../etc/passwd"}) == op.FsRead("../../etc/passwd")


@pytest.mark.parametrize(
    ("operation", "line"),
    [
        (CodeRun(Language.PYTHON, "secret()"), "code.run:python"),
        (op.NetHttp("GET", "https://example.com/a?token=secret"), "net.http:GET:https://example.com/a"),
        (op.NetHttp("GET", "https://example.com"), "net.http:GET:https://example.com"),
        (op.NetHttp("GET", "https://u:secret@example.com"), "net.http:GET:invalid"),
        (op.FsWrite("work/a", b"secret"), "fs.write:/workspace/work/a"),
        (op.FsRead("../x"), "fs.read:invalid"),
        (op.ProcExec("git", ("secret",)), "proc.exec:git"),
        (op.BrowserNav("https://a.com:8443/x"), "browser.open:https://a.com:8443/x"),
        (op.BrowserScreenshot("secret"), "browser.screenshot"),
        (op.BrowserExtract(), "browser.extract"),
        (op.BrowserClick("secret"), "browser.click"),
        (op.BrowserType("secret", "secret"), "browser.type"),
        (op.BrowserClose(), "browser.close"),
        (op.TmpAlloc(7), "tmp.alloc:7"),
        (op.TmpFree("h"), "tmp.free"),
        (needs.SecretUse("KEY"), "secret.use:KEY"),
        (needs.PortOpen(80), "port.open:80"),
        (needs.GpuUse("a"), "sys.gpu:a"),
        (needs.HostUse("/opt"), "fs.host:/opt"),
    ],
)
def test_evidence_keeps_one_line_without_content(operation: Any, line: str) -> None:
    assert summary(operation) == line


def test_a_page_demands_its_download_too() -> None:
    page = op.BrowserNav("https://a.com/")
    assert demands(page) == (page, op.NetHttp("GET", "https://a.com/"))
    assert demands(op.TmpAlloc(1)) == (op.TmpAlloc(1),)


# --- URLs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "where"),
    [
        ("https://A.com", Target("https", "a.com", 443, "/")),
        ("http://a.com./x?q=1#f", Target("http", "a.com", 80, "/x?q=1")),
        ("http://a.com:443/", Target("http", "a.com", 443, "/")),
        ("http://[0:0::1]:81/", Target("http", "::1", 81, "/")),
        ("https://127.0.0.1/", Target("https", "127.0.0.1", 443, "/")),
        ("https://xn--bcher-kva.de/", Target("https", "xn--bcher-kva.de", 443, "/")),
    ],
)
def test_where_a_url_leads(url: str, where: Target) -> None:
    assert target(url) == where


@pytest.mark.parametrize(
    "url",
    [
        "",
        "a.com",
        "//a.com",
        "ftp://a.com",
        "file:///etc/passwd",
        "https:a.com",
        "https:///a",
        "https://",
        "https://u@a.com",
        "https://a.com@evil.com",
        "https://a.com\\@evil.com",
        "https://a.com\n.evil.com",
        " https://a.com",
        "https://a.com /",
        "https://b\u00fccher.de",
        "https://a\u3002com",
        "https://a.com:0",
        "https://a.com:99999",
        "https://a.com:",
        "https://127.1/",
        "https://0x7f000001/",
        "https://2130706433/",
        "https://0177.0.0.1/",
        "https://1.2.3.4.5/",
        "https://256.1.1.1/",
        "https://[::1",
        "https://[::g]/",
        "https://[fe80::1%25eth0]/",
        "https://-a.com/",
        "https://a..com/",
        "https://a.com/\x00",
        "https://a.com/<x>",
        "HTTPS://a.com/",
        "https://" + "a" * 9000,
    ],
    ids=lambda url: repr(url)[:40],
)
def test_a_url_that_somebody_could_read_differently_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest):
        target(url)


@given(st.text(max_size=40))
def test_no_url_leads_to_a_host_with_two_spellings(text: str) -> None:
    for prefix in ("http://", "https://a.com", "https://[", ""):
        try:
            where = target(prefix + text)
        except InvalidRequest:
            continue
        assert host_name(where.host if ":" not in where.host else f"[{where.host}]") == where.host
        assert target(where.origin).host == where.host


# --- paths ---------------------------------------------------------------------------------------


@given(st.text(max_size=60))
def test_a_path_is_below_the_workspace_in_one_spelling_or_refused(text: str) -> None:
    for prefix in ("", "/", "/workspace/", "/output/", "inputs/"):
        try:
            path = workspace_path(prefix + text)
        except InvalidRequest:
            continue
        assert is_beneath(path, "/workspace")
        assert workspace_path(path) == path
        assert workspace_path(relative(path)) == path
        assert not {"..", ".", ""} & set(path.split("/")[1:])


@pytest.mark.parametrize("path", ["/", "/etc", "/workspace/../etc", "..", "a/../b", "/workspacea", "/works"])
def test_a_path_that_leads_elsewhere_is_a_traversal(path: str) -> None:
    with pytest.raises(PathTraversalError):
        workspace_path(path)


@pytest.mark.parametrize("path", ["", 5, None, b"a", "a\0", "a\n", "a\x7f", "\ud800", "a" * 256, "a/" * 3000])
def test_what_is_no_path_is_refused(path: Any) -> None:
    with pytest.raises(InvalidRequest):
        workspace_path(path)


def test_a_path_of_the_host_is_absolute_and_does_not_climb() -> None:
    assert host_path("//opt/./x/") == "/opt/x"
    assert is_beneath("/opt", "/")
    for path in ("opt", "/opt/..", "", 5):
        with pytest.raises(InvalidRequest):
            host_path(path)
