"""`ringfence run` and `ringfence shell`: take from the host, run once in a box, show what came of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from ringfence.interfaces.cli.interrupt import Interrupts
from ringfence.interfaces.cli.lightly import lightly
from ringfence.interfaces.cli.options import RunOptions, parse_run
from ringfence.interfaces.cli.take import take_code, take_inputs, take_stdin
from ringfence.interfaces.cli.through import through_service
from ringfence.outcome import ExecutionResult

RunOnce = Callable[..., ExecutionResult]
"""The shape of `ringfence.run`."""


def run_command(command: str, words: Sequence[str], *, run: RunOnce | None = None) -> int:
    """Carry out `ringfence run` or `ringfence shell` and return the exit code."""
    options = parse_run(command, words)
    lightly("pathlib", "subprocess")  # not before: a refused command line needs neither
    run = run or through_service(options)
    if run is None and options.isolation in ("auto", "native"):
        _ignite(options)
    interrupts = Interrupts()
    interrupts.install()
    code = options.code if options.code is not None else take_code(options.file or "-")
    stdin = b"" if options.file == "-" else take_stdin(options.stdin)
    request = _request(options, stdin, take_inputs(options.inputs))
    if options.artifacts is None:
        result = _run(run, code, request, options, interrupts)
    else:
        from ringfence.interfaces.cli.keep import ArtifactDirectory

        directory = ArtifactDirectory(options.artifacts)
        try:
            result = _run(run, code, request, options, interrupts)
            directory.keep(result.artifacts)
        finally:
            directory.close()
    return _conclude(result, options)


def _ignite(options: RunOptions) -> None:
    """Start the other process before this one imports the rest; what a worker is forked from is no run yet."""
    from ringfence.isolation.native.ignition import ignite_ahead

    ignite_ahead()
    if options.packages or options.preload:
        return  # it takes another zygote
    lightly("concurrent.futures")
    from pathlib import Path

    from ringfence.isolation.native import ahead
    from ringfence.workspaces.home import default_home

    ahead.start(Path(options.home) if options.home is not None else default_home())


def _is_plain(options: RunOptions) -> bool:
    """Whether a worker will do that is parked before anybody has read what the policy says."""
    special = (options.project, options.policy, options.role, *options.allow_domains)
    return not any(special) and options.language in ("python", "bash")


def _request(options: RunOptions, stdin: bytes, inputs: dict[str, bytes]) -> dict[str, Any]:
    request: dict[str, Any] = {
        "language": options.language,
        "args": options.args,
        "stdin": stdin,
        "env": options.env,
        "packages": options.packages,
        "preload": options.preload,
        "timeout": options.timeout,
        "memory_mb": options.memory_mb,
        "session_id": options.project,
        "policy_file": options.policy,
        "role": options.role,
        "isolation": options.isolation,
        "security_mode": options.security,
        # One run, one worker: parking others for runs that never come would only cost time.
        "pool_size": 0,
    }
    if options.home is not None:
        request["home"] = options.home
    correlation = dict(options.correlation or {})
    if options.project is not None:
        correlation.setdefault("project_id", options.project)
    if correlation:
        from ringfence.evidence.correlation import Correlation  # not at the top: most runs are nobody's in particular

        request["correlation"] = Correlation(**correlation)
    if options.allow_domains:
        request["allow_domains"] = options.allow_domains
    if options.commit is not None:
        request["commit"] = options.commit
    if options.secrets:
        request["secrets"] = options.secrets
    return request | ({"inputs": inputs} if inputs else {})


def _run(
    run: RunOnce | None, code: str, request: dict[str, Any], options: RunOptions, interrupts: Interrupts
) -> ExecutionResult:
    if run is None:
        lightly("asyncio")
        if _is_plain(options):
            from ringfence.isolation.native import ahead

            ahead.park()
        import ringfence

        run = ringfence.run
    if options.json:
        return run(code, **request)
    return _run_live(run, code, request, interrupts.pipe_closed)


def _run_live(run: RunOnce, code: str, request: dict[str, Any], on_closed: Callable[[], None]) -> ExecutionResult:
    from ringfence.interfaces.cli.sink import Sink

    sink = Sink({"stdout": 1, "stderr": 2}, on_closed=on_closed)
    try:
        return run(code, **request, on_output=sink)
    finally:
        sink.end()


def _conclude(result: ExecutionResult, options: RunOptions) -> int:
    from ringfence.interfaces.cli.render import result_exit_code, result_json, result_line, truncation_line

    if options.json:
        sys.stdout.write(result_json(result))
        sys.stdout.flush()
    else:
        for line in (truncation_line(result), result_line(result)):
            if line is not None:
                sys.stderr.write(line)
        if options.commit is not None:
            from ringfence.interfaces.cli.pending import pending_lines

            sys.stderr.writelines(pending_lines(result, options))
    return result_exit_code(result, passthrough=options.passthrough)
