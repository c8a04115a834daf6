"""A skill: a manifest that has no mistakes, the files beside it, and what both amount to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from ringfence.authority import strict_json
from ringfence.authority.finding import Finding, Severity, errors
from ringfence.authority.levels import SideEffect
from ringfence.authority.manifest import Manifest
from ringfence.authority.manifest_reader import load_manifest, read_manifest
from ringfence.capability.canonical import digest, digest_of
from ringfence.dataclass import dataclass
from ringfence.errors import InvalidRequest, Unavailable
from ringfence.operation.code import Language
from ringfence.outcome import ExecutionResult
from ringfence.skills import schema
from ringfence.skills.confinement import reads_part_of_work
from ringfence.skills.entry import Entry, entry_of, require_image
from ringfence.skills.validation import schema_problems

_TOLD = ("tool", "capabilities", "digest", "available", "unavailable_reason")
_READING = frozenset({SideEffect.NONE, SideEffect.READ})


@dataclass(frozen=True, eq=False)
class Skill:
    """One tool that agents may call; `files` are the other files of its directory, by path."""

    manifest: Manifest
    files: Mapping[str, bytes]
    entry: Entry
    told: Mapping[str, Any] | None = None
    """What a service says of it, whose files are not here."""

    @property
    def id(self) -> str:
        """What policies, the command and its directory call it."""
        return self.manifest.id

    @property
    def tool(self) -> str:
        """What agents call it."""
        return f"skill.{self.manifest.id}"

    @property
    def read_only(self) -> bool:
        """Whether it says of itself that it changes nothing; what it may change is for policy and manifest to say."""
        return self.manifest.side_effects <= _READING

    @property
    def unavailable(self) -> str | None:
        """Why it cannot be called on this machine, or nothing."""
        if self.told is not None:
            return self.told["unavailable_reason"]  # type: ignore[no-any-return]
        try:
            require_image(self.manifest.runtime)
        except Unavailable as error:
            return error.reason
        return None

    @cached_property
    def digest(self) -> str:
        """The hash of everything that it is: manifest and files."""
        if self.told is not None:
            return str(self.told["digest"])
        return digest({name: digest_of(content) for name, content in {**self.files, "": self.manifest.text}.items()})

    def to_dict(self) -> dict[str, Any]:
        """Return its manifest as it is written, with what it leaves unsaid, and what it is called."""
        return {
            **strict_json.read(self.manifest.text),
            "version": self.manifest.version,
            "safety_class": str(self.manifest.safety_class),
            "side_effect": sorted(map(str, self.manifest.side_effects)),
            "tool": self.tool,
            "capabilities": [str(item) for item in self.manifest.capabilities],
            "digest": self.digest,
            "available": self.unavailable is None,
            "unavailable_reason": self.unavailable,
        }


@dataclass(frozen=True, slots=True)
class SkillOutcome:
    """What came of a call: the outputs, if they are what the skill's schema says, and the run behind them."""

    skill_id: str
    outputs: Any
    result: ExecutionResult

    @property
    def success(self) -> bool:
        """Whether the program ended well and its outputs are valid."""
        return self.result.success

    @property
    def reason(self) -> str | None:
        """Why it did not succeed: `output_invalid`, or what ended the run."""
        return self.result.reason


def read_skill(
    content: bytes, files: Mapping[str, bytes], *, directory: str, file: str = "manifest.json"
) -> tuple[Skill | None, list[Finding]]:
    """Read a skill, and say everything that is wrong with it; one with errors is none.

    Raises:
        Unavailable: Nothing here checks its schemas.
    """
    manifest, findings = read_manifest(content, directory=directory, file=file)
    entry: Entry | None = None
    wrong = {finding.path.partition(".")[0] for finding in errors(findings)}
    # what could not be read has been told; about the rest there is more to say
    if not wrong & {"", "interface"}:
        findings += _of_interface(manifest, file)
    if not wrong & {"", "interface", "runtime"}:
        try:
            entry = entry_of(manifest, files)
        except InvalidRequest as error:
            findings.append(
                Finding(Severity.ERROR, "entrypoint", "runtime.entrypoint", str(error), error.fix or "", file)
            )
    if not wrong:
        findings += _warnings(manifest, file)
    if entry is None or errors(findings):
        return None, findings
    return Skill(manifest, dict(files), entry), findings


def skill_told(form: object) -> Skill:
    """Read what `Skill.to_dict` wrote, of a skill that lies elsewhere.

    Raises:
        InvalidRequest: It is no such thing.
    """
    if not isinstance(form, dict) or form.keys() < set(_TOLD):
        raise InvalidRequest("that is no skill", reason="invalid_manifest")
    if not isinstance(form["digest"], str) or not isinstance(form["unavailable_reason"], str | None):
        raise InvalidRequest("that is no skill", reason="invalid_manifest")
    written = {name: value for name, value in form.items() if name not in _TOLD and value != ""}
    manifest = load_manifest(json.dumps(written).encode())
    return Skill(manifest, {}, Entry(Language.PYTHON), {name: form[name] for name in _TOLD})


def _of_interface(manifest: Manifest, file: str) -> list[Finding]:
    found = []
    for side, form in (("inputs", manifest.input_schema), ("outputs", manifest.output_schema)):
        problems = schema.problems(form) or schema_problems(form)
        if not problems and side == "inputs" and form.get("type") != "object":
            problems = [schema.Problem("type", "the inputs of a call are an object", 'write "type": "object"')]
        found += [
            Finding(
                Severity.ERROR, "schema", f"interface.{side}.{problem.path}".rstrip("."), problem.message, problem.fix,
                file,
            )
            for problem in problems
        ]  # fmt: skip
    return found


def _warnings(manifest: Manifest, file: str) -> list[Finding]:
    found = []
    if reads_part_of_work(manifest.capabilities):
        found.append(
            Finding(
                Severity.WARNING, "too_fine", "permissions.fs.read",
                "a box is shown all of work or none of it, so every call is refused",
                "write work/**, or nothing of work", file,
            )
        )  # fmt: skip
    try:
        require_image(manifest.runtime)
    except Unavailable as error:
        found.append(Finding(Severity.WARNING, "image_unavailable", "runtime.image", str(error), error.fix or "", file))
    return found
