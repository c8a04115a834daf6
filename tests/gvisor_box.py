"""What a gVisor box says of itself when its own `runsc` is asked, from inside the namespaces it lives in."""

from __future__ import annotations

import json
import subprocess

from ringfence.ports import Worker


def runsc(worker: Worker, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the box's `runsc` on its state, which nobody outside can see."""
    enter = ["nsenter", "--target", str(worker.init_pid), "--all", "/runsc", "--root", "/box/state"]
    return subprocess.run([*enter, *words, worker.sandbox_id], capture_output=True, text=True, timeout=20, check=False)


def guests(worker: Worker) -> set[int]:
    """Return the processes of a box, as its kernel numbers them, without the init of its worker."""
    done = runsc(worker, "ps", "--format", "json")
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout)) - {1}
