"""A warm run under gVisor, to a cold `runsc run` of the same code from the same image."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from ringfence.bench import bare, promise
from ringfence.bench.pairs import interleave
from ringfence.bench.promise import judged
from ringfence.bench.subject import Bench, Measured, ours
from ringfence.errors import Unavailable
from ringfence.images.archive import default_cache
from ringfence.isolation.gvisor import runsc
from ringfence.isolation.gvisor.rootfs import Rootfs, unpacked

_PRINT = ("print(1)", "1\n")
_MS = 1000


async def gvisor(bench: Bench) -> Measured:
    """A parked box under gVisor answers `print(1)`; cold, `runsc run` starts the image's Python for it."""
    refused = "only root may run `runsc run` as it is" if os.geteuid() else None
    if refused is None:
        try:
            program, image = runsc.find(), unpacked(default_cache())
        except Unavailable as error:
            refused = str(error)
    if refused is not None:
        return Measured((judged(promise.GVISOR_P50, None, refused),))
    settings = bench.settings
    with tempfile.TemporaryDirectory() as place:
        command = cold_command(program, image, Path(place))
        async with bench.open_manager(isolation="gvisor", pool_size=4) as manager:
            theirs, own = await interleave(
                "gvisor",
                bare.timed(command, _PRINT[1].encode()),
                ours(manager, *_PRINT),
                pairs=settings.cold_pairs,
                # a box takes as long to start as `runsc run`, and the pool has to have one again
                gap_seconds=max(1.0, settings.gap_seconds),
                warm_up=2,
            )
    detail = f"{own.p50 * _MS:.1f} ms to {theirs.p50 * _MS:.0f} ms, n={len(own.seconds)}"
    return Measured((judged(promise.GVISOR_P50, own.p50 / theirs.p50, detail),), (theirs, own))


def cold_command(program: runsc.Runsc, image: Rootfs, place: Path) -> list[str]:
    """Write the plainest bundle that prints, and return the command that runs it."""
    config = {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": 1000, "gid": 1000},
            "args": ["python3", "-I", "-c", _PRINT[0]],
            "env": ["PATH=/usr/local/bin:/usr/bin:/bin"],
            "cwd": "/",
        },
        "root": {"path": str(image.path), "readonly": True},
        "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
    }
    (place / "config.json").write_text(json.dumps(config))
    flags = [f"--platform={program.platform}", "--network=none", "--ignore-cgroups"]
    return [program.path, "--root", str(place / "state"), *flags, "run", "--bundle", str(place), "ringfence-bench"]
