"""URLs: one parser, one spelling, and redirects read as strictly as what a caller writes (rules 1 to 11, 26)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.egress.urls import checked, followed, is_local_name, plain_path, url_of
from ringfence.errors import CapabilityBlocked, InvalidRequest
from ringfence.operation.target import Target, target

BASE = target("https://example.com/a/b?q=1")


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd", "gopher://x.com/", "data:text/plain,x", "ftp://x.com/", "//x.com/", "x.com", "HTTP:x",
        "http:/x.com", "http:///x.com", "http://", "http://:80/", "javascript:1", "unix:/run/docker.sock",
        "http+unix://%2frun%2fdocker.sock/",
        "http://user@x.com/", "http://user:pass@x.com/", "http://good.com@127.0.0.1/", "http://x.com:80@127.0.0.1/",
        "http://x.com\\@127.0.0.1/", "http://x.com#@127.0.0.1/\n", "http://127.0.0.1\t.x.com/",
        "http://x.com/\r\nHost: y",
        "http://x.com/ y", " http://x.com/", "http://x.com /", "http://x\0.com/", "http://x.com/\0",
        "http://x%00.com/", "http://%31%32%37.0.0.1/", "http://x.com%2f@127.0.0.1/", "http://127。0。0。1/",
        "http://\uff11\uff12\uff17.0.0.1/", "http://\u2460\u2461\u2466.0.0.1/", "http://ex\u00e4mple.com/", "http://\u2488com/",
        "http://127.1/", "http://0x7f.0.0.1/", "http://0x7f000001/", "http://2130706433/", "http://0177.0.0.1/",
        "http://127.0.0.01/", "http://127.0.0.1.1/", "http://256.1.1.1/", "http://1.2.3/", "http://x.0x1/", "http://x.1/",
        "http://x..com/", "http://.x.com/", "http://x.com../", "http://-x.com/", "http://x-.com/", "http://a_b-/",
        "http://::1/", "http://[::1%25lo]/", "http://[fe80::1%eth0]/", "http://[::1/", "http://[::ffff:127.1]/", "http://[]/",
        "http://[v1.x]/", "http://x.com:0/", "http://x.com:65536/", "http://x.com:99999999/", "http://x.com:8o/",
        "http://x.com:-1/", "http://x.com: 80/", "http://" + "a" * 64 + ".com/", "http://" + "a." * 127 + "com/",
        "http://x.com/" + "a" * 8192,
    ],
)  # fmt: skip
def test_what_some_client_reads_differently_is_no_url(url: str) -> None:
    with pytest.raises((InvalidRequest, CapabilityBlocked)):
        target(url)


@pytest.mark.parametrize(
    ("url", "canonical"),
    [
        ("https://EXAMPLE.com./A?B=c#frag", "https://example.com/A?B=c"),
        ("http://example.com:80", "http://example.com/"),
        ("https://example.com:443/", "https://example.com/"),
        ("http://[2606:4700:0:0:0:0:0:1111]/", "http://[2606:4700::1111]/"),
        ("http://xn--bcher-kva.example/", "http://xn--bcher-kva.example/"),
    ],
)
def test_a_url_has_one_spelling(url: str, canonical: str) -> None:
    assert url_of(target(url)) == canonical
    assert url_of(target(canonical)) == canonical


@pytest.mark.parametrize(
    "host",
    ["localhost", "a.localhost", "printer.local", "db.internal", "x.home.arpa", "intranet", "web", "router.lan"],
)
def test_names_that_only_the_own_network_knows_are_refused(host: str) -> None:
    assert is_local_name(host)
    with pytest.raises(CapabilityBlocked) as refused:
        checked(target(f"http://{host}/"))
    assert refused.value.reason == "domain"


def test_with_the_private_network_open_its_names_are_too_but_never_those_of_metadata() -> None:
    assert checked(target("http://db.internal/"), private=True).host == "db.internal"
    for host in ("metadata.google.internal", "metadata", "METADATA.goog.", "instance-data"):
        with pytest.raises(CapabilityBlocked):
            checked(target(f"http://{host}/"), private=True)


@pytest.mark.parametrize("port", [1, 22, 25, 53, 110, 143, 389, 6000, 6667, 10080])
def test_a_port_of_another_protocol_is_refused_even_where_it_was_listed(port: int) -> None:
    with pytest.raises(CapabilityBlocked) as refused:
        checked(target(f"http://example.com:{port}/"), private=True)
    assert refused.value.reason == "port"


@pytest.mark.parametrize(
    ("location", "url"),
    [
        ("/x", "https://example.com/x"),
        ("x", "https://example.com/a/x"),
        ("../x", "https://example.com/x"),
        ("../../../x", "https://example.com/x"),
        ("%2e%2E/x", "https://example.com/x"),
        ("?z=2", "https://example.com/a/b?z=2"),
        ("#top", "https://example.com/a/b?q=1"),
        ("", "https://example.com/a/b?q=1"),
        ("//other.org/y", "https://other.org/y"),
        ("HTTPS://Other.ORG:443", "https://other.org/"),
        ("https://other.org/y#z", "https://other.org/y"),
    ],
)
def test_a_redirect_leads_where_every_client_would_go(location: str, url: str) -> None:
    assert url_of(followed(BASE, location)) == url


@pytest.mark.parametrize(
    "location",
    [
        "http://example.com/", "file:///etc/passwd", "gopher://127.0.0.1:6379/_FLUSHALL", "data:text/html,x",
        "javascript:alert(1)", "https:/127.0.0.1", "https:127.0.0.1", "///127.0.0.1/", "/\\127.0.0.1/",
        "\\\\127.0.0.1\\x",
        "//127.1/", "//user@127.0.0.1/", "//2130706433/", "//0x7f.1/", "https://\uff11.1.1.1/", "/a b", "/a\tb",
        "\t//evil/",
        "/a%0", "/%00", "/%zz", "/" + "a" * 9000, "//[::1%25lo]/", "mailto:a@b", "/\x7f", "/\u00e9",
    ],
)  # fmt: skip
def test_a_redirect_to_what_is_no_plain_url_is_refused(location: str) -> None:
    with pytest.raises((InvalidRequest, CapabilityBlocked)):
        followed(BASE, location)


@given(st.text(alphabet="/.%2eEaA?&=", max_size=40))
def test_a_path_in_its_plain_form_stays_as_it_is(text: str) -> None:
    try:
        once = plain_path("/" + text)
    except InvalidRequest:
        return
    assert plain_path(once) == once
    segments = once.partition("?")[0].split("/")
    assert "." not in segments
    assert ".." not in segments


@given(st.text(max_size=200))
def test_no_redirect_raises_anything_but_a_refusal_or_leaves_https(text: str) -> None:
    try:
        where = followed(BASE, text)
    except (InvalidRequest, CapabilityBlocked):
        return
    assert isinstance(where, Target)
    assert where.scheme == "https"
    assert target(url_of(where)) == where
