"""Calls whose arguments decide: what of each a guest may ask for, and which attack the rest would be."""

from __future__ import annotations

import errno
from collections.abc import Mapping

from ringfence.isolation.linux.seccomp.verdict import ALLOW, DONE, EPERM, KILL_PROCESS, Branch, refuse

# NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET. NEWTIME cannot be asked of clone: its bit is a signal's.
CLONE_NEW = 0x7E020000
# A child of the caller's parent: it would be init's, which must be able to tell the worker from everything else.
CLONE_PARENT = 0x8000

_AF_UNIX, _AF_INET, _AF_INET6 = 1, 2, 10
_SOCK_STREAM, _SOCK_DGRAM, _SOCK_SEQPACKET = 1, 2, 5
_SOCK_FLAGS = 0o2004000  # SOCK_CLOEXEC | SOCK_NONBLOCK
_IPPROTO_TCP, _IPPROTO_UDP = 6, 17

_CLONE = Branch(0, {(0,): ALLOW}, EPERM, mask=CLONE_NEW | CLONE_PARENT)

# A protocol is named by its type too: (AF_INET, SOCK_SEQPACKET, 0) is SCTP and (AF_INET, 6, 0) loads DCCP
# (CVE-2017-6074), so types are allow-listed before protocols. No RAW, no ICMP, no MPTCP, no UDP-Lite.
_SOCKET = Branch(
    0,
    {
        (_AF_UNIX,): Branch(
            1, {(_SOCK_STREAM, _SOCK_DGRAM, _SOCK_SEQPACKET): ALLOW}, EPERM, mask=0xFFFFFFFF ^ _SOCK_FLAGS
        ),
        (_AF_INET, _AF_INET6): Branch(
            1,
            {
                (_SOCK_STREAM,): Branch(2, {(0, _IPPROTO_TCP): ALLOW, (1,): EPERM}, refuse(errno.EPROTONOSUPPORT)),
                (_SOCK_DGRAM,): Branch(2, {(0, _IPPROTO_UDP): ALLOW, (1,): EPERM}, refuse(errno.EPROTONOSUPPORT)),
            },
            EPERM,
            mask=0xFFFFFFFF ^ _SOCK_FLAGS,
        ),
    },
    # vsock is not namespaced and reaches the hypervisor; netlink, packet, alg, tipc, xdp… are kernel surface.
    refuse(errno.EAFNOSUPPORT),
)
_SOCKETPAIR = Branch(0, {(_AF_UNIX,): ALLOW}, refuse(errno.EAFNOSUPPORT))

# Classic BPF programs (SO_ATTACH_FILTER, _BPF, _REUSEPORT_CBPF, _REUSEPORT_EBPF) get into the kernel without bpf();
# TCP_ULP puts kernel TLS and its parsers under a socket.
_SETSOCKOPT = Branch(
    1,
    {(1,): Branch(2, {(26, 50, 51, 52): EPERM}, ALLOW), (6,): Branch(2, {(31,): EPERM}, ALLOW)},
    ALLOW,
)

# TIOCSTI types into the terminal of whoever looks (CVE-2017-5226), TIOCLINUX pastes into a console
# (CVE-2023-28100), TIOCCONS steals the console, TIOCSETD loads line disciplines (n_gsm, n_hdlc). What other requests
# can do is bounded by the devices in the box's /dev, so the rest of ioctl stays open.
_IOCTL = Branch(1, {(0x5412, 0x541C, 0x541D, 0x5423): EPERM}, ALLOW)

# Plain Linux, and 0xffffffff which only asks. READ_IMPLIES_EXEC and ADDR_NO_RANDOMIZE undo hardening; UNAME26 is
# harmless and needed by nothing we run.
_PERSONALITY = Branch(0, {(0, 0xFFFFFFFF): ALLOW}, EPERM)

# An allow-list, as for calls, with the answer of a kernel that does not know the option. Left out on purpose:
# SET_MM (35: rewrites what /proc shows of the process), SET_SYSCALL_USER_DISPATCH (59), SCHED_CORE (62),
# SET_MEMORY_MERGE (67: merged pages tell one guest what another holds), TASK_PERF_EVENTS (31, 32), SET_TSC (26).
_PRCTL_OPTIONS = (
    *(1, 2),  # SET_PDEATHSIG, GET_PDEATHSIG
    *(3, 4),  # GET_DUMPABLE, SET_DUMPABLE
    *(7, 8),  # GET_KEEPCAPS, SET_KEEPCAPS
    *(15, 16),  # SET_NAME, GET_NAME
    *(21, 22),  # GET_SECCOMP, SET_SECCOMP
    *(23, 24),  # CAPBSET_READ, CAPBSET_DROP
    *(27, 28),  # GET_SECUREBITS, SET_SECUREBITS
    *(29, 30),  # SET_TIMERSLACK, GET_TIMERSLACK
    *(36, 37),  # SET_CHILD_SUBREAPER, GET_CHILD_SUBREAPER
    *(38, 39),  # SET_NO_NEW_PRIVS, GET_NO_NEW_PRIVS
    40,  # GET_TID_ADDRESS
    *(41, 42),  # SET_THP_DISABLE, GET_THP_DISABLE
    47,  # CAP_AMBIENT
    *(50, 51),  # SVE_SET_VL, SVE_GET_VL
    *(52, 53),  # GET_SPECULATION_CTRL, SET_SPECULATION_CTRL
    *(54, 55, 56, 60, 61),  # PAC_RESET_KEYS, SET and GET_TAGGED_ADDR_CTRL, PAC_SET and GET_ENABLED_KEYS
    *(63, 64),  # SME_SET_VL, SME_GET_VL
    *(65, 66),  # SET_MDWE, GET_MDWE
    *(74, 75, 76),  # GET, SET and LOCK_SHADOW_STACK_STATUS
    0x53564D41,  # SET_VMA: allocators name their memory
    0x59616D61,  # SET_PTRACER: crash handlers call it; ptrace itself is refused
)
_PRCTL = Branch(0, {_PRCTL_OPTIONS: ALLOW}, refuse(errno.EINVAL))

# A filter can only tighten, but SECCOMP_FILTER_FLAG_NEW_LISTENER makes the guest a supervisor that answers calls and
# plants descriptors in other processes: kernel surface that nothing inside needs.
_SECCOMP = Branch(1, {(0,): ALLOW}, EPERM, mask=1 << 3)

# Fifos, sockets and plain files. The kernel lets anyone make the device 0:0, which is an overlay whiteout.
_NODE_KINDS = (0, 0o010000, 0o100000, 0o140000)
_MKNOD = Branch(1, {_NODE_KINDS: ALLOW}, EPERM, mask=0o170000)
_MKNODAT = Branch(2, {_NODE_KINDS: ALLOW}, EPERM, mask=0o170000)

# Own limits only: with the same user id the guest could starve init through its limits and be taken for our failure.
# Not the limit on core dumps: where it is 1 the kernel starts no handler, where it is 0 it does (see `launcher`). Not
# even to read it: whether a call reads is in a pointer, of which a filter sees a half.
_LIMIT_ON_CORE = (4,)
_SETRLIMIT = Branch(0, {_LIMIT_ON_CORE: EPERM}, ALLOW)
_PRLIMIT = Branch(0, {(0,): Branch(1, {_LIMIT_ON_CORE: EPERM}, ALLOW)}, EPERM)

# Whom the guest may put last: itself, its threads and its children, named one by one. An init with the same user id,
# set to run when nobody else does, would take minutes to die of a time limit behind the guest's busy loops; a process
# group or a user may have it as a member.
_INIT = (1,)
_ANY_BUT_INIT = Branch(0, {_INIT: EPERM}, ALLOW)
_SETPRIORITY = Branch(0, {(0,): Branch(1, {_INIT: EPERM}, ALLOW)}, EPERM)
_IOPRIO_SET = Branch(0, {(1,): Branch(1, {_INIT: EPERM}, ALLOW)}, EPERM)

# An allow-list. Left out on purpose: F_NOTIFY (1026) is the older inotify and tells what the host opens in a shared
# directory; F_SETLEASE (1024) and F_SETDELEG (1040) make the host wait when it opens a file that is the caller's own.
_FCNTL_COMMANDS = (
    *(0, 1, 2, 3, 4),  # DUPFD, GETFD, SETFD, GETFL, SETFL
    *(5, 6, 7, 36, 37, 38),  # GETLK, SETLK, SETLKW, and the same for open file descriptions
    *(8, 9, 10, 11, 15, 16),  # SETOWN, GETOWN, SETSIG, GETSIG, SETOWN_EX, GETOWN_EX
    *(1025, 1027, 1028, 1030),  # GETLEASE, DUPFD_QUERY, CREATED_QUERY, DUPFD_CLOEXEC
    *(1031, 1032, 1033, 1034),  # SETPIPE_SZ, GETPIPE_SZ, ADD_SEALS, GET_SEALS
    *(1035, 1036, 1037, 1038),  # hints about the life of what is written
)
_FCNTL = Branch(1, {_FCNTL_COMMANDS: ALLOW, (1024, 1026, 1040): EPERM}, refuse(errno.EINVAL))

# MAP_SHARED with MAP_ANONYMOUS: pages of no file, which stay while anybody has them mapped, seen by nobody's counter.
SHARED_MEMORY_OF_NOBODY = Branch(3, {(0x21,): EPERM}, ALLOW, mask=0x21)

# SO_SNDBUF, SO_RCVBUF and the same by force, answered as done: the kernel takes the number for a wish too. What is in
# a Unix socket is on no counter, and where `net.core.wmem_max` was raised one descriptor could hold megabytes.
BUFFERS_AS_THEY_COME = Branch(1, {(1,): Branch(2, {(7, 8, 32, 33): DONE}, ALLOW)}, ALLOW)

GUEST_RULES: Mapping[str, Branch] = {
    "clone": _CLONE,
    "fcntl": _FCNTL,
    "ioctl": _IOCTL,
    "ioprio_set": _IOPRIO_SET,
    "mknod": _MKNOD,
    "mknodat": _MKNODAT,
    "personality": _PERSONALITY,
    "prctl": _PRCTL,
    "prlimit64": _PRLIMIT,
    "sched_setaffinity": _ANY_BUT_INIT,
    "sched_setattr": _ANY_BUT_INIT,
    "sched_setparam": _ANY_BUT_INIT,
    "sched_setscheduler": _ANY_BUT_INIT,
    "seccomp": _SECCOMP,
    "setpriority": _SETPRIORITY,
    "setrlimit": _SETRLIMIT,
    "setsockopt": _SETSOCKOPT,
    "socket": _SOCKET,
    "socketpair": _SOCKETPAIR,
}

# Init never loads code after it is sealed: memory that can be executed means that someone else is driving it.
_NO_NEW_CODE = Branch(2, {(0,): ALLOW}, KILL_PROCESS, mask=4)

INIT_RULES: Mapping[str, Branch] = {"mmap": _NO_NEW_CODE, "mprotect": _NO_NEW_CODE}
