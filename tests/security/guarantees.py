"""The numbered guarantees of SECURITY.md, each to be cited by the tests that prove it."""

from __future__ import annotations

GUARANTEES = {
    1: "No file of the host outside the trees shown in the box can be read, by any path, descriptor or link.",
    2: "Nothing outside the run's own directories can be changed.",
    3: "No packet leaves the box, and no socket of the host or of a foreign family can be reached.",
    4: "No process outside the box can be seen, signalled, traced or read, nor can the box's own init.",
    5: "A guest has no capability, cannot gain one, and never runs as the host's uid 0.",
    6: "Namespaces, mounts, keyrings, io_uring, bpf, ptrace and other doors of the kernel are shut.",
    7: "Time, memory, processes, disk, inodes, descriptors, file size and output are bounded, and the bound is told.",
    8: "When the result is there, no process of the guest lives; its cgroup, mounts and files are gone right after.",
    9: "Nothing that one run does or leaves can be observed by the next or by one beside it.",
    10: "Environment, memory and descriptors of the host application are absent from the box.",
    11: "Collecting a run's files follows no link, never blocks and keeps to its caps.",
    12: "A worker that the host did not see sealed runs nothing.",
    13: "A guest cannot forge its exit status, its result or a message of the protocol.",
    14: "A bad argument is refused with a stable code before anything runs.",
    15: "A worker that dies or misbehaves becomes neither a wrong answer nor a crash of the host.",
    16: "A broker reads and changes nothing outside its workspace, follows no link unasked, and keeps to its caps.",
    17: "A grant that was changed, cut, replayed, revoked or made for another call is refused, and none gives more.",
    18: "Nothing runs before its beginning is durable; killed at any moment, every run that began has exactly one end.",
    19: "A record that was changed, removed, added or moved is found, as far as somebody outside vouches for the log.",
    20: "No record, view or alert holds what a run was given or gave back, and no guest reaches the journal.",
    21: "Nothing of one tenant can be seen, reached, guessed or used up by another, through any door.",
    22: "Without a valid key no door answers, a revoked one is void at once, and no page in a browser opens one.",
    23: "What a service has acknowledged is run once, or said to be lost, however often it is killed or asked again.",
    24: "A process or session is shut in as a run is: its terminal, ports and words lead nowhere but to its caller.",
    25: "A snapshot is whole or absent, a damaged one is refused, and nothing changes what a policy says nobody may.",
    26: "A skill does and keeps no more than manifest, policy and grant allow, and no schema makes us fetch or stall.",
    27: "Whoever answers in the service's place gets no key, no terminal, no more than an answer's time and memory.",
}
