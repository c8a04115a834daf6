"""Operations that run no code: a broker on the host carries each one out, once the guard has allowed it.

They share their names with the capabilities that allow them; import this module, not the names.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from ringfence.dataclass import dataclass, field
from ringfence.operation.workspace import WorkspaceOperation
from ringfence.operation.workspace_proposals import ProposalOperation


@dataclass(frozen=True, slots=True)
class _OnPath:
    path: str

    kind: ClassVar[str]
    domain: ClassVar[str] = "fs"


@dataclass(frozen=True, slots=True)
class FsRead(_OnPath):
    """Read a file, or `len` bytes of it from `offset`."""

    offset: int | None = None
    len: int | None = None

    kind: ClassVar[str] = "fs_read"


@dataclass(frozen=True, slots=True)
class FsWrite(_OnPath):
    """Write a file; an existing one only with `overwrite`."""

    content: bytes = field(default=b"", repr=False)
    overwrite: bool = False

    kind: ClassVar[str] = "fs_write"


@dataclass(frozen=True, slots=True)
class FsList(_OnPath):
    """List a directory, at most `limit` entries of it, from where the page that gave the `cursor` ended."""

    cursor: str | None = None
    limit: int | None = None

    kind: ClassVar[str] = "fs_list"


class FsStat(_OnPath):
    """Say what a path is, without reading it."""

    __slots__ = ()
    kind: ClassVar[str] = "fs_stat"


class FsMkdir(_OnPath):
    """Make a directory."""

    __slots__ = ()
    kind: ClassVar[str] = "fs_mkdir"


class FsDelete(_OnPath):
    """Delete a file or an empty directory."""

    __slots__ = ()
    kind: ClassVar[str] = "fs_delete"


@dataclass(frozen=True, slots=True)
class NetHttp:
    """Send one HTTP request; every redirect is a request of its own to the guard."""

    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    body: bytes | None = field(default=None, repr=False)

    kind: ClassVar[str] = "net_http"
    domain: ClassVar[str] = "net.http"


EXTERNAL_BROWSER, AIO_BROWSER = "external_browser", "aio_browser"
"""The two browsers of a session, of which it has one at a time: the light one, and the one that may save files."""


@dataclass(frozen=True, slots=True)
class BrowserNav:
    """Open a page, read-only, as the one page of its session; in the other browser the former one is closed."""

    url: str
    backend: str = EXTERNAL_BROWSER

    kind: ClassVar[str] = "browser_nav"
    domain: ClassVar[str] = "browser"


@dataclass(frozen=True, slots=True)
class BrowserExtract:
    """Take what is to be read on the open page, or in what `selector` finds in it.

    `what` is its `text`, its `links`, its accessibility `tree`, or `fields`: a text for each name, by its selector.
    """

    selector: str | None = None
    what: str = "text"
    fields: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    kind: ClassVar[str] = "browser_extract"
    domain: ClassVar[str] = "browser"


@dataclass(frozen=True, slots=True)
class BrowserScreenshot:
    """Take a picture of the open page, or of what `selector` finds in it; `width` and `height` are the viewport's."""

    selector: str | None = None
    full_page: bool = False
    width: int | None = None
    height: int | None = None

    kind: ClassVar[str] = "browser_screenshot"
    domain: ClassVar[str] = "browser"


@dataclass(frozen=True, slots=True)
class BrowserClick:
    """Click what `selector` finds first on the open page; where that leads is held to what the page may reach."""

    selector: str

    kind: ClassVar[str] = "browser_click"
    domain: ClassVar[str] = "browser"


@dataclass(frozen=True, slots=True)
class BrowserType:
    """Replace the text of the field that `selector` finds first on the open page."""

    selector: str
    text: str = field(default="", repr=False)

    kind: ClassVar[str] = "browser_type"
    domain: ClassVar[str] = "browser"


@dataclass(frozen=True, slots=True)
class BrowserClose:
    """End the session's page, with all that it kept."""

    kind: ClassVar[str] = "browser_close"
    domain: ClassVar[str] = "browser"


@dataclass(frozen=True, slots=True)
class ProcExec:
    """Start one program with exactly these arguments; there is no shell to read them again."""

    tool: str
    args: tuple[str, ...] = ()
    timeout_ms: int | None = None

    kind: ClassVar[str] = "proc_exec"
    domain: ClassVar[str] = "proc"


@dataclass(frozen=True, slots=True)
class TmpAlloc:
    """Take temporary space of at most this size."""

    size_bytes: int

    kind: ClassVar[str] = "tmp_alloc"
    domain: ClassVar[str] = "tmp"


@dataclass(frozen=True, slots=True)
class TmpFree:
    """Give temporary space back."""

    handle: str

    kind: ClassVar[str] = "tmp_free"
    domain: ClassVar[str] = "tmp"


FsOperation = FsRead | FsWrite | FsList | FsStat | FsMkdir | FsDelete
TmpOperation = TmpAlloc | TmpFree
Filing = FsOperation | TmpOperation | WorkspaceOperation | ProposalOperation
Browsing = BrowserNav | BrowserExtract | BrowserScreenshot | BrowserClick | BrowserType | BrowserClose
ByBroker = Filing | NetHttp | Browsing
Brokered = ByBroker | ProcExec
