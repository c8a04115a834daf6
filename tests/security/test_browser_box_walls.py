"""What a browser is in: seen from the host, and what is left of it when the engine is gone."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import browser_processes as processes
from tests.browser_lab import GRANTED, BrowserLab, ledger, rules, running_lab

from ringfence.browser.box import Box
from ringfence.browser.chromium import arguments
from ringfence.errors import IsolationUnavailable

pytestmark = [pytest.mark.needs("browser"), pytest.mark.guarantee(33)]
ROOT = Path(__file__).resolve().parents[2]
SECRET = "planted-in-the-environment-of-the-engine"


@pytest.fixture(scope="module")
def lab() -> Iterator[BrowserLab]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("A_SECRET", SECRET)
        with running_lab(most=1) as lab:
            yield lab


@pytest.fixture
def box(lab: BrowserLab) -> Box:
    """Return the box of a page that is open."""

    async def opened() -> Box:
        tab = await lab.browsers.tab("shared", "tests", rules(*GRANTED), ledger())
        await tab.open(lab.web.show("/page", "<p>text"), 10)
        return tab.box

    return asyncio.run(opened())


@pytest.mark.guarantee(12)
def test_the_kernel_says_that_the_browser_is_shut_in_and_each_page_once_more(box: Box) -> None:
    box.require_sealed()
    inside = processes.renderers(box.browser_pid())
    assert inside
    for pid in inside:  # Chromium's own sandbox, within ours
        status = Path(f"/proc/{pid}/status").read_text()
        assert int(processes.field(status, "Seccomp_filters")) >= 2
        assert processes.field(status, "CapEff").strip("0") == ""
        assert "0" not in processes.field(status, "Uid").split()
        for kind in ("user", "net", "pid"):
            assert os.readlink(f"/proc/{pid}/ns/{kind}") != os.readlink(f"/proc/self/ns/{kind}")


@pytest.mark.guarantee(10)
def test_nothing_of_the_engines_environment_is_in_the_box_or_the_driver(box: Box) -> None:
    assert SECRET in os.environ["A_SECRET"]
    programs = {pid: processes.readable(f"/proc/{pid}/cmdline") for pid in processes.below(os.getpid())}
    for expected in (b"playwright/driver/node", b"/chromium/chromium", b"--type=renderer"):
        assert [name for name in programs.values() if expected in name]
    for pid, name in programs.items():
        assert SECRET.encode() not in processes.readable(f"/proc/{pid}/environ"), name


@pytest.mark.needs("root")
@pytest.mark.guarantee(1)
def test_the_box_shows_no_program_home_or_configuration_of_the_host(box: Box) -> None:
    root = f"/proc/{box.browser_pid()}/root"
    expected = {"dev", "etc", "home", "lib", "lib32", "lib64", "proc", "run", "tmp", "usr", "var"}
    assert set(os.listdir(root)) <= expected
    assert set(os.listdir(f"{root}/usr")) <= {"lib", "lib32", "lib64", "local", "share"}
    assert set(os.listdir(f"{root}/usr/share")) <= {"chromium", "fontconfig", "fonts", "mime"}
    assert os.listdir(f"{root}/home") == ["browser"]
    assert "root:" not in Path(f"{root}/etc/passwd").read_text()
    mounts = Path(f"/proc/{box.browser_pid()}/mounts").read_text().splitlines()
    on_top = {where: options.split(",") for _, where, _, options, *_ in (line.split() for line in mounts)}
    assert [where for where, options in on_top.items() if "nosuid" not in options] == []
    assert {where for where, options in on_top.items() if "rw" in options} == {
        *("/tmp", "/dev/shm", "/home/browser", "/proc"),
    }


@pytest.mark.guarantee(12)
def test_a_chromium_without_its_own_sandbox_is_never_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ringfence.browser.room.arguments", lambda *size: [*arguments(*size), "--no-sandbox"])
    with running_lab(most=1) as weak, pytest.raises(IsolationUnavailable) as refusal:
        asyncio.run(weak.browsers.tab("s", "t", rules(*GRANTED), ledger()))
    assert "sandbox is not on" in str(refusal.value)


@pytest.mark.guarantee(8)
def test_nothing_is_left_when_the_engine_is_killed(tmp_path: Path) -> None:
    program = """if True:
        import asyncio, sys
        from tests.browser_lab import *
        async def main():
            tab = await lab.browsers.tab("s", "t", rules(*GRANTED), ledger())
            print(tab.box.browser_pid(), *(tab.box.place.cgroup.paths if tab.box.place.cgroup else ()), flush=True)
            await asyncio.sleep(60)
        with running_lab() as lab:
            asyncio.run(main())
    """
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT}/src", "TMPDIR": str(tmp_path)}
    engine = subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True)
    assert engine.stdout is not None
    browser, *cgroups = engine.stdout.readline().split()
    pidfds = [os.pidfd_open(pid) for pid in (*processes.below(engine.pid), int(browser)) if pid != engine.pid]
    engine.kill()
    engine.wait()
    engine.stdout.close()
    for pidfd in pidfds:
        assert processes.ended(pidfd), "a process outlived the engine"
        os.close(pidfd)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("tempfile.tempdir", str(tmp_path))
        with running_lab() as next_lab:
            asyncio.run(next_lab.browsers.warm())
            assert len(list(tmp_path.glob("ringfence-browser-*"))) == 1
    assert [path for path in cgroups if Path(path).exists()] == []
    assert list(tmp_path.glob("ringfence-browser-*")) == []
