"""The one schema of evidence, budgets, grants and keys, as numbered steps that both engines take from any older one.

A step is never changed once it was released: what comes later is a step of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ringfence.dataclass import dataclass
from ringfence.errors import Unavailable

if TYPE_CHECKING:
    from ringfence.database.port import Cursor

RECORDS_PER_LOG: Final = 1 << 40
"""How far apart the places of two logs are: one number orders all records, so that one tree holds them, log by log."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """Where the two engines say the same thing in different words."""

    integer: str
    text: str
    blob: str
    keyed: str
    """Ends a table whose rows live in the tree of their key."""
    _whole: str
    _at: str
    """A member of a JSON text, as text."""
    _path: Callable[[tuple[str, ...]], str]
    _number: str
    _flag: str

    def whole(self, column: str) -> str:
        """Return the check that a column holds a whole number that is not negative."""
        return self._whole.format(column=column)

    def member(self, body: str, *path: str) -> str:
        """Return the expression for a member of a record's text: as text, a list or an object as JSON."""
        # one engine knows no text with a NUL in it and would refuse the whole view; the other would hide what follows
        without_nul = f"replace({body}, '\\u0000', '\\ufffd')"
        return self._at.format(body=without_nul, path=self._path(path))

    def number(self, body: str, *path: str) -> str:
        """Return the expression for a member that is a whole number."""
        return self._number.format(member=self.member(body, *path))

    def flag(self, body: str, *path: str) -> str:
        """Return the expression for a member that is true or false, as 1 or 0."""
        return self._flag.format(member=self.member(body, *path))


SQLITE: Final = Dialect(
    integer="INTEGER",
    text="TEXT",
    blob="BLOB",
    keyed="WITHOUT ROWID",
    _whole="(typeof({column}) = 'integer' AND {column} >= 0)",
    _at="json_extract({body}, '{path}')",
    _path=lambda path: "$." + ".".join(path),
    _number="{member}",
    _flag="{member}",
)
POSTGRES: Final = Dialect(
    integer="BIGINT",
    # by bytes, whatever language the server speaks
    text='TEXT COLLATE "C"',
    blob="BYTEA",
    keyed="",
    _whole="({column} >= 0)",
    _at="({body}::json #>> '{{{path}}}')",
    _path=",".join,
    _number="({member})::bigint",
    _flag="({member})::boolean::int",
)


def migrate(cursor: Cursor, dialect: Dialect, name: str) -> None:
    """Bring the database `name` to the newest version, inside a transaction that nobody else's can meet.

    Raises:
        Unavailable: A newer release made it, and only that one knows what it means.
    """
    cursor.execute(f"CREATE TABLE IF NOT EXISTS schema_version (version {dialect.integer} NOT NULL)")
    rows = cursor.execute("SELECT version FROM schema_version").fetchall()
    version: int = rows[0][0] if rows else 0
    if type(version) is not int or version < 0:
        raise Unavailable(f"{name} does not say which version its schema is, so nothing runs", reason="damaged")
    if version > VERSION:
        raise Unavailable(
            f"{name} was made by a newer release (its schema is {version}, this one knows {VERSION}), so nothing runs",
            reason="newer_schema",
            fix="use the newer release, or another home",
        )
    if version == VERSION:
        return
    for step in _STEPS[version:]:
        for statement in step(dialect):
            cursor.execute(statement)
    cursor.execute("DELETE FROM schema_version")
    cursor.execute("INSERT INTO schema_version VALUES (?)", (VERSION,))


def names_made(dialect: Dialect) -> frozenset[tuple[str, str]]:
    """Return the kind and name of everything that the steps make."""
    made = {("table", "schema_version")}
    for step in _STEPS:
        for words in map(str.split, step(dialect)):
            if words[0] == "CREATE":
                words = [word for word in words if word != "UNIQUE"]
                made.add((words[1].lower(), words[5] if words[2:5] == ["IF", "NOT", "EXISTS"] else words[2]))
    return frozenset(made)


def _budgets(d: Dialect) -> tuple[str, ...]:
    # `IF NOT EXISTS`: homes are older than the table of versions
    return (
        f"""
        CREATE TABLE IF NOT EXISTS budget_account (
            scope {d.text} NOT NULL, tenant {d.text} NOT NULL, name {d.text} NOT NULL, kind {d.text} NOT NULL,
            settled {d.integer} NOT NULL CHECK {d.whole("settled")},
            held {d.integer} NOT NULL CHECK {d.whole("held")},
            PRIMARY KEY (scope, tenant, name, kind)
        ) {d.keyed}
        """,
        f"""
        CREATE TABLE IF NOT EXISTS budget_reservation (
            exec_id {d.text} NOT NULL PRIMARY KEY, amounts {d.text} NOT NULL, holds {d.text} NOT NULL,
            boot_id {d.text} NOT NULL, pid_namespace {d.text} NOT NULL, pid {d.integer} NOT NULL,
            started {d.integer} NOT NULL
        ) {d.keyed}
        """,
    )


def _journal(d: Dialect) -> tuple[str, ...]:
    ids = ", ".join(f"{field} {d.text}" for field in _ID_FIELDS)
    return (
        f"""
        CREATE TABLE journal_log (
            number {d.integer} NOT NULL PRIMARY KEY, log_id {d.text} NOT NULL UNIQUE, created_ms {d.integer} NOT NULL,
            boot_id {d.text} NOT NULL, pid_namespace {d.text} NOT NULL, pid {d.integer} NOT NULL,
            started {d.integer} NOT NULL, held {d.integer} NOT NULL, term {d.integer} NOT NULL,
            first_seq {d.integer} NOT NULL, first_prev {d.blob} NOT NULL, first_frontier {d.text} NOT NULL
        )
        """,
        # the check makes a record in another log's place impossible, the key two records in one place
        f"""
        CREATE TABLE journal_record (
            place {d.integer} NOT NULL PRIMARY KEY, log {d.integer} NOT NULL, seq {d.integer} NOT NULL,
            time_ms {d.integer} NOT NULL, type {d.text} NOT NULL, exec_id {d.text}, hash {d.blob} NOT NULL,
            body {d.text}, mac {d.blob},
            CHECK (seq >= 0 AND seq < {RECORDS_PER_LOG} AND place = log * {RECORDS_PER_LOG} + seq)
        )
        """,
        f"""
        CREATE TABLE journal_open (
            exec_id {d.text} NOT NULL PRIMARY KEY, log {d.integer} NOT NULL, seq {d.integer} NOT NULL
        ) {d.keyed}
        """,
        f"""
        CREATE TABLE journal_exec (
            exec_id {d.text} NOT NULL PRIMARY KEY, log {d.integer} NOT NULL, begin_seq {d.integer} NOT NULL,
            end_seq {d.integer} NOT NULL, started_ms {d.integer} NOT NULL, outcome {d.text} NOT NULL, {ids}
        ) {d.keyed}
        """,
        "CREATE INDEX journal_exec_time ON journal_exec (started_ms, exec_id)",
        *(
            f"CREATE INDEX journal_exec_{field} ON journal_exec ({field}, started_ms, exec_id) WHERE {condition}"
            for field, condition in _INDEXES.items()
        ),
        f"""
        CREATE TABLE journal_checkpoint (
            log {d.integer} NOT NULL, size {d.integer} NOT NULL, time_ms {d.integer} NOT NULL, root {d.blob} NOT NULL,
            frontier {d.text} NOT NULL, note {d.text} NOT NULL, PRIMARY KEY (log, size)
        ) {d.keyed}
        """,
        f"""
        CREATE TABLE journal_document (
            digest {d.text} NOT NULL PRIMARY KEY, kind {d.text} NOT NULL, body {d.text} NOT NULL
        )
        """,
        f"""
        CREATE TABLE journal_hold (
            hold_id {d.text} NOT NULL PRIMARY KEY, created_ms {d.integer} NOT NULL, reason {d.text} NOT NULL,
            field {d.text} NOT NULL, value {d.text} NOT NULL
        ) {d.keyed}
        """,
        f"""
        CREATE TABLE grant_call (
            tenant {d.text} NOT NULL, fingerprint {d.text} NOT NULL, forget_at {d.integer} NOT NULL,
            spent {d.integer} NOT NULL, closed {d.integer} NOT NULL, PRIMARY KEY (tenant, fingerprint)
        ) {d.keyed}
        """,
        "CREATE INDEX grant_call_forget_at ON grant_call (forget_at)",
        _sandbox_execs(d),
    )


def _service(d: Dialect) -> tuple[str, ...]:
    return (
        # of a key the hash alone: whoever reads the database cannot call with it
        f"""
        CREATE TABLE api_key (
            key_id {d.text} NOT NULL PRIMARY KEY, tenant {d.text} NOT NULL, access {d.text} NOT NULL,
            name {d.text} NOT NULL, digest {d.blob} NOT NULL, created_ms {d.integer} NOT NULL,
            expires_ms {d.integer}, revoked_ms {d.integer}
        ) {d.keyed}
        """,
        # what a caller was promised, and what an idempotency key stands for; `request` is there until it is over
        f"""
        CREATE TABLE service_exec (
            exec_id {d.text} NOT NULL PRIMARY KEY, tenant {d.text} NOT NULL, key_digest {d.text},
            digest {d.text} NOT NULL, created_ms {d.integer} NOT NULL, state {d.text} NOT NULL, owner {d.text} NOT NULL,
            request {d.text}, ending {d.text}, UNIQUE (tenant, key_digest)
        ) {d.keyed}
        """,
        "CREATE INDEX service_exec_state ON service_exec (state, created_ms)",
        # of a name that many tenants use, each finds its own without passing the others' by
        *(
            f"CREATE INDEX journal_exec_own_{field} ON journal_exec (tenant, {field}, started_ms, exec_id) "
            f"WHERE tenant <> 'local' AND {condition}"
            for field, condition in _OWN_INDEXES.items()
        ),
    )


def _answers(d: Dialect) -> tuple[str, ...]:
    return (
        # what an idempotency key stands for that is not an execution; without a status it has not been answered
        f"""
        CREATE TABLE service_answer (
            tenant {d.text} NOT NULL, key_digest {d.text} NOT NULL, digest {d.text} NOT NULL,
            created_ms {d.integer} NOT NULL, size {d.integer} NOT NULL, status {d.integer}, headers {d.text},
            body {d.blob}, PRIMARY KEY (tenant, key_digest)
        ) {d.keyed}
        """,
        "CREATE INDEX service_answer_created ON service_answer (created_ms)",
    )


def _taint(d: Dialect) -> tuple[str, ...]:
    # the first execution that marked a name stays the one: a mark is never changed, and never taken back
    return (
        f"""
        CREATE TABLE taint_mark (
            tenant {d.text} NOT NULL, name {d.text} NOT NULL, exec_id {d.text} NOT NULL, reached {d.text} NOT NULL,
            time_ms {d.integer} NOT NULL, PRIMARY KEY (tenant, name)
        ) {d.keyed}
        """,
    )


def _roles(d: Dialect) -> tuple[str, ...]:
    return (f"ALTER TABLE api_key ADD COLUMN role {d.text}",)


OF_AN_EXEC: Final = "exec_id IS NOT NULL AND type NOT IN ('exec.begin', 'exec.end', 'decision.denied')"
"""What else is written of an execution: secrets it was lent, its process, that it marked its session."""


def _others(_: Dialect) -> tuple[str, ...]:
    # most runs have none, and pay nothing for it
    return (f"CREATE INDEX journal_record_other ON journal_record (exec_id, place) WHERE {OF_AN_EXEC}",)


def _sandbox_execs(d: Dialect) -> str:
    """Return the view with the twenty columns that tools of the first design read; times are in milliseconds."""
    ids = ("project_id", "task_id", "conversation_id", "skill_id")
    policy = d.member("b.body", "documents", "policy")
    return f"""
        CREATE VIEW sandbox_execs AS SELECT
            e.exec_id AS exec_id,
            {", ".join(f"coalesce(e.{field}, {d.member('b.body', field)}) AS {field}" for field in ids)},
            coalesce({d.member("f.body", "image")}, {d.member("f.body", "runtime")}) AS image,
            {", ".join(f"{d.member('b.body', name)} AS {name}" for name in ("cmd", "args", "cwd", "env_keys"))},
            coalesce((SELECT p.body FROM journal_document p WHERE p.digest = {policy}), {policy}) AS policy_snapshot,
            e.status AS status,
            {d.number("f.body", "exit_code")} AS exit_code,
            {d.member("f.body", "error_reason")} AS error_reason,
            b.time_ms AS started_at,
            coalesce({d.number("f.body", "finished_at_ms")}, f.time_ms) AS ended_at,
            {d.number("f.body", "duration_ms")} AS duration_ms,
            {d.member("f.body", "artifacts_path")} AS artifacts_path,
            {d.flag("f.body", "stdout", "truncated")} AS stdout_truncated,
            {d.flag("f.body", "stderr", "truncated")} AS stderr_truncated
        FROM (
            SELECT exec_id, log, begin_seq, end_seq, outcome AS status, {", ".join(ids)} FROM journal_exec
            UNION ALL
            SELECT exec_id, log, seq, NULL, 'running', {", ".join("NULL" for _ in ids)} FROM journal_open
        ) e
        LEFT JOIN journal_record b ON b.place = e.log * {RECORDS_PER_LOG} + e.begin_seq
        LEFT JOIN journal_record f ON f.place = e.log * {RECORDS_PER_LOG} + e.end_seq
        """


# as they were when the journal's step was released; `journal.store.ID_FIELDS` is what they are now
_ID_FIELDS = (
    "tenant",
    "space_id",
    "user_id",
    "subject_id",
    "session_id",
    "conversation_id",
    "turn_id",
    "task_id",
    "project_id",
    "skill_id",
    "tool_name",
    "call_id",
    "envelope_id",
)
# partial: what a run does not have, or has in common with almost all of them, costs no page when it ends
_INDEXES = {field: f"{field} IS NOT NULL" for field in _ID_FIELDS} | {
    "tenant": "tenant <> 'local'",
    "subject_id": "subject_id <> 'local'",
    "outcome": "outcome <> 'succeeded'",
}
_OWN_INDEXES = {
    field: _INDEXES[field]
    for field in (
        "task_id", "turn_id", "conversation_id", "project_id", "skill_id", "user_id", "space_id", "outcome",
    )
}  # fmt: skip
_STEPS: tuple[Callable[[Dialect], tuple[str, ...]], ...] = (
    _budgets,
    _journal,
    _service,
    _taint,
    _answers,
    _roles,
    _others,
)
VERSION: Final = len(_STEPS)
"""The newest version of the schema that this release knows."""
