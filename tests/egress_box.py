"""A manager whose code may reach the lab, by a policy that says so; for tests of the way out."""

from __future__ import annotations

import asyncio
import site
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.egress_lab import SECOND, WEB, EgressLab

import ringfence
from ringfence.outcome import ExecutionResult
from ringfence.wiring import box

POLICY = """
policies:
  default:
    max_execution_time: 60s
  tools:
    code_run:
      network_access: true
      allowed_domains: [{domains}]
      {more}
    shell_exec:
      network_access: true
      allowed_domains: [{domains}]
      {more}
network:
  denylist:
    enabled: true
    domains: ["denied.example.com"]
    ports: [22, 3306]
"""
TRUST = {
    "SSL_CERT_FILE": "/mnt/ca/ca.pem",
    "REQUESTS_CA_BUNDLE": "/mnt/ca/ca.pem",
    "CURL_CA_BUNDLE": "/mnt/ca/ca.pem",
    "GIT_SSL_CAINFO": "/mnt/ca/ca.pem",
    "PIP_CERT": "/mnt/ca/ca.pem",
    "npm_config_cafile": "/mnt/ca/ca.pem",
    "NODE_EXTRA_CA_CERTS": "/mnt/ca/ca.pem",
    "PYTHONPATH": "/mnt/packages",
}

WITHOUT_MOUNTS = ("bwrap", "gvisor")
"""They show no directories of the host: there the authority is an input of every run."""


class Boxes:
    """Runs code with a way out to the lab."""

    def __init__(self, home: Path, lab: EgressLab, monkeypatch: Any, *, isolation: str = "native") -> None:
        self.home, self.lab, self.isolation = home, lab, isolation
        monkeypatch.setattr(box, "make_ways_out", lambda _: lab.ways_out())
        trusted = home.with_name("trusted")
        trusted.mkdir()
        home.mkdir(mode=0o700)
        (trusted / "ca.pem").write_bytes(lab.ca.read_bytes())
        packages = site.getsitepackages()[0]
        if isolation in WITHOUT_MOUNTS:
            return
        (home / "config.toml").write_text(
            f'[workspace.ro_mounts]\nca = "{trusted}"\npackages = "{packages}"\n', encoding="utf-8"
        )

    def policy(self, domains: Iterable[str] = (WEB, SECOND), more: str = "") -> Path:
        path = self.home / "policy.yaml"
        path.write_text(POLICY.format(domains=", ".join(f'"{domain}"' for domain in domains), more=more))
        return path

    def run(
        self,
        code: str,
        language: str = "python",
        *,
        allow: Iterable[str] = (WEB,),
        policy: Path | None = None,
        **more: Any,
    ) -> ExecutionResult:
        async def once() -> ExecutionResult:
            async with ringfence.SandboxManager(
                home=self.home, isolation=self.isolation, pool_size=0, policy_file=policy or self.policy()
            ) as manager:
                env = TRUST
                if self.isolation in WITHOUT_MOUNTS:
                    env = {name: path.replace("/mnt/ca", "/workspace/inputs") for name, path in TRUST.items()}
                    more.setdefault("inputs", {"ca.pem": self.lab.ca.read_bytes()})
                env = {**env, **more.pop("env", {})}
                return await manager.execute_code(language, code, 40, env=env, allow_domains=tuple(allow), **more)

        return asyncio.run(once())
