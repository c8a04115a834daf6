"""Every system call of Linux and what a guest gets when it makes it, each group with its reason.

The list is closed: a call that stands in no group does not exist for the guest. A test fails when a number has a name
but no group, so adding a name forces a decision.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ringfence.isolation.linux.seccomp.arguments import (
    BUFFERS_AS_THEY_COME,
    GUEST_RULES,
    INIT_RULES,
    SHARED_MEMORY_OF_NOBODY,
)
from ringfence.isolation.linux.seccomp.numbers import Machine
from ringfence.isolation.linux.seccomp.verdict import ALLOW, ENOSYS, EPERM, Decision

# What CPython, bash, coreutils, git, pip, Node, compilers, numpy, Rust and Go programs call.
ALLOWED: Mapping[str, str] = {
    "open files and what is in them": """
        access chdir close close_range copy_file_range creat dup dup2 dup3 faccessat faccessat2 fadvise64 fallocate
        fchdir fcntl fdatasync flock fstat fstatfs fsync ftruncate getcwd getdents getdents64 lseek lstat
        newfstatat open openat openat2 pread64 preadv preadv2 pwrite64 pwritev pwritev2 read readahead readlink
        readlinkat readv sendfile splice stat statfs statx sync_file_range tee truncate write writev
    """,
    "change the tree; which tree is the mount namespace's business": """
        chmod chown fchmod fchmodat fchmodat2 fchown fchownat futimesat lchown link linkat mkdir mkdirat mknod mknodat
        rename renameat renameat2 rmdir symlink symlinkat umask unlink unlinkat utime utimensat utimes
    """,
    "extended attributes: cp -a, tar, pip read and copy them": """
        fgetxattr flistxattr fremovexattr fsetxattr getxattr getxattrat lgetxattr listxattr listxattrat llistxattr
        lremovexattr lsetxattr removexattr removexattrat setxattr setxattrat
    """,
    "wait for descriptors: asyncio, libuv": """
        epoll_create epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 epoll_wait eventfd eventfd2 ioctl pipe
        pipe2 poll ppoll pselect6 select signalfd signalfd4 timerfd_create timerfd_gettime timerfd_settime
    """,
    "sockets: where they lead is the network namespace's business, which families exist is in `arguments`": """
        accept accept4 bind connect getpeername getsockname getsockopt listen recvfrom recvmmsg recvmsg sendmmsg
        sendmsg sendto setsockopt shutdown socket socketpair
    """,
    "memory of the caller: allocators, V8's code pages and protection keys, shadow stacks, sealing": """
        brk madvise map_shadow_stack membarrier memfd_create mincore mlock mlock2 mlockall mmap mprotect mremap mseal
        msync munlock munlockall munmap pkey_alloc pkey_free pkey_mprotect
    """,
    "memory and queues shared within the box: its IPC namespace dies with it": """
        mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedsend mq_unlink msgctl msgget msgrcv msgsnd semctl semget
        semop semtimedop shmat shmctl shmdt shmget
    """,
    "start and end processes and threads": """
        arch_prctl clone execve execveat exit exit_group fork futex getpgid getpgrp getpid getppid getsid gettid
        pidfd_open pidfd_send_signal prctl rseq set_robust_list set_tid_address setpgid setsid vfork wait4 waitid
    """,
    "signals": """
        kill pause restart_syscall rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend
        rt_sigtimedwait rt_tgsigqueueinfo sigaltstack tgkill tkill
    """,
    "ask about and choose among one's own identities, of which there is one": """
        capget getegid geteuid getgid getgroups getresgid getresuid getuid setfsgid setfsuid setgid setregid setresgid
        setresuid setreuid setuid
    """,
    "limits and scheduling of the caller and its children, downwards, since it has no capability; not of its init": """
        getcpu getpriority getrlimit getrusage ioprio_get ioprio_set prlimit64 sched_get_priority_max
        sched_get_priority_min sched_getaffinity sched_getattr sched_getparam sched_getscheduler sched_rr_get_interval
        sched_setaffinity sched_setattr sched_setparam sched_setscheduler sched_yield setpriority setrlimit
    """,
    "time": """
        alarm clock_getres clock_gettime clock_nanosleep getitimer gettimeofday nanosleep setitimer time timer_create
        timer_delete timer_getoverrun timer_gettime timer_settime times
    """,
    "ask about the machine": "getrandom personality sysinfo uname",
    "lock oneself in further: filters and rulesets only ever tighten": """
        landlock_add_rule landlock_create_ruleset landlock_restrict_self seccomp
    """,
}

# What our own init calls between the base filter and the seal. A guest gets EPERM for each.
SETUP: Mapping[str, str] = {
    "build the view of the box": """
        fsconfig fsmount fsopen mount mount_setattr move_mount open_tree pivot_root setns sethostname umount2 unshare
    """,
    "give up identities and capabilities": "capset setgroups",
}

# Answered as by a kernel that lacks them, so that callers take their fallback.
ABSENT: Mapping[str, str] = {
    "its flags are behind a pointer where no filter can see them; libc falls back to clone": "clone3",
    "does I/O and opens sockets without the calls that are filtered": """
        io_uring_enter io_uring_register io_uring_setup
    """,
    "keyrings are not namespaced: one run could leave a note for the next": "add_key keyctl request_key",
    "a watch on a shared read-only tree tells what the host and other runs open there; `tail -f` polls instead": """
        inotify_add_watch inotify_init inotify_init1 inotify_rm_watch
    """,
    "aio-max-nr is one counter for the whole host": """
        io_cancel io_destroy io_getevents io_pgetevents io_setup io_submit
    """,
    "young calls whose users all have a fallback": """
        file_getattr file_setattr futex_requeue futex_wait futex_waitv futex_wake rseq_slice_yield
    """,
}

REFUSED: Mapping[str, str] = {
    "change the view of the file system (CVE-2021-41133) or tell about mounts": """
        chroot fspick listmount open_tree_attr statmount
    """,
    "tamper with or look into other processes": """
        get_robust_list kcmp pidfd_getfd process_madvise process_mrelease process_vm_readv process_vm_writev ptrace
    """,
    "programs and probes in the kernel; the means to win its races": """
        bpf perf_event_open uprobe uretprobe userfaultfd
    """,
    "open files past the path that leads to them": "name_to_handle_at open_by_handle_at",
    "watch the whole file system": "fanotify_init fanotify_mark",
    "page cache of files that boxes share: cachestat tells one what another has read": "cachestat",
    "flush or fill the host's disks": "quotactl quotactl_fd swapoff swapon sync syncfs",
    "load code into the kernel or replace it": """
        create_module delete_module finit_module get_kernel_syms init_module kexec_file_load kexec_load query_module
        uselib
    """,
    "the host's clock, log, name, accounting, power and ports": """
        acct adjtimex clock_adjtime clock_settime ioperm iopl lookup_dcookie reboot setdomainname settimeofday syslog
        vhangup
    """,
    "placement of memory on the host's nodes; numpy and OpenBLAS do without": """
        get_mempolicy mbind migrate_pages move_pages set_mempolicy set_mempolicy_home_node
    """,
    "other namespaces and security modules": "listns lsm_get_self_attr lsm_list_modules lsm_set_self_attr",
    "memory that the host cannot account for as usual, or with a record of holes and no user here": """
        memfd_secret modify_ldt remap_file_pages vmsplice
    """,
    "gone from Linux, or never there": """
        _sysctl afs_syscall epoll_ctl_old epoll_wait_old get_thread_area getpmsg nfsservctl putpmsg security
        set_thread_area sysfs tuxcall ustat vserver
    """,
}

# Init is our code and after the seal only waits, reads, writes and reports. Anything else is somebody else's doing.
INIT_ALLOWED: Mapping[str, str] = {
    "wait for children, pass on their end": "kill pidfd_send_signal wait4 waitid",
    "talk on the sockets it holds": """
        close dup epoll_create1 epoll_ctl epoll_pwait epoll_wait fcntl fstat poll ppoll pselect6 read readv recvfrom
        recvmsg select sendmsg sendto shutdown write writev
    """,
    "what the interpreter does by itself": """
        brk clock_gettime clock_nanosleep futex getpid getppid getrandom gettid gettimeofday madvise mmap mprotect
        mremap munmap nanosleep restart_syscall rt_sigaction rt_sigpending rt_sigprocmask rt_sigreturn rt_sigsuspend
        rt_sigtimedwait sched_yield sigaltstack
    """,
    "end": "exit exit_group",
}


def guest_policy(machine: Machine) -> dict[int, Decision]:
    """Return the decision on every number that has a name; the others are `ENOSYS`."""
    return _decide(machine, {ALLOW: ALLOWED, EPERM: {**SETUP, **REFUSED}, ENOSYS: ABSENT}) | _ruled(
        machine, GUEST_RULES
    )


def base_policy(machine: Machine) -> dict[int, Decision]:
    """Return the guest's policy widened by what init needs to finish the box."""
    return guest_policy(machine) | _decide(machine, {ALLOW: SETUP})


# What a guest may not have where no cgroup counts its memory.
UNCOUNTED: Mapping[str, str] = {
    "memory that stays when the process that filled it is gone: the sampler would never see it": """
        memfd_create memfd_secret msgget semget shmget
    """,
}


def seal_policy(machine: Machine) -> dict[int, Decision]:
    """Return what takes init's calls away again; every number that is missing is `ALLOW`."""
    return _decide(machine, {EPERM: SETUP})


def frugal_policy(machine: Machine) -> dict[int, Decision]:
    """Return the seal where no cgroup counts memory: also without shared memory that outlives who filled it.

    Buffers of sockets have the size they come with.
    """
    rules = {"mmap": SHARED_MEMORY_OF_NOBODY, "setsockopt": BUFFERS_AS_THEY_COME}
    return seal_policy(machine) | _decide(machine, {EPERM: UNCOUNTED}) | _ruled(machine, rules)


def init_policy(machine: Machine) -> dict[int, Decision]:
    """Return what the sealed pid 1 may still do; every number that is missing is `KILL_PROCESS`."""
    return _decide(machine, {ALLOW: INIT_ALLOWED}) | _ruled(machine, INIT_RULES)


def names_in(groups: Mapping[str, str]) -> Iterable[str]:
    """Yield the calls of all `groups`."""
    for names in groups.values():
        yield from names.split()


def _decide(machine: Machine, answers: Mapping[int, Mapping[str, str]]) -> dict[int, Decision]:
    numbers = machine.numbers
    return {
        numbers[name]: verdict for verdict, groups in answers.items() for name in names_in(groups) if name in numbers
    }


def _ruled(machine: Machine, rules: Mapping[str, Decision]) -> dict[int, Decision]:
    return {machine.numbers[name]: rule for name, rule in rules.items() if name in machine.numbers}
