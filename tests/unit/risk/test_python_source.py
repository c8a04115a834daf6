from __future__ import annotations

import ast
import io
import subprocess
import sys
import types
import warnings
from collections.abc import Iterator
from importlib import import_module

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfence.authority.levels import RiskLevel
from ringfence.risk.assessment import MAX_SIGNS, Refusal
from ringfence.risk.python_names import PURE_MODULES, PURE_PARTS
from ringfence.risk.python_source import assess_python

SAFE, LOW, MEDIUM, HIGH, CRITICAL = RiskLevel

HARMLESS = [
    "print(1)",
    "",
    "import math\nprint(math.pi)",
    "from collections import Counter\nprint(Counter('abc'))",
    "import json\nprint(json.dumps({'a': [1, 2]}))",
    "class A:\n    def __init__(self): self.x = 1\n    def __len__(self): return 1\nprint(len(A()), A.__name__)",
    "def f(n):\n    return 1 if n < 2 else n * f(n - 1)\nprint(f(10))",
    "print(getattr('x', 'upper')())",
    "print('\\d')",
    "x = {'os': 1}\nprint(x['os'])",
    "result = [n for n in range(10) if n % 2]\nprint(f'{result[0]:>4}')",
    "import re\nprint(re.compile('a').match('a'))",
]

# What a program would do, how it hides it, and what must be seen of it.
HOSTILE = [
    ("import os", MEDIUM, "import os"),
    ("import pandas as pd; print(pd.__version__)", LOW, "import pandas"),
    ("import something_unheard_of", MEDIUM, "import something_unheard_of"),
    ("from . import sibling", MEDIUM, "relative import"),
    ("open('a.txt').read()", LOW, "open"),
    ("open('a.txt', 'w')", MEDIUM, "open for writing"),
    ("open('a.txt', mode='r+')", MEDIUM, "open for writing"),
    ("open('a.txt', m)", MEDIUM, "open for writing"),
    ("open(*names)", MEDIUM, "open for writing"),
    ("f = open\nf('a', 'w')", MEDIUM, "open for writing"),
    ("import subprocess", HIGH, "import subprocess"),
    ("import socket", HIGH, "import socket"),
    ("import os\nos.system('id')", HIGH, "os.system"),
    ("import os as o\no.system('id')", HIGH, "os.system"),
    ("from os import system\nsystem('id')", HIGH, "os.system"),
    ("from os import system as s\ns('id')", HIGH, "os.system"),
    ("import os\nf = os.system\nf('id')", HIGH, "os.system"),
    ("import os\nmap(os.system, ['id'])", HIGH, "os.system"),
    ("import os\n(lambda s: s('id'))(os.system)", HIGH, "os.system"),
    ("import os\nx, y = os, 1\nx.system('id')", HIGH, "os.system"),
    ("import os\nif (o := os): o.system('id')", HIGH, "os.system"),
    ("import os\ngetattr(os, 'system')('id')", HIGH, "os.system"),
    ("import os\ngetattr(os, 'sys' + 'tem')('id')", HIGH, "os.system"),
    ("import os\ngetattr(os, 'metsys'[::-1])('id')", HIGH, "os.system"),
    ("import os\ngetattr(os, ''.join(['sys', 'tem']))('id')", HIGH, "os.system"),
    ("import os\ngetattr(os, f'{\"sys\"}tem')('id')", HIGH, "os.system"),
    ("import os\ngetattr(os, 'sys%s' % 'tem')('id')", HIGH, "os.system"),
    ("import os\ngetattr(os, 'sXstem'.replace('X', 'y'))('id')", HIGH, "os.system"),
    ("import os\ngetattr(os, chr(115) + 'ystem')('id')", HIGH, "os.system"),
    ("import os\ngetattr(os, b'system'.decode())('id')", HIGH, "os.system"),
    ("import os\ngetattr(os, name)('id')", HIGH, "computed attribute of os"),
    ("import os\nos.__dict__['system']('id')", HIGH, "os.system"),
    ("import os\nvars(os)['system']('id')", HIGH, "os.system"),
    ("__import__('os').system('id')", HIGH, "os.system"),
    ("__import__('o' + 's').system('id')", HIGH, "os.system"),
    ("__import__(name)", HIGH, "computed import"),
    ("i = __import__\ni('os').system('id')", HIGH, "os.system"),
    ("import importlib\nimportlib.import_module('subprocess')", HIGH, "import subprocess"),
    ("from importlib import import_module as m\nm(x)", HIGH, "computed import"),
    ("import sys\nsys.modules['os'].system('id')", HIGH, "os.system"),
    ("import random\nrandom._os.system('id')", HIGH, "os.system"),
    ("import typing\ntyping.sys.modules['os']", HIGH, "sys.modules"),
    ("from typing import sys", LOW, "import sys"),
    ("from random import _os", MEDIUM, "import os"),
    ("import json\njson.codecs.open('x', 'w')", MEDIUM, "import codecs"),
    ("eval('1')", HIGH, "eval"),
    ("exec('x')", HIGH, "exec"),
    ("e = eval\ne('1')", HIGH, "eval"),
    ("@exec\nclass A: pass", HIGH, "exec"),
    ("\u212fval('1')", HIGH, "eval"),
    ("compile('1', '', 'eval')", HIGH, "compile"),
    ("__builtins__.eval('1')", HIGH, "eval"),
    ("__builtins__['ev' + 'al']('1')", HIGH, "eval"),
    ("import builtins\nbuiltins.exec('1')", HIGH, "exec"),
    ("globals()['__buil' + 'tins__']", HIGH, "__builtins__"),
    ("().__class__.__base__.__subclasses__()", HIGH, "__subclasses__"),
    ("().__class__.__mro__[1]", HIGH, "__mro__"),
    ("getattr((), '__cla' + 'ss__').mro()", HIGH, "mro"),
    ("(lambda: 0).__globals__", HIGH, "__globals__"),
    ("print.__self__", HIGH, "__self__"),
    ("match print:\n    case object(__self__=b): pass", HIGH, "__self__"),
    ("class A:\n    __match_args__ = ('__self__',)", HIGH, "__match_args__"),
    ("(x for x in ()).gi_frame.f_back", HIGH, "gi_frame"),
    ("import operator\noperator.attrgetter('__self__')(print)", MEDIUM, "attrgetter"),
    ("import functools\nfunctools.reduce(getattr, ['__self__'], print)", MEDIUM, "getattr"),
    ("def f(x: '__import__(\"os\")'): pass\nimport typing\ntyping.get_type_hints(f)", HIGH, "get_type_hints"),
    ("import functools\n@functools.singledispatch\ndef f(x): pass", HIGH, "singledispatch"),
    ("import typing\ntyping.List['x'].__args__[0]._evaluate({}, {}, frozenset())", HIGH, "_evaluate"),
    ("import typing\ntyping._eval_type", HIGH, "_eval_type"),
    ("import enum\nenum.bltns.eval('1')", HIGH, "bltns"),
    ("import json\njson._default_decoder", MEDIUM, "private json._default_decoder"),
    ("import json.tool", MEDIUM, "import json.tool"),
    ("'{0.__init__.__globals__}'.format(x)", HIGH, "__globals__"),
    ("import pickle\npickle.loads(b'')", HIGH, "import pickle"),
    ("import ctypes", HIGH, "import ctypes"),
    ("import base64\nexec(base64.b64decode('cHJpbnQ='))", CRITICAL, "decoded exec"),
    ("from base64 import b64decode as d\nexec(d('cHJpbnQ='))", CRITICAL, "decoded exec"),
    ("import base64\nx = base64.b64decode('cHJpbnQ=')\ny = x.strip()\nexec(y)", CRITICAL, "decoded exec"),
    ("eval(bytes.fromhex('31'))", CRITICAL, "decoded eval"),
    ("exec(''.join(chr(c) for c in [112, 49]))", CRITICAL, "decoded exec"),
    ("import zlib\nexec(compile(zlib.decompress(x), '', 'exec'))", CRITICAL, "decoded exec"),
    ("import os\nos.setuid(0)", CRITICAL, "os.setuid"),
    ("print(open('/etc/shadow').read())", CRITICAL, "names /etc/shadow"),
    ("x = '/var/run/docker.sock'", CRITICAL, "names docker.sock"),
    ("x = 'http://169.254.169.254/latest'", CRITICAL, "names 169.254.169.254"),
    ("x = '.env'", HIGH, "names .env"),
]


@pytest.mark.parametrize("code", HARMLESS)
def test_plain_computation_is_safe(code: str) -> None:
    assert assess_python(code).level is SAFE


@pytest.mark.parametrize(("code", "level", "pattern"), HOSTILE)
def test_what_a_program_reaches_is_seen_however_it_is_spelled(code: str, level: RiskLevel, pattern: str) -> None:
    assessment = assess_python(code)
    assert pattern in assessment.detected_patterns
    assert assessment.level >= level


@pytest.mark.parametrize("code", ["x = (", "def", "a b", "'\ud800'", "a\0b", "\tx\n y"])
def test_what_is_not_python_is_refused_and_never_below_high(code: str) -> None:
    assessment = assess_python(code)
    assert (assessment.level, assessment.refusal) == (HIGH, Refusal.UNPARSABLE)
    assert "unparsable" in assessment.detected_patterns


def test_every_reason_names_its_line() -> None:
    assert assess_python("x = 1\n\nimport socket\n").reasons == ("line 3: import socket: reaches the network",)


def test_a_warning_about_judged_code_reaches_nobody() -> None:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        assert assess_python("print('\\d')").level is SAFE
    assert heard == []


def test_thousands_of_signs_are_told_by_a_few() -> None:
    assessment = assess_python("\n".join(f"import unheard_of_{n}" for n in range(500)) + "\nimport socket")
    assert len(assessment.signs) == MAX_SIGNS
    assert "import socket" in assessment.detected_patterns


@settings(max_examples=150)
@given(st.text(max_size=200))
def test_any_text_gets_an_answer_and_only_python_gets_a_low_one(code: str) -> None:
    assessment = assess_python(code)
    try:
        ast.parse(code, "<assessed by ringfence>")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        assert assessment.level >= HIGH


@settings(max_examples=150)
@given(st.sampled_from([code for code, _, _ in HOSTILE]), st.sampled_from(HARMLESS))
def test_harmless_code_around_it_lowers_nothing(hostile: str, harmless: str) -> None:
    assert assess_python(f"{harmless}\n{hostile}\n{harmless}").level >= assess_python(hostile).level


DANGEROUS = {id(way) for way in (eval, exec, compile, open, getattr, setattr, globals, vars)}
SYSTEM = {"posix", "os", "_io", "io", "subprocess", "_posixsubprocess", "_socket", "socket", "importlib", "sys"}


def leads_out(value: object) -> bool:
    """Whether `value` is a way out of pure computation: a module that is not pure, or a function of the system."""
    if isinstance(value, types.ModuleType):
        return value.__name__.partition(".")[0] not in PURE_MODULES
    if value is io.StringIO:  # a file in memory
        return False
    return id(value) in DANGEROUS or (callable(value) and str(getattr(value, "__module__", "")) in SYSTEM)


def handed_out(module: str, deepest: int = 3) -> Iterator[str]:
    """Yield every dotted name by which `module` hands out such a value, through the pure modules it knows."""
    places = [(import_module(module), module)]
    for _ in range(deepest):
        deeper = []
        for place, path in places:
            for name, value in vars(place).items():
                if leads_out(value):
                    yield f"{path}.{name}"
                elif isinstance(value, types.ModuleType):
                    deeper.append((value, f"{path}.{name}"))
        places = deeper


@pytest.mark.parametrize("module", sorted(PURE_MODULES | PURE_PARTS))
def test_no_pure_module_hands_out_a_way_to_the_system_unseen(module: str) -> None:
    unseen = {way for way in handed_out(module) if assess_python(f"import {module}\nx = {way}\n").level is SAFE}
    assert unseen == set()


@pytest.mark.parametrize("module", sorted(PURE_MODULES - {"__future__"}))
def test_a_pure_module_does_nothing_to_the_world_when_imported(module: str) -> None:
    events = "{'subprocess.Popen', 'socket.connect', 'os.system', 'os.exec', 'os.remove', 'os.mkdir'}"
    program = (
        f"import sys\nsys.addaudithook(lambda e, a: (_ for _ in ()).throw(SystemExit(e)) if e in {events} else None)\n"
        f"import {module}\n"
    )
    assert subprocess.run([sys.executable, "-I", "-c", program], check=False).returncode == 0
