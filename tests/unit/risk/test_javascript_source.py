from __future__ import annotations

import pytest

from ringfence.authority.levels import RiskLevel
from ringfence.risk.assessment import Refusal
from ringfence.risk.javascript_source import assess_javascript

SAFE, LOW, MEDIUM, HIGH, CRITICAL = RiskLevel

PROGRAMS = [
    ("console.log(1)", SAFE, None),
    ("const a = [1, 2].map(x => x * 2); console.log(a[0], JSON.stringify({a}))", SAFE, None),
    ("import path from 'node:path'; console.log(path.join('a', 'b'))", SAFE, None),
    ("a[i]", LOW, "computed property"),
    ("require('fs')", MEDIUM, "import fs"),
    ("import fs from 'node:fs'", MEDIUM, "import node:fs"),
    ("import './sibling.js'", MEDIUM, "import ./sibling.js"),
    ("process.env.TOKEN", MEDIUM, "process"),
    ("require('child_process').exec('id')", HIGH, "import child_process"),
    ("require('child_' + 'process')", HIGH, "import child_process"),
    ("require('\\x63hild_process')", HIGH, "import child_process"),
    ("require(`child_process`)", HIGH, "import child_process"),
    ("require(name)", HIGH, "computed import"),
    ("import(name)", HIGH, "computed import"),
    ("await import('net')", HIGH, "import net"),
    ("export * from 'net'", HIGH, "import net"),
    ("eval('1')", HIGH, "eval"),
    ("ev\\u0061l('1')", HIGH, "eval"),
    ("(0, eval)('1')", HIGH, "eval"),
    ("globalThis['ev' + 'al']('1')", HIGH, "eval"),
    ("new Function('return 1')()", HIGH, "Function"),
    ("(() => {}).constructor('return 1')()", HIGH, "constructor"),
    ("[]['filter']['constr' + 'uctor']('return 1')()", HIGH, "constructor"),
    ("const {constructor: c} = () => {}", HIGH, "constructor"),
    ("process.mainModule.require('fs')", HIGH, "mainModule"),
    ("process.binding('spawn_sync')", HIGH, "binding"),
    ("fetch('http://x')", HIGH, "fetch"),
    ("setTimeout('x()', 1)", MEDIUM, "setTimeout of text"),
    ("eval(atob('MQ=='))", CRITICAL, "decoded eval"),
    ("new Function(Buffer.from('MQ==', 'base64').toString())()", CRITICAL, "decoded Function"),
    ("x = '/etc/shadow'", CRITICAL, "names /etc/shadow"),
]


@pytest.mark.parametrize("language", ["javascript", "typescript"])
@pytest.mark.parametrize(("code", "level", "pattern"), PROGRAMS)
def test_what_a_program_reaches_is_seen_however_it_is_spelled(
    language: str, code: str, level: RiskLevel, pattern: str | None
) -> None:
    assessment = assess_javascript(code, language)
    assert (assessment.level, assessment.refusal) == (level, None)
    assert pattern is None or pattern in assessment.detected_patterns


def test_typescript_has_a_grammar_of_its_own() -> None:
    code = "const x: number = 1; console.log(x as unknown)"
    assert assess_javascript(code, "typescript").level is SAFE
    assert assess_javascript(code, "javascript").refusal is Refusal.UNPARSABLE
    assert assess_javascript("import fs = require('fs')", "typescript").detected_patterns == ("import fs",)


@pytest.mark.parametrize("code", ["x = (", "}", "'\ud800'"])
def test_what_is_not_javascript_is_refused_and_never_below_high(code: str) -> None:
    assessment = assess_javascript(code)
    assert (assessment.level, assessment.refusal) == (HIGH, Refusal.UNPARSABLE)
