"""The exact commands and files that let this machine isolate, written so that a person can paste them."""

from __future__ import annotations


def persistent_sysctl(name: str, value: str) -> str:
    """Return the command that sets a sysctl now and after every boot."""
    return f"echo '{name}={value}' | sudo tee -a /etc/sysctl.d/60-ringfence.conf && sudo sysctl -w {name}={value}"


def apparmor_profile(interpreter: str) -> str:
    """Return the command that lets `interpreter`, and nothing else, make user namespaces on Ubuntu >= 23.10."""
    # Attached by path and unconfined otherwise: the profile grants the one right and takes none away.
    profile = f"""\
abi <abi/4.0>,
include <tunables/global>

profile ringfence "{interpreter}" flags=(unconfined) {{
  userns,
  include if exists <local/ringfence>
}}"""
    return (
        f"sudo tee /etc/apparmor.d/ringfence >/dev/null <<'EOF'\n{profile}\nEOF\n"
        "sudo apparmor_parser -r /etc/apparmor.d/ringfence"
    )


DELEGATE_ONCE = "systemd-run --user --scope -p Delegate=yes ringfence doctor"

DELEGATE_USER = """\
sudo mkdir -p /etc/systemd/system/user@.service.d
printf '[Service]\\nDelegate=cpu cpuset io memory pids\\n' | sudo tee /etc/systemd/system/user@.service.d/delegate.conf
sudo systemctl daemon-reload && sudo loginctl enable-linger "$USER"    # then log in again, and start programs with:
systemd-run --user --scope -p Delegate=yes YOUR-PROGRAM"""

DELEGATE_SERVICE = (
    "add to the service: [Service] Delegate=yes   (systemctl edit YOUR-SERVICE; systemctl restart YOUR-SERVICE)"
)

CGROUP_BY_HAND = (
    "echo '+cpu +memory +pids' | sudo tee /sys/fs/cgroup/cgroup.subtree_control && "
    'sudo mkdir -p /sys/fs/cgroup/ringfence && sudo chown -R "$(id -u)" /sys/fs/cgroup/ringfence '
    "&& echo $$ | sudo tee /sys/fs/cgroup/ringfence/cgroup.procs"
)

CGROUP_V1_BY_HAND = (
    "for each in cpu cpuacct memory pids; do own=/sys/fs/cgroup/$each/ringfence && sudo mkdir -p $own && "
    'sudo chown "$(id -u)" $own $own/cgroup.procs && echo $$ | sudo tee $own/cgroup.procs; done'
)

CGROUP_IN_CONTAINER = {
    "docker": (
        "docker mounts /sys/fs/cgroup read-only: run Ringfence on the host, or in "
        "podman run --cgroupns=private --security-opt unmask=/sys/fs/cgroup IMAGE"
    ),
    "podman": "podman run --cgroupns=private --security-opt unmask=/sys/fs/cgroup IMAGE",
    "kubernetes": "on the node: cgroup_writable = true in the runtime's section of containerd's config.toml",
    "lxc": "lxc config set CONTAINER security.nesting true && lxc restart CONTAINER",
}


def landlock_boot(active_lsm: str) -> str:
    """Return the command that adds Landlock in front of the security modules that are active now."""
    modules = ",".join(["landlock", *(name for name in active_lsm.split(",") if name and name != "landlock")])
    return (
        f"sudo sed -i 's/^GRUB_CMDLINE_LINUX=\"/&lsm={modules} /' /etc/default/grub && sudo update-grub && sudo reboot"
    )


_CONTAINER_FLAGS = {
    "docker": (
        "docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined "
        "--security-opt systempaths=unconfined IMAGE"
    ),
    "podman": (
        "podman run --security-opt seccomp=unconfined --security-opt label=disable --security-opt unmask=ALL IMAGE"
    ),
    "kubernetes": (
        "in the pod: spec.hostUsers: false; in the container's securityContext: procMount: Unmasked, "
        "seccompProfile: {type: Unconfined}, appArmorProfile: {type: Unconfined}"
    ),
    "lxc": "lxc config set CONTAINER security.nesting true && lxc restart CONTAINER",
    "wsl1": "from Windows: wsl --set-version DISTRIBUTION 2",
    "gvisor": "run this container with the default runtime instead of runsc; gVisor does not give a box inside a box",
}


def container_flags(inside: str) -> str | None:
    """Return how the container around this process has to be started for a box to fit into it."""
    return _CONTAINER_FLAGS.get(inside)


def install(package: str, os_id: str) -> str:
    """Return the command that installs a distribution package."""
    match os_id:
        case "fedora" | "rhel" | "centos" | "rocky" | "almalinux":
            return f"sudo dnf install -y {package}"
        case "arch" | "manjaro":
            return f"sudo pacman -S {package}"
        case "alpine":
            return f"sudo apk add {package}"
        case "opensuse-leap" | "opensuse-tumbleweed" | "sles":
            return f"sudo zypper install -y {package}"
        case _:
            return f"sudo apt-get install -y {package}"
