"""Read what the host fetched, as text; runs in a box without network, because what strangers write is parsed here."""

from __future__ import annotations

import json
import re
import sys
from html.parser import HTMLParser
from urllib.parse import urldefrag, urljoin, urlsplit

FETCHED = "/workspace/inputs/fetched/url"
MAX_LINKS = 500
MAX_LINK = 2000
MAX_TITLE = 300
UNSEEN = frozenset({"script", "style", "template", "noscript", "svg", "math", "head", "iframe", "object"})
BLOCKS = frozenset(
    {
        "address", "article", "aside", "blockquote", "br", "dd", "div", "dl", "dt", "figure", "footer", "form", "h1",
        "h2", "h3", "h4", "h5", "h6", "header", "hr", "li", "main", "nav", "ol", "p", "pre", "section", "table", "td",
        "th", "tr", "ul",
    }
)  # fmt: skip


class Page(HTMLParser):
    """Keeps the text that a reader would see, the title, and where its links lead."""

    def __init__(self, url: str) -> None:
        """Read a page that was found at `url`."""
        super().__init__(convert_charrefs=True)
        self.url = url
        self.title = ""
        self.links: list[str] = []
        self.parts: list[str] = []
        self._unseen: list[str] = []
        self._in_title = False

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """Note a link, a break, or that what follows is not for readers."""
        self._in_title = tag == "title"
        if tag in UNSEEN:
            self._unseen.append(tag)
        if tag in BLOCKS:
            self.parts.append("\n")
        if tag == "a" and not self._unseen:
            self._link(dict(attributes).get("href"))

    def handle_endtag(self, tag: str) -> None:
        """Note where something ends; what was never closed ends with what is around it."""
        self._in_title = False
        if tag in self._unseen:
            del self._unseen[self._unseen.index(tag) :]
        if tag in BLOCKS:
            self.parts.append("\n")

    def handle_data(self, data: str) -> None:
        """Keep what is read."""
        if self._in_title:
            self.title = (self.title + data)[:MAX_TITLE]
        elif not self._unseen:
            self.parts.append(data)

    def _link(self, href: str | None) -> None:
        try:
            url = urldefrag(urljoin(self.url, href or "")).url
            scheme = urlsplit(url).scheme
        except ValueError:
            return
        if (
            scheme in ("http", "https")
            and len(url) <= MAX_LINK
            and url not in self.links
            and len(self.links) < MAX_LINKS
        ):
            self.links.append(url)

    def text(self) -> str:
        """Return the text, with no more empty lines than a reader needs."""
        lines = (re.sub(r"[^\S\n]+", " ", line).strip() for line in "".join(self.parts).split("\n"))
        return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def main() -> int:
    """Read the page, and print what it says as one JSON object."""
    asked = json.load(sys.stdin)
    with open(f"{FETCHED}.json", encoding="utf-8") as file:
        found = json.load(file)
    with open(FETCHED, "rb") as file:
        content = file.read()
    kind = found["media_type"] or ""
    outputs = {name: found[name] for name in ("url", "status", "media_type", "bytes", "sha256")}
    outputs |= {"title": "", "text": None, "links": [], "truncated": False, "untrusted": True}
    if kind.startswith("text/") or kind.endswith(("json", "xml", "yaml", "javascript")):
        text = decoded(content, found["charset"])
        if kind in ("text/html", "application/xhtml+xml"):
            page = Page(found["url"])
            page.feed(text)
            page.close()
            outputs |= {"title": " ".join(page.title.split()), "links": page.links}
            text = page.text()
        most = asked.get("max_characters", 40_000)
        outputs |= {"text": text[:most], "truncated": len(text) > most}
    sys.stdout.write(json.dumps(outputs) + "\n")
    return 0


def decoded(content: bytes, charset: str | None) -> str:
    """Return text in the character set that the server named, or else in UTF-8."""
    try:
        return content.decode(charset or "utf-8", "replace")
    except (LookupError, ValueError):
        return content.decode("utf-8", "replace")


sys.exit(main())
