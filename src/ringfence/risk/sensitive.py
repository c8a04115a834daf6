"""Places a program has no business with, judged on literal values wherever a grammar found them."""

from __future__ import annotations

from ringfence.authority.levels import RiskLevel

# Reading one of these gives away credentials or the host; the value says how grave that is.
_FRAGMENTS = {
    "/etc/shadow": RiskLevel.CRITICAL,
    "/etc/sudoers": RiskLevel.CRITICAL,
    "docker.sock": RiskLevel.CRITICAL,
    "containerd.sock": RiskLevel.CRITICAL,
    "/proc/sys": RiskLevel.CRITICAL,
    "/proc/kcore": RiskLevel.CRITICAL,
    "/sys/fs/cgroup": RiskLevel.CRITICAL,
    "/dev/mem": RiskLevel.CRITICAL,
    "/dev/sd": RiskLevel.CRITICAL,
    "/dev/nvme": RiskLevel.CRITICAL,
    "/etc/cron": RiskLevel.CRITICAL,
    "/var/spool/cron": RiskLevel.CRITICAL,
    "169.254.169.254": RiskLevel.CRITICAL,
    "metadata.google.internal": RiskLevel.CRITICAL,
    "/etc/passwd": RiskLevel.HIGH,
    "/etc/ld.so": RiskLevel.HIGH,
    "/dev/tcp/": RiskLevel.HIGH,
    "/dev/udp/": RiskLevel.HIGH,
    "/proc/self": RiskLevel.HIGH,
    "/proc/1/": RiskLevel.HIGH,
    "/environ": RiskLevel.HIGH,
    "id_rsa": RiskLevel.HIGH,
    "id_ed25519": RiskLevel.HIGH,
    "/run/secrets": RiskLevel.HIGH,
}
_FOLDERS = frozenset({".ssh", ".aws", ".gnupg", ".kube", ".docker", ".azure"})
_NAMES = frozenset({".env", ".netrc", ".pgpass", ".git-credentials", ".npmrc", ".pypirc", ".bash_history", "shadow"})
_SUFFIXES = (".key", ".pem", ".p12", ".pfx", ".kdbx")
_LONGEST = 4096


def sensitive(text: str) -> tuple[str, RiskLevel] | None:
    """Return which sensitive place `text` names and how grave that is, or None.

    Long texts are data, not names: only their beginning is looked at.
    """
    text = text[:_LONGEST]
    if "/" not in text and "." not in text and "_" not in text:
        return None
    found = [(fragment, level) for fragment, level in _FRAGMENTS.items() if fragment in text]
    if found:
        return max(found, key=lambda pair: pair[1])
    if " " in text or "\n" in text:
        return None
    parts = [part for part in text.split("/") if part not in ("", ".")]
    name = parts[-1] if parts else ""
    if name in _NAMES or name.startswith(".env.") or (name.endswith(_SUFFIXES) and len(parts) + len(name) > 4):
        return name, RiskLevel.HIGH
    folder = next((part for part in parts if part in _FOLDERS), None)
    return None if folder is None else (folder, RiskLevel.HIGH)
