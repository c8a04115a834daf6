"""The command line of bubblewrap: pure text, in which order decides what covers what."""

from __future__ import annotations

from ringfence.isolation.bwrap.argv import PRIVATE, SOURCE, TERMINALS, bwrap_argv, workspace_links
from ringfence.isolation.linux.outfit import BoxView
from ringfence.isolation.linux.view import DEVICES, DIRECTORIES, GENERATED, LINKS

VIEW = BoxView(
    trees=(("/usr", "/usr"), ("/srv/python", "/opt/python"), ("/etc/ld.so.cache", "/etc/ld.so.cache")),
    links=(("usr/lib", "/lib"), ("/opt/python/bin/python3", "/opt/ringfence/bin/python")),
    hidden=("/opt/python/site-packages",),
)


def argv() -> list[str]:
    return bwrap_argv(
        VIEW,
        devices=DEVICES,
        bwrap="/usr/bin/bwrap",
        package="/srv/ringfence",
        hostname="rf-1",
        disk_bytes=4096,
        info_fd=9,
        generated={"etc/passwd": 11},
        command=["/opt/python/bin/python3", "-c", "pass"],
    )


def pairs(option: str) -> list[tuple[str, str]]:
    words = argv()
    return [(words[at + 1], words[at + 2]) for at, word in enumerate(words) if word == option]


def test_every_namespace_is_new_and_nothing_is_kept() -> None:
    words = argv()
    kinds = {word.removeprefix("--unshare-") for word in words if word.startswith("--unshare-")}
    assert kinds == {"user", "pid", "net", "ipc", "uts", "cgroup"}  # the mount namespace is always new
    assert not any("try" in word for word in words)
    assert words[words.index("--cap-drop") + 1] == "ALL"
    assert {"--clearenv", "--as-pid-1"} <= set(words)
    # it would leave a child behind when it is killed early; the init sees to it that it ends with the host
    assert "--die-with-parent" not in words


def test_nothing_of_the_host_is_bound_to_be_written() -> None:
    assert "--bind" not in argv()
    assert {target for _, target in pairs("--dev-bind")} == {f"/dev/{name}" for name in DEVICES}
    bound = pairs("--ro-bind")
    assert bound == [*VIEW.trees, ("/srv/ringfence", f"{SOURCE}/ringfence")]


def test_hidden_directories_are_covered_after_their_tree_is_bound() -> None:
    words = argv()
    covered = words.index("/opt/python/site-packages")
    assert words[covered - 1] == "--tmpfs"
    assert words[covered + 1 : covered + 3] == ["--remount-ro", "/opt/python/site-packages"]
    assert covered > words.index("/srv/python")


def test_the_size_is_that_of_the_workspace_and_the_root_is_sealed_last() -> None:
    words = argv()
    size = words.index("--size")
    assert words[size : size + 4] == ["--size", "4096", "--tmpfs", "/workspace"]
    assert words.index("/", words.index("--remount-ro", size)) > size
    assert words[words.index("--") :] == ["--", "/opt/python/bin/python3", "-c", "pass"]


def test_everything_the_guest_can_write_lies_in_the_one_sized_file_system() -> None:
    links = {where: says for says, where in pairs("--symlink")}
    assert links["/tmp"] == f"{PRIVATE}/tmp"
    assert links["/dev/shm"] == f"{PRIVATE}/shm"
    assert links["/home/sandbox"] == f"{PRIVATE}/home"
    assert PRIVATE.startswith("/workspace/")


def test_links_in_the_workspace_are_left_to_whoever_starts_in_it() -> None:
    made_by_bwrap = {where for _, where in pairs("--symlink")}
    inside = {f"/{where}" for _, where in workspace_links()}
    assert inside == {"/workspace/output", "/workspace/code", "/workspace/data"}
    assert not inside & made_by_bwrap
    assert made_by_bwrap >= {f"/{where}" for _, where in LINKS} - inside


def test_a_directory_is_listed_after_the_one_it_lies_in() -> None:
    for at, path in enumerate(DIRECTORIES):
        parent = path.rpartition("/")[0]
        assert not parent or parent in DIRECTORIES[:at]
    assert all(path.rpartition("/")[0] in DIRECTORIES for path in GENERATED)


def test_a_box_with_terminals_has_an_instance_of_its_own_and_no_more_devices_than_before() -> None:
    words = bwrap_argv(
        VIEW,
        devices=tuple(name for name in DEVICES if name != "zero"),
        bwrap="/usr/bin/bwrap",
        package="/srv/ringfence",
        hostname="rf-1",
        disk_bytes=4096,
        info_fd=9,
        generated={},
        command=["/opt/python/bin/python3"],
        nothing=12,
    )
    made = words.index("--dev")
    assert words[made + 1] == TERMINALS
    assert words[made - 6 : made] == [
        *("--symlink", f"{TERMINALS}/pts", "/dev/pts"),
        *("--symlink", TERMINALS, "/dev/terminal"),
    ]
    # the device whose shared mappings nobody counts comes with bubblewrap's set, and is covered before it is sealed
    assert words[made + 2 : made + 9] == [
        *("--perms", "0000", "--ro-bind-data", "12", f"{TERMINALS}/zero"),
        *("--remount-ro", TERMINALS),
    ]
    assert "--dev" not in argv()
