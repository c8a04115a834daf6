"""Runs code: finds a parked worker for it, hands it over, and says what came of it."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from ringfence.authority.caller import LOCAL
from ringfence.authority.profile import Isolation, Profile
from ringfence.capability.limits import Limits, too_much
from ringfence.dataclass import replace
from ringfence.errors import (
    CapabilityBlocked,
    ExecutionFailed,
    InternalError,
    InvalidRequest,
    IsolationUnavailable,
    RingfenceError,
)
from ringfence.executors.beside import in_a_thread, while_wanted
from ringfence.executors.leases import tell_leases
from ringfence.executors.shares import shares
from ringfence.interrupted import Interrupted
from ringfence.isolation.pool.keeper import Keeper
from ringfence.isolation.pool.pools import Pools
from ringfence.operation import WORKING_DIRECTORY, CodeRun, Language
from ringfence.operation.secret import Way
from ringfence.outcome import ExecutionResult, Status
from ringfence.ports import Begin, Ending, ExecCtx, Harvest, Job, Keeping, Worker, WorkerLost, WorkerSpec
from ringfence.risk.choosing import kind_for, why
from ringfence.risk.isolation import isolation_of

if TYPE_CHECKING:  # most engines neither open a way out nor lend anything
    from ringfence.egress.proxy.inspection import Inspection
    from ringfence.egress.proxy.swap import Loan
    from ringfence.executors.ways_out import WaysOut
    from ringfence.masking import Masks
    from ringfence.operation.secret import SecretAsk
    from ringfence.secrets.lending import Lent

Lend = Callable[[str, tuple["SecretAsk", ...]], "Lent"]
"""Gives a run of a tenant the secrets it asks for; may block."""
_ATTEMPTS = 3
_FILES_LOST = ", and what it wrote to files was not kept"
_OVER_LIMIT = ("artifact_bytes", "artifact_count")
_TIMEOUTS = ("wall_timeout", "cpu_timeout", "idle_timeout")
_EXPLANATIONS = {
    "wall_timeout": "the run was ended at its wall-clock limit of {limits.wall_seconds:g} s",
    "cpu_timeout": "the run was ended at its cpu-time limit of {limits.cpu_seconds:g} s",
    "idle_timeout": "the run was ended because it neither said nor was told anything for as long as it may",
    "budget": "the run was ended where the budget for its output was used up",
    "cancelled": "the run was ended by its caller",
    "memory": "the run was ended at its memory limit of {limits.memory_bytes} bytes",
    "unknown": "the run was ended from outside",
}


class CodeExecutor:
    """Implements `ports.Executor` for code, whatever backend the workers come from."""

    def __init__(
        self,
        pools: Pools,
        environment: Callable[[tuple[str, ...], str], str],
        ways_out: Callable[[], WaysOut] | None = None,
        lend: Lend | None = None,
    ) -> None:
        """Take workers from `pools` and package environments of a tenant from `environment`, which may be slow.

        `ways_out` is asked for when the first run is to reach a host, `lend` when one needs secrets.
        """
        self._pools = pools
        self._lend = lend
        self._environment = environment
        self._ways_out = ways_out

    def capability_domain(self) -> str:
        """Return the domain whose operations are carried out here."""
        return "code"

    async def execute(self, ctx: ExecCtx, operation: CodeRun) -> ExecutionResult:
        """Run `operation` once; a worker that fails before the guest starts is replaced, never believed."""
        profile = ctx.profile
        keeper = self._pools.of(kind_for(profile.isolation, profile.isolation_floor))
        packages = None
        if operation.packages:
            await ctx.begun()  # what is built now may have to be fetched
            packages = await while_wanted(
                profile.tenant, self._environment, operation.packages, profile.tenant or LOCAL
            )
        spec = worker_spec(operation, profile.limits, packages, profile.tenant)
        if keeper.fixes_limits:
            spec = replace(spec, memory_bytes=profile.limits.memory_bytes, cpus=profile.limits.cpus)
        if ctx.attached is not None and ctx.attached.terminal is not None:
            require_terminal(operation.language)
            spec = replace(spec, terminal=True)
        most_output = ctx.most_output
        if operation.domains:
            spec = replace(spec, egress=True)
            most_output = shares(ctx.most_output, profile.limits)[0]
        env, inputs, masks = operation.env, operation.inputs, None
        loans: tuple[Loan, ...] = ()
        if operation.secrets:
            lent = await self._lent(ctx, operation)
            env, inputs, masks, loans = {**env, **lent.env}, {**inputs, **lent.inputs}, lent.masks, lent.loans
        inspection = None
        if operation.domains and profile.intercept_tls:
            inspection = await in_a_thread(profile.tenant, self._out.inspect, profile, operation.domains, loans)
            env, inputs = trusting(inspection, env, inputs)
        program = operation.language, operation.code, operation.args, env, operation.stdin
        cwd = None if operation.cwd == WORKING_DIRECTORY else operation.cwd
        job = Job(*program, profile.limits, most_output, cwd, masks, profile.tenant)
        if is_made_for_the_run(spec) and not keeper.is_ready(spec):
            await ctx.begun()
        begin = ctx.begin if shows_itself(ctx, operation) else ctx.note or ctx.begin
        for _ in range(_ATTEMPTS):
            worker = await _fresh_worker(keeper, spec, begin)
            try:
                require_cgroups(worker, profile)
                require_isolation(worker, profile)
                if operation.files or inputs:
                    await in_a_thread(profile.tenant, worker.place, operation.files, inputs)
                way_out = None
                if operation.domains:
                    way_out = self._out.open(worker, ctx, operation.domains, inspection)
                network = None
                try:
                    try:
                        ending = await worker.run(job, ctx.on_output, begin, ctx.attached)
                    finally:
                        if way_out is not None:
                            network = await way_out.close()
                            ctx.reached.append(network)
                except Interrupted as cut:
                    # what it printed is kept; what it wrote is not, as of a run whose changes nobody wants
                    done = result_of(ctx.exec_id, worker, cut.ending, Harvest(), profile)
                    lost = _FILES_LOST if _may_have_left_files(worker) else ""
                    cut.result = replace(done, error=f"{done.error}{lost}", network=network)
                    raise
                try:
                    harvest = await _harvested(ctx, worker, masks)
                except RingfenceError as error:
                    error.done = result_of(ctx.exec_id, worker, ending, Harvest(), profile)  # it ran, and is charged
                    raise
                result = result_of(ctx.exec_id, worker, ending, harvest, profile)
                if network is not None:
                    result = replace(result, network=network)
            except WorkerLost as lost:
                failure = lost
                # what ended this one, a killed zygote or another run of the session, has ended its siblings too
                keeper.invalidate(spec)
                continue
            finally:
                ctx.afterwards(partial(_give_back, keeper, worker))
            if harvest.changed and spec.session_id is not None:
                keeper.invalidate(spec)
            return result
        raise InternalError(f"{_ATTEMPTS} workers in a row failed before the code started: {failure}")

    async def _lent(self, ctx: ExecCtx, operation: CodeRun) -> Lent:
        """Return the secrets for this one run, once it is written down that it has them within reach."""
        if self._lend is None:
            raise CapabilityBlocked("nothing here lends secrets", reason="executor_disabled")
        require_proxy(ctx.profile, operation)
        await ctx.begun()  # a source may be asked over the network
        lent: Lent = await in_a_thread(ctx.profile.tenant, self._lend, ctx.profile.tenant or LOCAL, operation.secrets)
        await tell_leases(ctx, lent)
        return lent

    @property
    def _out(self) -> WaysOut:
        if self._ways_out is None:
            raise InternalError("this engine has no way out of a box")
        return self._ways_out()


def is_made_for_the_run(spec: WorkerSpec) -> bool:
    """Whether starting such a box does more than parking one: it touches a session's files, or has the run's limits."""
    return spec.session_id is not None or spec.memory_bytes is not None


def shows_itself(ctx: ExecCtx, operation: CodeRun) -> bool:
    """Whether anybody outside its box could see that it runs before it ends, so that its beginning comes first."""
    is_heard = ctx.on_output is not None or ctx.attached is not None
    is_elsewhere = ctx.profile.isolation is Isolation.AIO
    return is_heard or is_elsewhere or bool(operation.domains or operation.secrets)


async def _fresh_worker(keeper: Keeper, spec: WorkerSpec, begin: Begin | None) -> Worker:
    """Lease a worker over the last state of its session; where one has to be started, `begin` comes meanwhile.

    Where others change the session all the time, the second one is taken as it is: it has looked at no file yet, so it
    sees nothing stale, only perhaps a change that is under way.
    """
    worker = await keeper.lease(spec, meanwhile=begin)
    if worker.is_fresh():
        return worker
    keeper.release(worker)
    keeper.invalidate(spec)
    return await keeper.lease(spec)


async def _harvested(ctx: ExecCtx, worker: Worker, masks: Masks | None) -> Harvest:
    try:
        if not worker.left_files():
            return Harvest()
        await ctx.begun()
        profile = ctx.profile
        return await in_a_thread(profile.tenant, worker.harvest, profile.limits, keeping_of(ctx, masks))
    except OSError as error:  # without its names: a guest names files after secrets
        why = os.strerror(error.errno or errno.EIO)
        raise ExecutionFailed(f"what the run left could not be kept: {why}", reason="io") from error


def _may_have_left_files(worker: Worker) -> bool:
    try:
        return worker.left_files()
    except OSError:  # which must not take the place of a cancellation
        return True


def _give_back(keeper: Keeper, worker: Worker) -> None:
    """Give a used worker back when the loop turns next.

    Burying it and parking another takes the interpreter, which the end of the run needs first, and then its caller.
    """
    asyncio.get_running_loop().call_soon(keeper.release, worker)


def require_terminal(language: Language) -> None:
    """Refuse a terminal to what could not open one.

    Raises:
        InvalidRequest: Node waits for its job itself, and has no way to open a terminal.
    """
    if language not in (Language.PYTHON, Language.BASH):
        raise InvalidRequest(
            f"a {language} process cannot be given a terminal",
            reason="no_terminal",
            fix="start a bash command that runs `node`",
        )


def require_proxy(profile: Profile, operation: CodeRun) -> None:
    """Refuse a secret that nobody could put into the requests of a run: it is never quietly given to it instead.

    Raises:
        CapabilityBlocked: The run reaches no host, or the policy does not have its TLS opened.
    """
    brokered = next((ask.name for ask in operation.secrets if ask.way is Way.BROKER), None)
    if brokered is None or (operation.domains and profile.intercept_tls):
        return
    if operation.domains:
        missing, fix = "the policy does not have its TLS opened", "write intercept_tls: true for the tool in the policy"
    else:
        missing, fix = "it asks for no host", "ask for the host too: allow_domains, or --allow-domain"
    raise CapabilityBlocked(
        f"the secret {brokered} is put into what a run sends to hosts, and {missing}", reason="secret_way", fix=fix
    )


def trusting(
    inspection: Inspection, env: Mapping[str, str], inputs: Mapping[str, bytes]
) -> tuple[dict[str, str], dict[str, bytes]]:
    """Return a run's variables and inputs with those that have its programs believe the authority of the run."""
    from ringfence.executors.ways_out import BUNDLE, TRUST, bundle

    return {**env, **TRUST}, {**inputs, BUNDLE: bundle(inspection)}


def require_cgroups(worker: Worker, profile: Profile) -> None:
    """Refuse a box whose memory is only sampled, where the profile will not have that.

    Raises:
        IsolationUnavailable: No cgroup holds the memory of this run; nothing ran.
    """
    if profile.require_cgroups and worker.layers.memory_limit != "cgroup":
        raise IsolationUnavailable(
            "no cgroup holds the memory of a run here, and the profile requires one",
            reason="cgroups_missing",
            fix="`ringfence doctor` prints how to get one",
        )


def require_isolation(worker: Worker, profile: Profile) -> None:
    """Refuse a box that was not observed to be as strong as the profile demands.

    Raises:
        IsolationUnavailable: Nothing ran.
    """
    seen = isolation_of(worker.sandbox_type, worker.layers)
    if seen < profile.isolation_floor:
        why = "".join(f": {note}" for note in worker.layers.notes[:1])
        raise IsolationUnavailable(
            f"the call needs isolation of class {profile.isolation_floor}, and what this machine gives is {seen}{why}",
            fix="`ringfence doctor` says what this machine can do",
        )


def keeping_of(ctx: ExecCtx, masks: Masks | None = None) -> Keeping:
    """Return which of the files a run leaves may stay, and whether at once."""
    profile = ctx.profile
    if not profile.confined:
        return Keeping(None, None, ctx.exec_id, profile.commit, profile.denials, masks)
    keeps = profile.keeps("work"), profile.keeps("artifacts")
    return Keeping(*keeps, ctx.exec_id, profile.commit, profile.denials, masks)


def worker_spec(operation: CodeRun, limits: Limits, packages: str | None, tenant: str = LOCAL) -> WorkerSpec:
    """Return what the worker for `operation` must have been built with; python and bash share one kind."""
    return WorkerSpec(
        runtime=Language.PYTHON if operation.language is Language.BASH else operation.language,
        packages=packages,
        preload=operation.preload,
        session_id=operation.session_id,
        tenant=LOCAL if operation.session_id is None else tenant,
        disk_bytes=limits.disk_bytes,
        inodes=limits.inodes,
        open_files=limits.open_files,
        file_bytes=limits.file_bytes,
        pids=limits.pids,
    )


def result_of(exec_id: str, worker: Worker, ending: Ending, harvest: Harvest, profile: Profile) -> ExecutionResult:
    """Put what was seen from outside into the words of a result."""
    limits = profile.limits
    status, error, code, reason = judge(ending, limits)
    if error is None and any(why in _OVER_LIMIT for _, why in harvest.changes.uncollected):
        # the program did nothing wrong, so its status stays; who looks for the rest learns where it went
        error = f"artifacts beyond {limits.artifact_bytes} bytes or {limits.artifact_count} files were left out"
        code, reason = "QUOTA.BUDGET_EXCEEDED", "artifacts"
    if harvest.changes.denied and status in (Status.SUCCEEDED, Status.FAILED):
        # whatever it says of itself, what it did is refused; a run that was ended says so first
        more = len(harvest.changes.denied) - 1
        error = f"the policy lets nobody change work/{harvest.changes.denied[0]}{f' and {more} more' if more else ''}"
        status, code, reason = Status.DENIED, "SANDBOX.CAPABILITY_BLOCKED", "change_denied"
    elif harvest.changes.excess is not None and status in (Status.SUCCEEDED, Status.FAILED):
        error = too_much(harvest.changes.excess, (limits.changed_paths, limits.changed_bytes))
        status, code, reason = Status.DENIED, "SANDBOX.CAPABILITY_BLOCKED", "changes_too_large"
    exit_code = ending.exit_code
    if ending.signal is not None and ending.killed_by is None:
        exit_code = 128 + ending.signal
    return ExecutionResult(
        exec_id=exec_id,
        status=status,
        exit_code=exit_code,
        stdout_raw=ending.stdout,
        stderr_raw=ending.stderr,
        stdout_bytes=ending.stdout_bytes,
        stderr_bytes=ending.stderr_bytes,
        stdout_truncated=ending.stdout_left_out > 0,
        stderr_truncated=ending.stderr_left_out > 0,
        stdout_left_out=ending.stdout_left_out,
        stderr_left_out=ending.stderr_left_out,
        killed_by=ending.killed_by,
        error=error,
        error_code=code,
        reason=reason,
        elapsed_ms=ending.elapsed_seconds * 1000,
        cpu_ms=ending.cpu_ms,
        memory_peak_bytes=ending.memory_peak_bytes,
        sandbox_id=worker.sandbox_id,
        sandbox_type=worker.sandbox_type,
        backend=worker.backend,
        isolation=replace(worker.layers, chosen=why(profile.isolation, profile.isolation_floor, worker.backend)),
        artifacts=harvest.artifacts,
        files_written=harvest.files_written,
        changes=harvest.changes,
        pending=harvest.pending,
        tasks_peak=ending.tasks_peak,
        notes=harvest.notes,
    )


def signal_name(number: int) -> str:
    """Return what people call a signal; a guest may choose one of those that only have numbers."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def judge(ending: Ending, limits: Limits) -> tuple[Status, str | None, str | None, str | None]:
    """Return the status and, where there is something to explain, error, code and reason."""
    if ending.killed_by is not None:
        explanation = _EXPLANATIONS[ending.killed_by].format(limits=limits)
        if ending.killed_by in _TIMEOUTS:
            return Status.TIMED_OUT, explanation, "LLM.TIMEOUT", ending.killed_by
        if ending.killed_by == "cancelled":
            return Status.CANCELLED, explanation, None, ending.killed_by
        if ending.killed_by == "unknown":  # nobody's limit: somebody on this machine did it
            return Status.KILLED, explanation, "TOOL.EXECUTION_FAILED", ending.killed_by
        return Status.KILLED, explanation, "QUOTA.BUDGET_EXCEEDED", ending.killed_by
    if ending.signal is not None:
        return Status.FAILED, f"the program was ended by {signal_name(ending.signal)}", None, "signal"
    if ending.exit_code:
        return Status.FAILED, f"the program exited with {ending.exit_code}", None, "exit_code"
    return Status.SUCCEEDED, None, None, None
