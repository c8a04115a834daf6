"""The one table of what Ringfence's codes and reasons mean: HTTP status, exit code, whether to try again.

The codes are those of the specification, letter by letter. Reasons are finer and only ever added; one says something
here only where it differs from its code. `docs/errors` has a page for every code, and a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

UNCLASSIFIED = "UNKNOWN.INTERNAL"
RESERVED_FAMILIES = ("NETWORK",)
"""Families that the specification names without giving them a code: nothing else may take them."""


class Reason(NamedTuple):
    """One reason under a code; what is `None` is as the code says."""

    meaning: str
    http_status: int | None = None
    exit_code: int | None = None
    retryable: bool | None = None


class Code(NamedTuple):
    """One stable code; `retryable` is whether the same request may succeed later with nobody changing anything."""

    title: str
    http_status: int
    exit_code: int
    retryable: bool
    grpc: str
    reasons: Mapping[str, Reason]


class Answer(NamedTuple):
    """What a door answers for one code and reason."""

    title: str
    http_status: int
    exit_code: int
    retryable: bool

    @property
    def is_denial(self) -> bool:
        """Whether somebody said no, or has yet to say yes; otherwise something is wrong or has failed."""
        return self.exit_code in _DENIED


def answer(code: str, reason: str) -> Answer:
    """Return what `code` with `reason` means; a code or reason nobody registered never looks milder than it may be."""
    entry = TABLE.get(code) or TABLE[UNCLASSIFIED]
    found = entry.reasons.get(reason) or _UNDER_ANY_CODE.get(reason) or _LIKE_ITS_CODE
    return Answer(
        entry.title,
        entry.http_status if found.http_status is None else found.http_status,
        entry.exit_code if found.exit_code is None else found.exit_code,
        entry.retryable if found.retryable is None else found.retryable,
    )


def page_of(code: str) -> str:
    """Return where the project explains `code`."""
    return f"docs/errors/{code}.md"


_DENIED = (3, 4)
_LIKE_ITS_CODE = Reason("")
# A person can still say yes: the command tells that apart from a refusal, whichever code carries it.
_UNDER_ANY_CODE = {"consent_required": Reason("a person has to agree first", exit_code=4)}

_PERMISSION_DENY = {
    "role": Reason("a request names another role than the one its key was made for"),
    "key_void": Reason("the key that asked for it was revoked or has expired before it began"),
    "not_granted": Reason("no grant allows this operation"),
    "no_key": Reason("the request brought no API key, or none that is valid here and now", http_status=401),
    "access": Reason("the API key is for something else than this"),
    "foreign_host": Reason("the request is addressed to a name that is not this service's", http_status=421),
    "foreign_origin": Reason("a web page of another site asks, which the service was not opened to"),
    "no_grant": Reason("the call brought no grant", http_status=401),
    "bad_token": Reason("the grant cannot be read as one", http_status=401),
    "tampered": Reason("the grant was changed after it was signed", http_status=401),
    "wrong_key": Reason("the grant is signed by another key than the one it names", http_status=401),
    "unknown_key": Reason("the grant is signed by a key that is not trusted here", http_status=401),
    "key_expired": Reason("the key that signed the grant is not valid at this time", http_status=401),
    "key_revoked": Reason("the key that signed the grant was revoked", http_status=401),
    "expired": Reason("the grant's time is over"),
    "not_yet_valid": Reason("the grant's time has not come"),
    "revoked": Reason("the grant was revoked"),
    "call_mismatch": Reason("the grant was made for another call"),
    "replayed": Reason("the grant's call is closed: it was used before"),
    "subject_mismatch": Reason("the grant was made for somebody else"),
    "tenant_mismatch": Reason("the grant was made for another tenant"),
    "audience_mismatch": Reason("the grant was made for another deployment"),
    "tool_mismatch": Reason("the grant was made for another tool"),
    "revocations_unreadable": Reason("the list of what was revoked cannot be read, so every grant counts as revoked"),
    "consent_required": Reason("a person has to agree first", exit_code=4),
    "consent_expired": Reason("a person agreed, too long ago", exit_code=4),
    "consent_mismatch": Reason("a person agreed to a different request", exit_code=4),
}
_DENY_TOOL = {
    "tool_denied": Reason("the policy does not let this role use the tool"),
    "unknown_tool": Reason("no policy names the tool"),
    "manifest_mismatch": Reason("the tool's manifest does not declare this operation"),
    "argument": Reason("a command or an argument does not fit its template"),
    "no_verdict": Reason("a rule could not come to an answer, which counts as no"),
}
_CAPABILITY_BLOCKED = {
    "blocked": Reason("a rule of the sandbox forbids the operation"),
    "blacklist": Reason("the target is on a deny list"),
    "executor_disabled": Reason("nothing here carries out such operations, or it is switched off"),
    "path_traversal": Reason("the path is absolute, climbs with '..', or crosses a symlink or a mount"),
    "path": Reason("the path lies outside what is allowed"),
    "read_only": Reason("this part of the workspace is for reading"),
    "special_file": Reason("a device, fifo, socket or link is where a file is needed"),
    "change_denied": Reason("a run changed what the policy lets nobody change, so nothing it changed is kept"),
    "changes_too_large": Reason(
        "a run changed more than the policy lets one run change, so nothing it changed is kept"
    ),
    "changed": Reason(
        "it was changed by somebody else in the middle of the operation", http_status=409, retryable=True
    ),
    "unreadable": Reason("the file's own permissions forbid it"),
    "too_large": Reason("more bytes than one operation may move", http_status=413),
    "max_files": Reason("the workspace holds as many files as it may"),
    "max_depth": Reason("the directories lie deeper than allowed"),
    "too_many_entries": Reason("the directory has more entries than one operation may look at"),
    "domain": Reason("the host is not on the list of allowed names"),
    "port": Reason("the port is not allowed"),
    "secret": Reason("the secret is not lent to this call"),
    "secret_way": Reason("the secret may not be used in this way"),
    "scheme": Reason("the scheme is not allowed"),
    "method": Reason("the method is not allowed"),
    "mime": Reason("the content type is not allowed"),
    "redirect": Reason("a redirect leads to where nothing is allowed"),
    "private_address": Reason("the name resolves to an address that is not public"),
    "tainted": Reason("the policy denies it to whoever has reached for untrusted content"),
    "request_content": Reason("at this level a request brings neither headers nor a body of its own"),
    "expansion": Reason("the content unpacks to many times its size"),
    "language": Reason("the language is not allowed"),
    "scope": Reason("the browser may be used, for other verbs"),
    "viewport": Reason("the picture or its viewport would be larger than allowed"),
    "depth": Reason("the page has been led from page to page as often as allowed"),
    "rate": Reason("as many pictures as allowed were taken in the last minute", http_status=429, retryable=True),
}
_UNAVAILABLE = {
    "unavailable": Reason("something this needs is not there now"),
    "isolation_unavailable": Reason("the required isolation cannot be had on this machine", retryable=False),
    "cgroups_missing": Reason("the profile requires a cgroup, and there is none here", retryable=False),
    "interpreter_unreadable": Reason("the box's user cannot read the interpreter", retryable=False),
    "runtime_missing": Reason("no interpreter on this machine runs the language", retryable=False),
    "extra_missing": Reason("an optional part of the package is not installed", retryable=False),
    "no_signing_key": Reason("there is no key that may sign a grant now", retryable=False),
    "signing_unavailable": Reason("nothing on this machine computes the signatures of evidence", retryable=False),
    "key_store_unsafe": Reason(
        "others could read or replace keys, or what else is to be private, so none of it is used", retryable=False
    ),
    "no_package_client": Reason("neither uv nor pip is installed", retryable=False),
    "package_timeout": Reason("building the package environment took too long"),
    "package_index_unreachable": Reason("the package index does not answer"),
    "package_store_unwritable": Reason("the package environment cannot be stored"),
    "artifacts_not_written": Reason("an artifact could not be written to the host"),
    "secret_source": Reason("whoever keeps the secret's value does not give it, or not one that can be used"),
    "damaged": Reason("what was kept is not what was written, so it is not given out", retryable=False),
    "newer_schema": Reason("a newer release made the database, and only that one can read it", retryable=False),
    "disk_full": Reason("too little of the disk is left to write down how a run ends, so none begins", retryable=False),
    "log_taken": Reason("another process has the evidence log now, so nothing was added to it"),
    "closed": Reason("the journal was closed, and nothing is written to it any more", retryable=False),
    "busy": Reason("somebody else holds it now"),
    "draining": Reason("the service is about to end and takes no new work"),
    "too_many_connections": Reason("as many connections as the service takes are open"),
    "service_running": Reason("another service has this home", retryable=False),
    "address_taken": Reason("the address to listen on is taken, or not this machine's", retryable=False),
    "not_recorded": Reason("a replay was asked for what was never recorded", retryable=False),
    "connect_failed": Reason("the other side does not accept connections"),
    "bad_answer": Reason("what answered does not speak as a ringfence service does", retryable=False),
    "name_resolution": Reason("the name could not be resolved"),
    "tls": Reason("the other side cannot show that the name is its own"),
    "bad_http": Reason("what answered does not speak HTTP, or says things that can be read in two ways"),
    "no_service": Reason("no service of this home is running"),
    "no_attachment": Reason("nobody can stay attached to a run in this kind of box", retryable=False),
    "image_unavailable": Reason("a skill asks for an image that nothing here runs", retryable=False),
    "no_gpu": Reason("this machine has no such GPU", retryable=False),
    "engine_missing": Reason("the command of the container engine is not installed", retryable=False),
    "engine_unreachable": Reason("the container engine does not answer, or does not let this user in"),
    "engine_hung": Reason("the container engine took a question and gave no answer"),
    "engine_too_old": Reason("the container engine lacks what holds a guest", retryable=False),
    "engine_full": Reason("the container engine has no disk space left", retryable=False),
    "engine_elsewhere": Reason("the container engine does not see the files of this machine", retryable=False),
    "image_missing": Reason("the container engine does not have the image", retryable=False),
    "browser_backend_missing": Reason("nothing on this machine can show web pages", retryable=False),
    "browser_crashed": Reason("a page, or the browser that showed it, is gone; the next one is new"),
}
_TIMEOUT = {
    "timeout": Reason("something outside did not answer in time"),
    "connect_timeout": Reason("no connection within the time allowed"),
    "read_timeout": Reason("no answer within the time allowed"),
    "slow_request": Reason("the request came too slowly", http_status=408),
    "wall_timeout": Reason("the run reached its wall-clock limit", retryable=False),
    "cpu_timeout": Reason("the run reached its cpu-time limit", retryable=False),
    "idle_timeout": Reason("the run neither said nor was told anything for as long as it may", retryable=False),
}
_BUDGET_EXCEEDED = {
    "budget": Reason("a budget is used up"),
    "calls": Reason("no calls are left"),
    "bytes_in": Reason("no bytes may come in any more"),
    "bytes_out": Reason("no bytes may go out any more"),
    "cpu_ms": Reason("no cpu time is left"),
    "gpu_ms": Reason("no GPU time is left"),
    "file_count": Reason("no files may be made any more"),
    "wall_ms": Reason("no wall-clock time is left"),
    "memory": Reason("the run reached its memory limit"),
    "disk": Reason("it does not fit into the workspace, or onto the disk it is to be kept on"),
    "workspace_disk": Reason("the session's files would outgrow their quota"),
    "project_artifacts": Reason("the artifacts of a project would outgrow their quota; old ones can be pruned"),
    "secrets": Reason("a tenant has as many secrets as it may"),
    "keys": Reason("there are as many API keys as a service may have"),
    "packages": Reason("a tenant has as many package environments of its own as it may"),
    "projects": Reason("a tenant has as many projects as it may"),
    "idempotency_keys": Reason("a tenant has as many idempotency keys as it may", retryable=True),
    "snapshots": Reason("a project has as many snapshots as it may, or they would take more room than it may"),
    "artifacts": Reason("the artifacts are more than are taken over; those left out are named"),
    "tmp_space": Reason("the temporary space is too small for this, or none is left to give"),
    "concurrency": Reason("as many operations as allowed are under way", retryable=True),
    "queue_full": Reason("as many executions of the scope named as may wait are waiting", retryable=True),
    "input_full": Reason("the process does not read its input, and no more is kept for it", retryable=True),
}
_VALIDATION_FAILED = {
    "invalid_request": Reason("the request cannot be carried out as written"),
    "usage": Reason("the command line is wrong"),
    "malformed": Reason("the request is not HTTP or its query no text, or a frame is no control", http_status=400),
    "not_json": Reason("the body is not JSON"),
    "given_twice": Reason("a key of the body or a parameter of the query is given twice", http_status=400),
    "method_not_allowed": Reason("the path does not know the method", http_status=405),
    "body_too_large": Reason("the body has more bytes than are taken", http_status=413),
    "unsupported_media_type": Reason("the body is of a type that the path does not take", http_status=415),
    "headers_too_large": Reason("the headers have more bytes than are taken", http_status=431),
    "keys_needed": Reason("a service that others can reach must have API keys first"),
    "not_in_this_version": Reason("the part that would do this has not landed"),
    "path_traversal": Reason(
        "a path in the request is absolute, climbs with '..', or crosses a symlink", http_status=400
    ),
    "invalid_path": Reason("a path in the request cannot be a file name"),
    "invalid_name": Reason("a name in the request is none"),
    "invalid_text": Reason("a text in the request is not text, or not Unicode"),
    "invalid_content": Reason("a file's content in the request is neither bytes nor text"),
    "invalid_input": Reason("an input named on the command line cannot be taken"),
    "invalid_env": Reason("an environment variable in the request is not one"),
    "invalid_args": Reason("the arguments are not a list of texts"),
    "invalid_limit": Reason("a limit is not a number that can be kept"),
    "invalid_package": Reason("a required package is not written as one"),
    "invalid_packages": Reason("the packages are not a list of texts"),
    "invalid_preload": Reason("a module to preload is not a module's name"),
    "invalid_pool_size": Reason("the pool size is not a whole number from 0"),
    "invalid_session_id": Reason("the session's id is not a plain name"),
    "invalid_range": Reason("an offset, a length, a size or a cursor is out of range"),
    "invalid_operation": Reason("the operation has a field that is missing, unknown or of another type"),
    "no_page": Reason("the session has no page open, or not under these rules", http_status=409),
    "invalid_url": Reason("a URL is not one that every client reads alike"),
    "invalid_selector": Reason("a selector is not plain CSS, or finds nothing in the page"),
    "invalid_host": Reason("the name or address of a host is not one"),
    "invalid_capability": Reason("a capability is not written as one"),
    "invalid_denial": Reason("a rule that denies is not written as one"),
    "invalid_glob": Reason("a pattern of paths or names is not one"),
    "invalid_budget": Reason("a budget is not an amount of something that is counted"),
    "invalid_grant": Reason("a grant lacks a field, or has one that cannot be"),
    "invalid_manifest": Reason("a manifest has mistakes; each is named with its place"),
    "invalid_schema": Reason("a schema is none, or one whose cost nobody can tell beforehand"),
    "input_invalid": Reason("the inputs of a skill are not what its schema says"),
    "duplicate_skill": Reason("two directories have a skill of this id, so neither counts", http_status=409),
    "invalid_policy": Reason("a policy has mistakes; each is named with its place"),
    "policy_unreadable": Reason("the policy file cannot be read"),
    "invalid_overrides": Reason("what the request asks to change is not written as such"),
    "invalid_yaml": Reason("a file is not YAML, or uses a part of it that is not read here"),
    "invalid_value": Reason("a setting has a value that it cannot have"),
    "invalid_unit": Reason("a size or a time is not written with a unit that is known"),
    "not_canonical": Reason("a value cannot be written in one way only, so it cannot be hashed"),
    "record_too_large": Reason("the names that came with a call are more than a record of it may hold"),
    "no_proof": Reason(
        "nothing proves that this is in the log: the records are not there, were dropped, or make another tree"
    ),
    "bad_note": Reason("a signed note, a checkpoint or a verifier key is not written as one"),
    "bad_signature": Reason("a signature does not hold for the text over it"),
    "unknown_signer": Reason("none of the keys that are trusted signed this"),
    "bad_digest": Reason("a digest in the evidence is not written as one"),
    "bad_time": Reason("a time in the evidence is none that a calendar has"),
    "not_one_run": Reason("the records given do not belong to one run"),
    "unfinished": Reason("the run has not ended, so there is no such view of it yet", http_status=409, retryable=True),
    "log_damaged": Reason("an exported log is not what was exported; the line is named"),
    "bundle_damaged": Reason("an evidence bundle is not what was exported"),
    "bundle_too_large": Reason("an evidence bundle has more in it than one may have"),
    "checkpoint_mismatch": Reason("the evidence has another history than a checkpoint from outside"),
    "invalid_config": Reason("the configuration file of the home cannot be read"),
    "isolation_too_weak": Reason("the isolation asked for is weaker than the risk requires"),
    "invalid_handle": Reason("the handle was never given out, or was freed"),
    "not_found": Reason("there is nothing of this name", http_status=404),
    "exists": Reason("there is something of this name, and replacing it was not asked for", http_status=409),
    "conflict": Reason(
        "somebody else changed the same files since the run began, and overwriting that was not asked for",
        http_status=409,
    ),
    "not_empty": Reason("the directory has entries, and deleting them was not asked for", http_status=409),
    "is_a_directory": Reason("a directory is where a file is needed"),
    "not_a_directory": Reason("something else is where a directory is needed"),
    "nul_byte": Reason("a text in the request has a NUL byte"),
    "too_large": Reason("the request has more bytes than are taken"),
    "too_many_files": Reason("the request has more files than are taken"),
    "of_the_service": Reason("only whoever starts the service can say it, not whoever has its address"),
    "limit_exceeds_ceiling": Reason("a limit is beyond what the system allows", http_status=403),
    "wrong_command": Reason("the command or its arguments are none that the kind of execution has", http_status=400),
    "idempotency_mismatch": Reason("the idempotency key was used for another request", http_status=409),
    "unanswered": Reason("what the idempotency key stands for was begun, and its answer is not known", http_status=409),
    "shown_once": Reason("what is made is shown once and kept nowhere, so it takes no idempotency key"),
    "unknown_language": Reason("there is no such language"),
    "unknown_isolation": Reason("there is no such isolation"),
    "unknown_security_mode": Reason("there is no such security mode"),
    "unknown_operation": Reason("there is no such operation"),
    "process_ended": Reason("the process is over", http_status=409),
    "input_closed": Reason("the process no longer reads its input", http_status=409),
    "no_terminal": Reason("the process has no terminal, or cannot be given one", http_status=409),
    "invalid_port": Reason("a port of the request is none"),
    "invalid_allow_domains": Reason("allow_domains is no list of texts"),
    "invalid_secrets": Reason("secrets is no list of texts"),
    "invalid_secret": Reason("a secret's name, value or place in the box is none"),
    "unknown_secret": Reason("there is no such secret", http_status=404),
    "preload_failed": Reason("a module to preload could not be imported"),
    "no_wheel": Reason("a package has no wheel, and nothing is built from source"),
    "package_not_found": Reason("no such package was found"),
    "unreadable": Reason("a file named on the command line cannot be read"),
    "artifacts_not_empty": Reason("the directory for artifacts has entries"),
    "artifacts_unwritable": Reason("the directory for artifacts cannot be written"),
    "no_interpreter": Reason("the process takes no cells"),
    "session_over": Reason("the session has ended, and takes no more cells", http_status=409),
}
_EXECUTION_FAILED = {
    "execution_failed": Reason("an executor failed at its own work"),
    "unknown": Reason("the run was ended from outside, by nobody Ringfence knows", exit_code=1),
    "session_over": Reason("the session of a cell ended before the cell did", exit_code=1),
    "refused_there": Reason("an AIO service answered that it could not do what it was asked to"),
    "output_invalid": Reason("the outputs of a skill are not what its schema says", exit_code=1),
    "io": Reason("the disk or the file system failed under the operation"),
}
_INTERNAL = {
    "internal": Reason("Ringfence itself failed"),
    "cgroup": Reason("a run's cgroup could not be made"),
    "wrong_output": Reason("a measured program gave the wrong output"),
}

TABLE: Mapping[str, Code] = MappingProxyType(
    {
        "SANDBOX.PERMISSION_DENY": Code("Not authorised", 403, 3, False, "PERMISSION_DENIED", _PERMISSION_DENY),
        "POLICY.DENY_TOOL": Code("Tool use denied", 403, 3, False, "PERMISSION_DENIED", _DENY_TOOL),
        "SANDBOX.CAPABILITY_BLOCKED": Code(
            "Blocked by the sandbox", 403, 3, False, "PERMISSION_DENIED", _CAPABILITY_BLOCKED
        ),
        "PROVIDER.UNAVAILABLE": Code("Not available now", 503, 7, True, "UNAVAILABLE", _UNAVAILABLE),
        "LLM.TIMEOUT": Code("Timed out", 504, 6, True, "DEADLINE_EXCEEDED", _TIMEOUT),
        "QUOTA.BUDGET_EXCEEDED": Code("Budget exceeded", 429, 5, False, "RESOURCE_EXHAUSTED", _BUDGET_EXCEEDED),
        "SCHEMA.VALIDATION_FAILED": Code("Invalid request", 422, 2, False, "INVALID_ARGUMENT", _VALIDATION_FAILED),
        "TOOL.EXECUTION_FAILED": Code("Execution failed", 500, 8, False, "INTERNAL", _EXECUTION_FAILED),
        "UNKNOWN.INTERNAL": Code("Internal error", 500, 8, False, "UNKNOWN", _INTERNAL),
    }
)
