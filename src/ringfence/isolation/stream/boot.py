"""What an interpreter in somebody's image is told so that it becomes the init of a box: nothing is installed there."""

from __future__ import annotations

import json
import zlib
from functools import cache
from importlib.util import find_spec

_PACKAGES = ("ringfence", "ringfence.isolation", "ringfence.isolation.linux", "ringfence.isolation.stream")
_MODULES = (
    "ringfence.isolation.protocol",
    "ringfence.isolation.worker",
    "ringfence.isolation.linux.kernel",
    "ringfence.isolation.linux.steps",
    "ringfence.isolation.linux.landlock",
    "ringfence.isolation.linux.anchor",
    "ringfence.isolation.linux.interpreter",
    "ringfence.isolation.stream.wire",
    "ringfence.isolation.stream.channels",
    "ringfence.isolation.stream.inside_meter",
    "ringfence.isolation.stream.inside_files",
    "ringfence.isolation.stream.inside_seal",
    "ringfence.isolation.stream.inside_relay",
    "ringfence.isolation.stream.inside_ports",
    "ringfence.isolation.stream.inside",
)

BOOT = """
import json, os, sys, types, zlib
def take(size):
    data = b''
    while len(data) < size:
        piece = os.read(0, size - len(data))
        if not piece: os._exit(0)
        data += piece
    return data
for name, is_package, source in json.loads(zlib.decompress(take(int.from_bytes(take(4), 'big')))):
    module = sys.modules[name] = types.ModuleType(name)
    if is_package: module.__path__ = []
    exec(compile(source, '<' + name + '>', 'exec'), module.__dict__)
    parent, _, last = name.rpartition('.')
    if parent: setattr(sys.modules[parent], last, module)
module.main()
"""
"""Run as `python3 -I -S -B -X utf8 -c BOOT`, it takes the bundle from its standard input and runs it."""

COMMAND = ("python3", "-I", "-S", "-B", "-X", "utf8", "-c", BOOT)
"""What the first process of a container has to be; it must be pid 1, without any init of the engine's before it."""


@cache
def bundle() -> bytes:
    """Return everything that runs inside, behind its length, as `BOOT` takes it."""
    parts = [(name, True, "") for name in _PACKAGES] + [(name, False, _source(name)) for name in _MODULES]
    packed = zlib.compress(json.dumps(parts).encode(), 9)
    return len(packed).to_bytes(4, "big") + packed


def _source(name: str) -> str:
    spec = find_spec(name)
    source = None if spec is None or spec.loader is None else spec.loader.get_source(name)  # type: ignore[attr-defined]
    if source is None:
        raise RuntimeError(f"the source of {name} is not installed, and containers are sent it")
    text: str = source
    return text
