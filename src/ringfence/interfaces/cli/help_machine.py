"""What the commands about the machine itself say of themselves: what it has, its paths, whether its boxes hold."""

from __future__ import annotations

OF_THE_MACHINE = {
    "doctor": """\
ringfence doctor [--json]

Check this machine: really build a box in a throwaway child, and look at the evidence of $RINGFENCE_HOME without
touching it; then say for everything that is missing what it means and the command that fixes it. Exit code 0 when code
can run here, isolated and recorded, 7 when not.
""",
    "selftest": """\
ringfence selftest escape [--isolation I] [--only PROBE]... [OPTIONS]

Run hostile programs in real boxes of this machine, one guarantee of SECURITY.md each: to reach files, processes,
sockets and secrets of the host, to climb, to take more than was given, to stay. Exit code 0 when every one was held,
1 when one got through or could not be tried, 7 when there is no such box here.

  --isolation I    auto (default), native, bwrap, docker, gvisor or aio
  --only PROBE     only this one; repeatable
  --home DIR       where state and evidence are kept, instead of $RINGFENCE_HOME
  --json           one JSON object with the same, and nothing else
""",
    "paths": """\
ringfence paths [--env auto|windows|wsl] [--project ID] [OPTIONS]

Print the root of the workspace as this system opens it (host_path_native) and as 'docker run -v' takes it
(docker_mount_path); with --project also the three directories of a project that are mounted. The roots are
sandbox.workspace_root_win and sandbox.workspace_root_wsl of the configuration; of one that is missing, 'wslpath' is
asked. On Windows no path is ever one of WSL (/mnt/d/...), and on WSL none is one of Windows (D:\\...).

  --env E          which system's paths: of this one (auto, the default), windows or wsl
  --root-win PATH  instead of sandbox.workspace_root_win, as in D:\\agents
  --root-wsl PATH  instead of sandbox.workspace_root_wsl, as in /mnt/d/agents
  --project ID     also the directories of this project
  --home DIR       whose configuration is read, instead of $RINGFENCE_HOME
  --json           one JSON object with the same, and nothing else
""",
}
