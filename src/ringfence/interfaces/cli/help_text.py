"""The manual of the command, as a person reads it in a terminal."""

from __future__ import annotations

from ringfence.interfaces.cli.help_machine import OF_THE_MACHINE
from ringfence.interfaces.cli.help_project import OF_A_PROJECT
from ringfence.interfaces.cli.help_web import OF_THE_WEB

OVERVIEW = """\
ringfence: run what a model wrote, in real isolation.

  ringfence run [FILE|-] [-c CODE]     run a program in a box of its own
  ringfence shell -- COMMAND...        run a shell command in a box of its own
  ringfence browse URL                 look at a web page, in a browser in a box of its own
  ringfence doctor                     say whether this machine can isolate, and how to fix it
  ringfence bench                      measure the promised speed on this machine
  ringfence policy lint FILE           check a policy; 'explain' and 'diff' say what it means and what changed
  ringfence grant issue|attenuate|inspect|revoke   what an agent may do in one call, signed
  ringfence key create|list|revoke     the keys that sign grants, and those that call the service
  ringfence secret set|list|revoke     what runs may be lent by name and nobody may see
  ringfence serve                      the same over HTTP, for agents and tools, on this machine or beyond
  ringfence start|ps|logs|send|kill    processes that go on by themselves, in the service of this home
  ringfence evidence list|show|verify|export|replay   what ran, on whose word, with what effect, and the proof of it
  ringfence skill list|show|validate|invoke|new   tools with a manifest, and schemas for what goes in and comes out
  ringfence metrics                    the same in numbers, for Prometheus
  ringfence mcp                        offer all this to a model's client, as tools of the Model Context Protocol
  ringfence workspace ls|diff|snapshot|restore|reset|commit   a project's files, their history, what waits
  ringfence image build|list|age|scan|sbom|seccomp   what containers start from
  ringfence selftest escape            try to get out of a box of this machine, with the programs that ship for it
  ringfence paths                      the workspace as Windows, WSL and docker each call it
  ringfence errors list                every error code and reason, and what it means
  ringfence COMMAND --help             the options of one command
  ringfence --version

State lives in $RINGFENCE_HOME (default ~/.ringfence).
"""

_RUN_OPTIONS = """\
  --language L          python, javascript, typescript or bash; FILE's suffix tells: .py .js .mjs .ts .sh
  --isolation I         auto (default), native, bwrap, docker, gvisor or aio
  --security M          strict (default) or permissive
  --with PKG            a package the program may import, such as pandas or pandas==2.2.3; repeatable
  --preload MODULE      a module imported before the program starts; repeatable
  --timeout S           wall-clock seconds
  --memory MB           memory limit in MiB
  --input PATH          a host file or directory, copied to /workspace/inputs/<name>; repeatable
  --env K=V             a variable for the program, which sees none of yours; repeatable
  --secret NAME=env     a secret of this home for the program, as a variable; NAME=env:VARIABLE, NAME=file:name;
                        NAME or NAME=broker:VARIABLE: put in by the proxy, and never in the box
  --allow-domain D      let the program reach the host D, or with *.D all below it, as far as the policy grants it;
                        repeatable; without it there is no network
  --artifacts DIR       write what the program left in /workspace/artifacts to DIR, which must be new or empty
  --project ID          keep /workspace/work between the runs of one project
  --dry-run             show on standard error what the run would change in the project, and change nothing
  --keep                with --dry-run: keep the changes until 'ringfence workspace commit' or 'discard' says more
  --policy FILE         run under this policy; what it does not allow is refused, and nothing runs
  --role R              one of the policy's agent roles
  --correlate NAME=ID   whose work it is, to find its evidence by: user, space, conversation, turn, task, project,
                        skill, request or traceparent; repeatable
  --home DIR            where state and evidence are kept, instead of $RINGFENCE_HOME
  --stdin, --no-stdin   read standard input for the program, or do not; by default a pipe or file is read
  --passthrough         exit with the program's own exit code
  --json                print the result as one JSON object, and nothing else
"""

_EXIT_CODES = """\
Output comes as the program writes it. On a terminal, control characters in it are shown as \\x1b and not obeyed.

Exit codes: 0 ok, 1 program failed, 2 usage, 3 denied, 4 consent needed, 5 quota, 6 timeout, 7 unavailable,
8 internal; 128+N when signal N ended ringfence itself (130 Ctrl-C, 141 the reader of a pipe went away): the
program is then killed and nothing of it is left.
"""

COMMANDS = {
    "run": f"""\
ringfence run [FILE|-] [-c CODE] [OPTIONS] [-- ARGS...]

Run a program in a box of its own: no network, no host files, limits on everything. FILE is read on the host;
- reads the program from standard input. ARGS are the program's arguments.

{_RUN_OPTIONS}
{_EXIT_CODES}
  ringfence run -c 'print(1)'
  ringfence run analyse.py --input data.csv --with pandas --artifacts out -- --fast
  cat data.csv | ringfence run -c 'import sys; print(len(sys.stdin.read()))'
""",
    "shell": f"""\
ringfence shell [OPTIONS] -- COMMAND...

Run COMMAND with bash in a box of its own. One word is a script ('a | b'); several are a program and its arguments,
passed on exactly as they are.

{_RUN_OPTIONS}
{_EXIT_CODES}
  ringfence shell -- 'echo hi | wc -c'
  ringfence shell --input data.csv -- head -n 3 /workspace/inputs/data.csv
""",
    "bench": """\
ringfence bench [--quick] [--only NAME]... [--json] [--plot FILE]

Measure the promises of SPEC.md as ratios to a bare Python subprocess, interleaved on this machine.

  --quick        a tenth of the counts or less, 50,000 records instead of 1,000,000 and 3 s instead of 60 s of
                 idling; for a first look, not for quoting
  --only NAME    warm, unparked, crowd, burst, preload, javascript, footprint, cold, law, changes, evidence, journal,
                 http_p50, http_crowd, http_idle, http_list, snapshots, fetch, docker, gvisor, egress, boxes, neighbours
                 or browser_open
  --json         one JSON object with the quantiles of every series, and nothing else
  --plot FILE    save the latency distributions as an SVG picture
""",
    "mcp": """\
ringfence mcp [--transport stdio|http] [OPTIONS]

Serve tools to a client of the Model Context Protocol: run_code, run_shell, read_file, write_file, list_files,
start_process, read_process, send_process, kill_process, fetch_url, browse_page, screenshot_page, and every skill.
Over stdio, which is for a client that starts this command itself, only messages come out; the log is on stderr.
Over http, at http://HOST:PORT/mcp, every request needs the API key of a caller.

  --transport T   stdio (default) or http
  --host HOST     http: where to listen (default 127.0.0.1)
  --port PORT     http: (default 8322)
  --project ID    the project whose files the tools work on (default mcp)
  --policy FILE   what the policy does not allow is refused, and nothing runs
  --role R        one of the policy's agent roles
  --skills DIR    a directory of skills, beside those of the home and those that come with ringfence
  --home DIR      where state and evidence are kept, instead of $RINGFENCE_HOME

Needs: pip install 'ringfence[mcp]'
""",
    "image": """\
ringfence image build [--suite S] [--requirements FILE] [--mirror URL] [--fresh] [--archive-only] [--json]
ringfence image build --dockerfile [--base IMAGE] [--requirements FILE] [--json]
ringfence image list [--json]
ringfence image age [--max-days N] [--json]
ringfence image scan [--fail-on low|medium|high|critical] [--json]
ringfence image sbom
ringfence image seccomp

build makes the sandbox image from Debian's signed packages and gives it to the container engine, with no registry; what
was built before is used again. With --dockerfile the engine follows Dockerfile.sandbox, from a base image that it
fetches. list shows what was built, and what the engine has; age exits with 1 when it is time to build again; scan asks
trivy or grype about the bill of materials, and exits with 1 when something as bad as --fail-on is known; sbom prints
that bill, as CycloneDX; seccomp prints the profile that containers are held to.

  --suite S            bookworm (default, Python 3.11) or trixie (3.13)
  --requirements FILE  Python packages to put in, as a requirements file, instead of Node with npm alone
  --mirror URL         where Debian's packages come from
  --fresh              make it again, with today's packages
  --archive-only       do not give it to an engine; gVisor needs none
  --base IMAGE         instead of python:3.12-slim
  --max-days N         how old is too old (default 30)
  --fail-on S          how bad is too bad (default high)
  --home DIR           whose config.toml says which engine, instead of $RINGFENCE_HOME
""",
    "policy": """\
ringfence policy lint FILE [--skills DIR]... [--json]
ringfence policy explain --policy FILE [--tool T] [--role R] [--manifest FILE] [--grant FILE]
                         [--override KEY=VALUE]... [--clamp] [--json]
ringfence policy check --policy FILE --op JSON [--tool T] [--role R] [--manifest FILE] [--grant FILE] [--tainted]
                       [--json]
ringfence policy test FILE [--json]
ringfence policy diff OLD NEW [--fail-on-widening] [--json]
ringfence policy replay --policy CANDIDATE [--since WHEN] [--until WHEN] [--strict] [--home DIR] [--json]
ringfence policy show --hash DIGEST [--home DIR] [--json]
ringfence policy show --mode MODE [--json]

lint finds unknown keys, wrong values, circles, unknown names and rules that their own examples refute, each with its
file, line, column and fix. Which skills there are it knows where --skills names their directories, beside those of the
package and of $RINGFENCE_HOME/skills. Exit code 2 when there are errors; warnings alone give 0.

explain shows what a call may do at most: what each layer says about every setting, the value, why it is that one, and
what holds it: the kernel, the host, a proxy, the guard before anything runs, or best-effort. It asks neither whether a
grant is signed nor whether it is expired, and it runs nothing.

  --policy FILE          the policy
  --tool T, --role R     the tool called, and the role of who calls it
  --manifest FILE        the tool's manifest; a built-in tool needs none
  --grant FILE           a grant as a JSON object; without one the call has what the policy gives
  --override KEY=VALUE   what the request asks for, such as timeout_ms=30000 or net.mode=none; repeatable
  --clamp                cut down what the request asks for too much, instead of refusing it

check asks the guard about one operation, such as '{"op": "fs_read", "path": "work/a"}' or
'{"op": "code_run", "language": "bash", "code": "ls"}', prints the answer of every rule, and carries nothing out. Exit
code 0 when it is allowed, 3 when it is denied, 4 when somebody has to agree first. A grant that is expired is refused;
whether it is signed is not asked. With --tainted it is judged as in a session that has read untrusted content. Options
as for explain.

test puts the operations of the policy's own 'tests' section to the guard. Exit code 1 when one is judged otherwise.

diff shows what calls may do more or less under NEW than under OLD: widened, narrowed, or changed, which is both ways
or not known. Exit code 1 with --fail-on-widening unless every change narrows.

  --json                 one JSON object with the same, and nothing else

replay asks of every call in the evidence how CANDIDATE would decide it: "14 past calls of code_run would now be
denied". WHEN is as for 'evidence list'. Exit code 1 when a decision changes, with --strict also
when one cannot be told.

show prints the exact text of a policy that decisions were made under; 'evidence show' names its digest. With --mode it
prints what becomes of every kind of action in a mode: cowork, ask, strict-ask, auto or never-ask.
""",
    "evidence": """\
ringfence evidence list [SELECTION] [--limit N] [--cursor C]       executions, newest first
ringfence evidence show ID [--audit | --public]                    one of them, by its exec_id or evidence_id
ringfence evidence verify [FILE] [--key VKEY|FILE]... [--checkpoint FILE]...   whether all is what was written
ringfence evidence export --format FORMAT [SELECTION | --exec ID...] [--output FILE]
ringfence evidence replay ID|SELECTION [--level decision|simulate|reexecute] [--policy CANDIDATE]
ringfence evidence report [--since WHEN] [--until WHEN] [--unused-rules --policy FILE]
ringfence evidence prune --older-than AGE [--rows] [--content] [--files] [--key VKEY|FILE]... --yes
ringfence evidence hold add FIELD=VALUE [--reason TEXT] | list | release HOLD_ID
ringfence evidence content on | off | status | forget --yes         whether contents are kept, encrypted, for replays
ringfence evidence key | checkpoint | document DIGEST              what is given to auditors

All take --json (one object, nothing else) and --home DIR (instead of $RINGFENCE_HOME).

SELECTION narrows by --status ok|error|denied|running, --outcome O, --tool T, --tenant T, --subject S, --user ID,
--space ID, --session ID, --conversation ID, --turn ID, --task ID, --project ID, --skill ID, --call ID, --since WHEN and
--until WHEN, where WHEN is 90s, 15m, 1h, 7d, 2w, 2026-03-01 or 2026-03-01T08:00Z.

list holds each row against its hash; one that was tampered with is still listed, marked, and gives exit code 3. What
has not ended is 'running', or 'orphaned (not yet closed)' when the process that ran it is gone; the next run in the
home closes it.
show prints both records, their place in the log and the proof that they are in it. --public leaves out what only
auditors see: grant, policy, limits and isolation. Exit code 3 when a record is not what was written.

verify reads every record. Without FILE it verifies the home against the home's own key, unless --key is given: that
shows that nobody without the key edited anything. With FILE it verifies a bundle or a log that was exported, and needs
no home: give the key ('evidence key' prints it) or checkpoints ('evidence checkpoint' prints them) that you had from
somewhere else, or it says 'signer unproven'. The first record that was altered, removed, inserted or moved is named;
a missing tail is seen against a checkpoint.
Exit codes of verify: 0 whole and proven, 1 whole and the signer unproven, 3 tampered with, 2 and 7 as everywhere.

export writes FILE whole or not at all, for its owner alone; without --output to standard output. Formats:
  bundle        the records with proofs, checkpoints and policies, as an in-toto statement in a DSSE envelope; so is
                'in-toto'. It proves itself: see verify
  log           every log of the home, whole, as JSON lines; proves itself too
  audit-json    one flat JSON line for each execution that is over, newest first
  cloudevents, ocsf, otlp   one JSON line for each record, event, or 100 spans

replay decides again from the stored policy and grant (decision), takes the result out of the content store (simulate),
or runs the program once more and compares digests (reexecute); the last two need contents that were kept ('content
on', which evidence itself never holds). --policy decides by another policy. Exit code 0 when all came out the same, 1
when something differs, 7 when it cannot be told.

prune takes away the texts of old records and keeps their hashes, so that the rest still verifies; with --rows whole
records up to a checkpoint, with --content the kept contents, with --files the files of runs in their projects. What a
hold is on stays. All of it is recorded first: verify accepts nothing as gone that no signed record tells of. Evidence
that is not whole is not pruned; --key names the keys of other homes that write to the same server.

  ringfence evidence list --since 1h --status denied
  ringfence evidence export --format bundle --task T-7 --output T-7.bundle
  ringfence evidence verify T-7.bundle --key audit.vkey
""",
    "metrics": """\
ringfence metrics [--no-aliases] [--openmetrics] [--home DIR]

Print what the evidence of a home amounts to, in the text format that Prometheus scrapes. What was counted is kept in
the home, so the next call reads only what is new.

  --no-aliases   without the older names of the same numbers
  --openmetrics  in the OpenMetrics 1.0 form
""",
    "skill": """\
ringfence skill list [--skills DIR]... [--json]                  the skills there are
ringfence skill show ID [--skills DIR]... [--json]               one of them: what it takes, gives and may do
ringfence skill validate [DIR]... [--skills DIR]... [--json]     everything that is wrong, with its place and its fix
ringfence skill invoke ID [--inputs JSON|@FILE|-] [OPTIONS]      call it, and print its outputs as JSON
ringfence skill new ID [--skills DIR]                            make one from the template

A skill is a directory with a manifest.json; see docs/skills.md. Those of the package (shell.run, python.run,
file.search, web.fetch) and of $RINGFENCE_HOME/skills are always there; --skills names other directories, and is
repeatable. DIR of validate is a skill, or a directory of skills.

  --inputs JSON        its inputs, an object; @FILE reads them from a file, - from standard input; default {}
  --timeout S          wall-clock seconds, at most what its manifest allows
  --project ID         whose /workspace/work it sees, where its manifest allows that
  --policy FILE        call it under this policy
  --role R             one of the policy's agent roles
  --home DIR           where state and evidence are kept, instead of $RINGFENCE_HOME
  --json               one JSON object with outputs and result, and nothing else

Exit codes of invoke are those of run; 1 also when the outputs are not what the manifest says. validate gives 2 when
there are errors, and 0 with warnings alone.

  ringfence skill invoke shell.run --inputs '{"command": "ls -l"}' --project p1
""",
    "grant": """\
ringfence grant issue --tool T --call ID [OPTIONS]       sign what the policy gives a role for one call; print the token
ringfence grant attenuate TOKEN|- [OPTIONS]              take something away from it; needs no key and asks nobody
ringfence grant inspect TOKEN|- [--call ID]              say what is in it, and whether it is good here and now
ringfence grant revoke TOKEN|- | --id ID | --block ID | --subject S    make it void for every process, at once

- reads the token from standard input, where other users of the machine do not see it.

  --policy FILE         issue: the policy that is granted from; without one, what the built-in policy gives
  --role R              issue: the agent role of the policy
  --tenant T            issue, revoke: whose agent it is; default local
  --subject S           issue: the agent; default local. revoke: everything granted to it until now
  --audience A          issue: the deployment that may take it, named by 'audience' under [grants] of its home's
                        config.toml; without one, any that trusts the key
  --ttl TIME            how long it is good for, such as 90s, 15m (default) or 2h; at most 24h
  --allow CAPABILITY    nothing but this, such as fs.read:/workspace/inputs or net.http:GET:*.example.com; repeatable
  --budget KIND=N       at most so much, such as calls=3 or bytes_out=1000000; repeatable
  --limit NAME=N        a limit of each run, such as timeout_ms=5000 or memory_mb=256; repeatable
  --deny-path GLOB      never this path; repeatable
  --deny-domain GLOB    never this host; repeatable
  --json                one JSON object, and nothing else

Exit codes: 0 ok, 2 usage, 3 the grant is not good (the reason says why), 7 there is no key to sign with.

  ringfence key create
  ringfence grant issue --tool file_read --call c1 --ttl 5m > token
  ringfence grant attenuate - --allow fs.read:/workspace/inputs --budget calls=1 < token
""",
    "secret": """\
ringfence secret set NAME [--way broker|env|file]… [--host HOST]… [--tenant T] [--json]      the value comes on stdin
ringfence secret set NAME --from SOURCE …    env:NAME, file:/path, keyring:service/user or vault:path#field
ringfence secret list [--tenant T] [--json]
ringfence secret revoke NAME [--tenant T]

A secret is sealed in this home and never shown again. A policy says which tools may have it within reach (`secrets:`).
Its ways say how: `env` and `file` put it into the box, and it is masked in whatever comes out; `broker` does not.

examples:
  printf %s "$TOKEN" | ringfence secret set TOKEN --way env
  ringfence run --policy policy.yaml --secret TOKEN=env -c 'import os; print(len(os.environ["TOKEN"]))'
""",
    "key": """\
ringfence key create [--days N] [--json]
ringfence key create --access A [--tenant T] [--name N] [--role R] [--days N] [--json]
ringfence key list [--json]
ringfence key revoke KEY_ID [--json]

The keys that sign grants, in $RINGFENCE_HOME/keys, which nobody else may read. The newest one signs; older ones verify
what they signed until their own days are over, so making a new key is how keys are rotated. A revoked key is void at
once, with everything it signed.

With --access the key is one that calls the service ('ringfence serve'). It is shown once; its hash alone is kept. What
it is for: agent runs things in its tenant, operator sees and stops them, auditor reads their evidence, admin does all
of it for every tenant, and makes keys.

  --access A     create: admin, operator, auditor or agent
  --tenant T     create: whose it is, 1 to 63 lower-case letters, digits, - or _; default local. For operators and
                 auditors of the whole instance: '*'
  --name N       create: what its caller is called in evidence; a new key of the same name takes over from an old one
  --role R       create: the agent role of the policy that its caller acts in
  --days N       create: how long the key is good for; default 90 for grants, and without end for --access
  --json         one JSON object, and nothing else
""",
    "serve": """\
ringfence serve [--host H] [--port P] [--policy FILE] [--database URL] [--workspace-root DIR] [--skills DIR]
                [--config FILE] [--aio]

Serve this home over HTTP: executions, processes, workspaces, skills and evidence, under the same law as the command.
Callers send 'Authorization: Bearer KEY'; on loopback the first key is made and shown when there is none. Beyond
loopback nothing is served without keys. $RINGFENCE_HOME/service.sock serves the owner of the home without one.
SIGTERM or Ctrl-C lets what runs end first, a second one does not.

  --host H              where to listen; default 127.0.0.1
  --port P              default 8321; 0 takes any that is free
  --policy FILE         what callers may do; without one, what the built-in policy gives
  --database URL        a PostgreSQL server for evidence, budgets and keys, instead of a file in this home
  --workspace-root DIR  the directory whose workspace/projects holds the projects' files, instead of this home
  --skills DIR          a directory of skills
  --config FILE         instead of $RINGFENCE_HOME/config.toml: sections [server] and [sandbox], whose keys can also be
                        set as RINGFENCE_SERVER_PORT, RINGFENCE_SANDBOX_MAX_CONCURRENT_EXECS and so on
  --aio                 serve clients of AIO sandboxes too, under /v1; see docs/aio.md

Exit codes: 0 it was told to end, 2 usage, 7 another service has this home, or the address is taken.
""",
    "start": """\
ringfence start [OPTIONS] -- COMMAND...

Start a shell command as a process in the service of this home ('ringfence serve'), and say what it is called. It goes
on by itself, in a box of its own, until it ends, reaches a limit, is killed, or the service ends.

  --terminal            give it a terminal, of the size of yours, instead of pipes
  --project ID          work on the files of this project; without one, nothing is left behind
  --timeout S           end it after so many seconds, whatever it does; by default as the policy says
  --idle-timeout S      end it after so many seconds without output and input
  --port N              a port of its own that the service may reach, if the policy opens it (open_ports); repeatable
  --env K=V             a variable for the program, which sees none of yours; repeatable
  --json                one JSON object, and nothing else
""",
    "ps": """\
ringfence ps [--json]

List the processes of the service of this home: those that run, and the last of those that are over.

  --json                one JSON object, and nothing else
""",
    "logs": """\
ringfence logs PROCESS [-f] [--json]

Show what a process said: the last MiB of each output, and how many bytes before that are no longer kept. On a
terminal, control characters in it are shown as \\x1b and not obeyed.

  -f, --follow          go on until the process ends
  --json                one JSON object, and nothing else
""",
    "send": """\
ringfence send PROCESS [TEXT] [-n] [--end] [--json]

Give TEXT and a line break to the input of a process; without TEXT, all of standard input as it is.

  -n                    no line break after TEXT
  --end                 close its input afterwards
  --json                one JSON object, and nothing else
""",
    "kill": """\
ringfence kill PROCESS [--signal NAME] [--json]

End a process and everything it started. One that is over stays as it is.

  --signal NAME         send it this signal instead: INT, TERM, HUP, QUIT, USR1, USR2, CONT, TSTP or WINCH
  --json                one JSON object, and nothing else
""",
    "errors": """\
ringfence errors list [--json]

List every code an error can carry and the reasons under it, with the HTTP status, the exit code of this command and
whether the same request may succeed later. Codes and reasons keep their meaning; new ones are only added.

  --json         one JSON object with the same, and nothing else
""",
    **OF_THE_MACHINE,
    **OF_THE_WEB,
    **OF_A_PROJECT,
}

PENDING_COMMANDS = {
    "approvals": "approvals",
}
