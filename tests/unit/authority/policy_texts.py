"""A policy that says everything there is to say, and what is found wrong with others."""

from __future__ import annotations

from textwrap import dedent

from ringfence.authority.finding import Finding, errors
from ringfence.authority.policy_lint import lint


def findings(text: str) -> list[Finding]:
    """Return what is wrong with a policy, or doubtful."""
    return lint(dedent(text).encode(), "p.yaml")


def only_error(text: str) -> Finding:
    """Return the one mistake in a policy."""
    (finding,) = errors(findings(text))
    return finding


def place(finding: Finding) -> tuple[str, str, int]:
    """Return which mistake it is, and where."""
    return finding.rule, finding.path, finding.line


FULL = """\
mode: strict-ask
security_mode: permissive
ceilings: {max_execution_time: 10m, max_memory: 4GB}
policies:
  default: {network_access: false}
  tools:
    fetcher: {network_access: true, allowed_domains: [a.com], allowed_methods: [GET, POST], allowed_ports: [443, 8443]}
    build: {isolation: container, allowed_commands: [git status, make, bash], command_templates:
      {make: [{args: [{enum: [all, test]}]}]}, budget: {calls: 3, bytes_out: 10MB, wall_ms: 2m, cpu_ms: unlimited}}
  agent_roles:
    base: {tools: [fetcher, build], max_memory: 1GB, denied_paths: [secret]}
    child:
      inherits: base
      denied_paths: ['*.pem']
    grandchild:
      inherits: child
      tools:
        - fetcher
        - build: {max_memory: 3GB}
budgets:
  instance: {concurrent: 8}
  tenant:
    '*': {calls: 100}
    acme: {calls: unlimited}
secrets:
  TOKEN: {tools: [fetcher], roles: [base], scope: conversation}
  SHARED: {}
rules:
  - {id: no-push, command: git push, decision: deny, match: [git push origin], not_match: [git status]}
  - {command: [git, [fetch, pull]], decision: ask, match: [git pull], not_match: [git push]}
  - {domain: '*.corp', decision: deny, match: [x.corp], not_match: [corp.com]}
  - {path: 'work/**/*.sql', decision: ask, match: [work/a/b.sql], not_match: [inputs/a.sql]}
approvals:
  - {id: ask-make, command: make, scope: session, match: [make all]}
tests:
  - {tool: fetcher, role: base, op: {op: net_http, method: GET, url: 'https://a.com/'}, expect: allow}
"""
