"""Content: its type as it is said and as it looks, names for it, and the request that asks for it."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.egress.asking import Ask
from ringfence.egress.media import agreed_type, charset, looks_like, media_type, safe_filename
from ringfence.errors import CapabilityBlocked, InvalidRequest
from ringfence.operation.target import target


@pytest.mark.parametrize(
    ("header", "content", "kind"),
    [
        ("text/html; charset=utf-8", b"<p>", "text/html"),
        ("TEXT/PLAIN", b"", "text/plain"),
        (None, b"hello", "text/plain"),
        ("application/problem+json", b"{}", "application/problem+json"),
        ("application/pdf", b"%PDF-1.7", "application/pdf"),
        ("image/png", b"\x89PNG\r\n\x1a\n\0", "image/png"),
        ("image/webp", b"RIFF\0\0\0\0WEBPVP8 ", "image/webp"),
        ("text/plain", b"\xff\xfeh\0i\0", "text/plain"),
        ("image/svg+xml", b"<svg/>", "image/svg+xml"),
    ],
)
def test_a_document_or_a_picture_is_taken_for_what_it_is(header: str | None, content: bytes, kind: str) -> None:
    assert agreed_type(header, content, None) == kind


@pytest.mark.parametrize(
    ("header", "content"),
    [
        ("application/octet-stream", b"x"), ("application/zip", b"PK\3\4"), ("application/x-msdownload", b"MZ"),
        ("video/mp4", b""),
        ("text/html", b"\x7fELF"), ("text/plain", b"PK\3\4"), ("text/plain", b"a\0b"), ("application/json", b"MZ\x90"),
        ("application/pdf", b"<script>"), ("image/png", b"GIF89a"), ("image/jpeg", b"#!/bin/sh"), (None, b"\x7fELF"),
        ("nonsense", b"x"), ("", b"x"), ("text/html\0", b"x"), ("*/*", b"x"), ("text/plain, application/pdf", b"x"),
    ],
)  # fmt: skip
def test_what_is_neither_or_only_says_so_is_not_taken(header: str | None, content: bytes) -> None:
    with pytest.raises(CapabilityBlocked) as refused:
        agreed_type(header, content, None)
    assert refused.value.reason == "mime"


def test_a_policy_opens_other_types_and_their_bytes_still_have_to_agree() -> None:
    assert agreed_type("application/zip", b"PK\3\4", {"application/*"}) == "application/zip"
    assert agreed_type("application/vnd.oasis.opendocument.text", b"PK\3\4", {"application/*"})
    with pytest.raises(CapabilityBlocked):
        agreed_type("application/zip", b"\x7fELF", {"application/*"})
    with pytest.raises(CapabilityBlocked):
        agreed_type("text/html", b"x", {"application/*"})


@given(st.text(max_size=100), st.binary(max_size=100))
def test_no_header_and_no_content_fails_otherwise_than_by_refusing(header: str, content: bytes) -> None:
    assert "/" in media_type(header)
    assert looks_like(content)
    charset(header)
    with suppress(CapabilityBlocked):
        agreed_type(header, content, None)


@given(st.text(max_size=200))
def test_a_proposed_name_is_one_plain_name_or_none(text: str) -> None:
    for header in (text, f"attachment; filename={text}", f'attachment; filename="{text}"'):
        name = safe_filename(header)
        if name is not None:
            assert name
            assert len(name) <= 100
            assert name.isascii()
            assert name.isprintable()
            assert not set(name) & set("/\\:\0")
            assert name not in (".", "..")
            assert not name.startswith(".")


# --- the request ---


@given(st.dictionaries(st.text(max_size=20), st.text(max_size=40), max_size=4), st.binary(max_size=50))
def test_no_header_of_a_caller_begins_another_line_or_another_request(headers: dict[str, str], body: bytes) -> None:
    try:
        sent = Ask("POST", target("http://example.com:8080/a?b=c"), headers, body).sent()
    except InvalidRequest:
        return
    head, _, rest = sent.partition(b"\r\n\r\n")
    assert rest == body
    lines = head.split(b"\r\n")
    assert lines[0] == b"POST /a?b=c HTTP/1.1"
    names = [line.partition(b":")[0].lower() for line in lines[1:]]
    assert len(set(names)) == len(names)
    assert b"host: example.com:8080" in head.lower()
    assert b"content-length: %d" % len(body) in head.lower()
