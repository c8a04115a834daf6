"""The tools everybody knows by name: how dangerous each is, and which kinds of capability it is ever for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringfence.authority.levels import RiskLevel, SideEffect
from ringfence.capability.capabilities import Capabilities
from ringfence.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class Tool:
    """A built-in tool: it needs no manifest of its own, because its kinds say what it can do at all."""

    name: str
    risk: RiskLevel
    side_effect: frozenset[SideEffect]
    kinds: frozenset[str]
    languages: frozenset[str] | None = None

    def within(self, capabilities: Iterable[Any], *, reaching: bool = False) -> Capabilities:
        """Return those of `capabilities` that the tool is for; code is for hosts only where it asks for some."""
        kinds = self.kinds | {"net.http"} if reaching and "code.run" in self.kinds else self.kinds
        return Capabilities(
            item
            for item in capabilities
            if item.name in kinds
            and (self.languages is None or item.name != "code.run" or item.language in self.languages)
        )


def tool_name(name: str) -> str:
    """Return the one name of a tool: a skill is called `skill.shell.run` by clients and `shell.run` by its manifest."""
    return name.removeprefix("skill.")


_READ = frozenset({SideEffect.READ})
_WRITE = frozenset({SideEffect.WRITE, SideEffect.FILESYSTEM})
_RUN = frozenset({SideEffect.PROCESS, SideEffect.WRITE})
_NET = frozenset({SideEffect.NETWORK})
_BROWSE = frozenset({SideEffect.BROWSER, SideEffect.NETWORK})

_READING = frozenset({"fs.read", "fs.list"})
_WRITING = frozenset({"fs.write", "fs.list"})
_RUNNING = frozenset({"code.run", "tmp.use", "secret.use", "port.open", "sys.gpu", "fs.host"})
_BASH = frozenset({"bash"})

TOOLS = {
    tool.name: tool
    for tool in (
        Tool("file_read", RiskLevel.LOW, _READ, _READING),
        Tool("file_list", RiskLevel.LOW, _READ, _READING),
        Tool("search", RiskLevel.LOW, _READ, _READING),
        Tool("file_write", RiskLevel.MEDIUM, _WRITE, _WRITING),
        Tool("file_edit", RiskLevel.MEDIUM, _WRITE, _READING | _WRITING),
        Tool("file_delete", RiskLevel.MEDIUM, _WRITE, _WRITING),
        Tool("tmp_use", RiskLevel.LOW, _WRITE, frozenset({"tmp.use"})),
        Tool("code_run", RiskLevel.HIGH, _RUN, _RUNNING),
        Tool("shell_exec", RiskLevel.HIGH, _RUN, _RUNNING, _BASH),
        Tool("proc_exec", RiskLevel.HIGH, _RUN, frozenset({"proc.exec", "tmp.use"})),
        Tool("http_request", RiskLevel.HIGH, _NET, frozenset({"net.http", "secret.use"})),
        Tool("browser_automation", RiskLevel.HIGH, _BROWSE, frozenset({"browser.use", "net.http"})),
        # the documents name them without saying what they do: only a manifest can
        Tool("system_admin", RiskLevel.CRITICAL, _RUN, frozenset()),
        Tool("network_scan", RiskLevel.CRITICAL, _NET, frozenset()),
    )
}
