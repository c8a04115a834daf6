"""What builds package environments says what it lacks, and ends what does not end."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringfence.errors import Unavailable
from ringfence.runtimes import installer


def test_without_uv_and_pip_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("ringfence.runtimes.installer.sys.executable", str(tmp_path / "python"))
    monkeypatch.setattr(installer, "find_spec", lambda _: None)
    with pytest.raises(Unavailable, match="neither is installed") as refused:
        installer.find_client()
    assert refused.value.reason == "no_package_client"


def test_a_build_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="took longer") as refused:
        installer.run(["sleep", "60"], tmp_path, 0.01, ())
    assert refused.value.reason == "package_timeout"
