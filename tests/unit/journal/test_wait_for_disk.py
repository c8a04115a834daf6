"""The setting that has results wait for the disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringfence.errors import InvalidRequest
from ringfence.wiring import waits_for_disk


@pytest.mark.parametrize(
    ("written", "waits"),
    [
        ("", False),
        ("[evidence]\n", False),
        ("[evidence]\nwait_for_disk = false\n", False),
        ("[evidence]\nwait_for_disk = true\n", True),
    ],
)
def test_results_wait_for_the_disk_where_the_home_says_so(tmp_path: Path, written: str, waits: bool) -> None:
    (tmp_path / "config.toml").write_text(written)
    assert waits_for_disk(tmp_path) is waits


def test_a_home_without_settings_does_not_wait(tmp_path: Path) -> None:
    assert not waits_for_disk(tmp_path)


@pytest.mark.parametrize("written", ["wait_for_disk = 1", 'wait_for_disk = "yes"', "wait_for_disc = true"])
def test_what_is_not_written_so_is_refused(tmp_path: Path, written: str) -> None:
    (tmp_path / "config.toml").write_text(f"[evidence]\n{written}\n")
    with pytest.raises(InvalidRequest, match="wait_for_dis"):
        waits_for_disk(tmp_path)
