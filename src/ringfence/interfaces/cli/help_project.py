"""What the command about the files of a project says of itself."""

from __future__ import annotations

OF_A_PROJECT = {
    "workspace": """\
ringfence workspace ls [PROJECT [PATH]]
ringfence workspace diff PROJECT [--since SNAPSHOT]
ringfence workspace snapshot PROJECT [--label TEXT]
ringfence workspace snapshots PROJECT
ringfence workspace restore PROJECT SNAPSHOT [--keep]
ringfence workspace reset PROJECT [--keep]
ringfence workspace delete PROJECT SNAPSHOT
ringfence workspace checkout PROJECT REPOSITORY
ringfence workspace repositories
ringfence workspace pending PROJECT
ringfence workspace commit PROJECT EXEC [--force]
ringfence workspace discard PROJECT EXEC

What the runs of a project (--project of 'ringfence run') left in /workspace/work, and its history. ls without a project
names the projects. diff says what was added (A), modified (M) and deleted (D) since a snapshot, or since there was
nothing, and shows texts as a unified diff. restore and reset put another work directory in place in one step; a run
that is under way adds what it wrote when it ends. checkout fills a new or empty project with a copy of a repository
that [workspace.repositories] of config.toml registers; repositories names them. pending lists what
'ringfence run --dry-run --keep' would change; commit applies it, unless others changed the same files since, and
discard forgets it.

  --since SNAPSHOT   compare with this one
  --label TEXT       what to call the snapshot in lists
  --keep             take a snapshot of what is there first
  --force            commit also over what others changed since the run began
  --policy FILE      act under this policy; what it does not allow is refused
  --role R           one of the policy's agent roles
  --home DIR         where state and evidence are kept, instead of $RINGFENCE_HOME
  --json             print one JSON object with the same, and nothing else
""",
}
