"""What is decided before anything is carried out: hints, arguments, and how much a result may say."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from ringfence.authority.levels import SideEffect
from ringfence.errors import Denied, InvalidRequest, QuotaExceeded
from ringfence.interfaces.mcp.answers import MOST_OUTPUT, head_and_tail, of_run, refusal
from ringfence.interfaces.mcp.carrying import to_its_end
from ringfence.interfaces.mcp.offer import hints_of
from ringfence.interfaces.mcp.processes import _whole
from ringfence.interfaces.mcp.server import BUILT_IN
from ringfence.outcome import ExecutionResult, Status

OFFERS = {offer.name: offer for offer in BUILT_IN}
NAMES = {
    "run_code", "run_shell", "read_file", "write_file", "list_files",
    "start_process", "read_process", "send_process", "kill_process", "fetch_url", "browse_page", "screenshot_page",
}  # fmt: skip


def test_the_built_in_tools_are_those_of_the_interfaces() -> None:
    assert OFFERS.keys() == NAMES


@pytest.mark.parametrize("name", sorted(NAMES))
def test_every_schema_is_one_and_every_text_in_it_is_bounded(name: str) -> None:
    offer = OFFERS[name]
    assert offer.output_schema is not None
    for schema in (offer.input_schema, offer.output_schema):
        Draft202012Validator.check_schema(dict(schema))
    assert unbounded(offer.input_schema) == []


def unbounded(schema: Any, path: str = "") -> list[str]:
    """Return where a caller may send as much as it likes."""
    found = []
    kind = schema.get("type")
    bound = {"string": "maxLength", "array": "maxItems"}.get(kind)
    if bound is not None and bound not in schema and "enum" not in schema:
        found.append(path)
    if kind == "object":
        more = schema.get("additionalProperties")
        if more is not False and ("maxProperties" not in schema or not isinstance(more, dict)):
            found.append(path)
        if isinstance(more, dict):
            found += unbounded(more, f"{path}.*")
    for key, each in schema.get("properties", {}).items():
        found += unbounded(each, f"{path}.{key}")
    if "items" in schema:
        found += unbounded(schema["items"], f"{path}[]")
    return found


@given(st.frozensets(st.sampled_from(SideEffect)))
def test_what_is_read_only_is_never_destructive_and_never_leads_out(effects: frozenset[SideEffect]) -> None:
    hints = hints_of(effects)
    assert not (hints.read_only_hint and (hints.destructive_hint or hints.open_world_hint))
    assert hints.read_only_hint == (effects <= {SideEffect.NONE, SideEffect.READ})
    if SideEffect.NETWORK in effects:
        assert hints.open_world_hint


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_whatever_comes_as_an_argument_is_taken_or_refused_in_one_short_line(value: Any) -> None:
    said = ""
    try:
        OFFERS["run_code"].check({"code": "1", "timeout": value})
    except InvalidRequest as refused:
        said = str(refused)
    is_fine = isinstance(value, float) and 0 < value <= 86400
    assert (said == "") == is_fine
    assert len(said) < 400


@given(st.text(max_size=200), st.integers(2, 100))
def test_a_text_that_is_cut_keeps_its_two_ends_and_counts_the_rest(text: str, most: int) -> None:
    shown, cut = head_and_tail(text, most)
    assert cut == (len(text) > most)
    if not cut:
        assert shown == text
        return
    half = most // 2
    assert shown[:half] == text[:half]
    assert shown[-half:] == text[-half:]
    assert f"[... {len(text) - 2 * half} characters left out ...]" in shown


@given(st.binary(max_size=40), st.integers(1, 6))
def test_pieces_of_a_stream_make_the_text_that_the_whole_makes(data: bytes, size: int) -> None:
    text, offset = "", 0
    while offset < len(data):
        piece = data[offset : offset + max(size, 4)]
        is_last = offset + len(piece) == len(data)
        part, taken = _whole(piece, is_over=is_last)
        text += part
        offset += taken
    assert text == data.decode("utf-8", "replace")


def test_a_result_is_bounded_and_is_what_its_schema_says() -> None:
    flood = ExecutionResult(
        Status.SUCCEEDED, 0, b"x" * 5_000_000, b"y" * 5_000_000, files_written=tuple(map(str, range(100_000)))
    )
    result = of_run(flood)
    schema = OFFERS["run_code"].output_schema
    assert schema is not None
    Draft202012Validator(dict(schema)).validate(result.structured_content)
    assert len(result.model_dump_json()) < 5 * MOST_OUTPUT
    assert result.structured_content["stdout_truncated"]
    assert result.structured_content["lists_truncated"]


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_refusal_is_what_the_output_schema_of_every_tool_says(name: str) -> None:
    schema = OFFERS[name].output_schema
    assert schema is not None
    for error in (Denied("no", fix="ask"), QuotaExceeded("x" * 10_000, reason="calls", left=0)):
        result = refusal(error, OFFERS[name].needs({"path": "work/a", "url": "https://example.com/"}))
        Draft202012Validator(dict(schema)).validate(result.structured_content)
        assert result.is_error
        assert len(json.dumps(result.structured_content)) < 5000


async def test_a_scope_that_cancels_again_and_again_does_not_tear_up_the_cleaning() -> None:
    steps: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            for step in ("kill", "collect", "write down"):
                await asyncio.sleep(0.001)
                steps.append(step)

    async with anyio.create_task_group() as group:
        group.start_soon(to_its_end, work())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        group.cancel_scope.cancel()
    assert steps == ["kill", "collect", "write down"]
