"""Why the proxy does not carry something: one word for the record, one line for the program that asked."""

from __future__ import annotations

from typing import Final

BAD_REQUEST, FORBIDDEN, BAD_GATEWAY, BUSY, TOO_LATE = 400, 403, 502, 503, 504
_PHRASES: Final = {
    BAD_REQUEST: "Bad Request",
    FORBIDDEN: "Forbidden",
    BAD_GATEWAY: "Bad Gateway",
    BUSY: "Service Unavailable",
    TOO_LATE: "Gateway Timeout",
}


class Refusal(Exception):
    """Nothing more is carried; `reason` is one of the words of docs/egress.md."""

    def __init__(self, status: int, reason: str, detail: str, *, secret: str = "") -> None:
        """`status` is what an HTTP client is told; `secret` names the one it is about."""
        super().__init__(detail)
        self.status, self.reason, self.detail, self.secret = status, reason, detail, secret

    @property
    def decision(self) -> str:
        """Whether the rules said no, or the world did."""
        return "denied" if self.status in (BAD_REQUEST, FORBIDDEN) else "failed"


def answer(refusal: Refusal) -> bytes:
    """Return a refusal as the whole answer to an HTTP request."""
    body = f"ringfence: egress {refusal.decision} ({refusal.reason}): {refusal.detail}\n".encode("ascii", "replace")
    head = (
        f"HTTP/1.1 {refusal.status} {_PHRASES[refusal.status]}\r\n"
        "Content-Type: text/plain; charset=us-ascii\r\n"
        f"Content-Length: {len(body)}\r\n"
        f"X-Ringfence-Reason: {refusal.reason}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode("ascii") + body
