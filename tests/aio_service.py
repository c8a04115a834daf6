"""A small AIO Sandbox service for the tests: the routes and shapes of the published OpenAPI 1.9.4, on real programs.

What it runs can read the whole host, as in a service that isolates nothing; it can change only the home of its service
and signal only its own processes, because tests run it as root. `scripted` answers one route with whatever a test says.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

Form = dict[str, Any]
PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 16


@dataclass(frozen=True)
class Raw:
    """An answer that is not JSON, or not with status 200."""

    body: bytes
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


class Refused(Exception):
    def __init__(self, data: Form | None, message: str = "it cannot be done") -> None:
        super().__init__(message)
        self.data = data


@dataclass
class _Command:
    process: subprocess.Popen[bytes]
    folder: Path
    number: str
    line: str
    ended_by: str | None = None

    def read(self, name: str, offset: int) -> tuple[str, int]:
        data = (self.folder / name).read_bytes()[offset:]
        return data.decode("utf-8", "replace"), offset + len(data)

    @property
    def status(self) -> str:
        return "running" if self.process.poll() is None else self.ended_by or "completed"


@dataclass
class AIOService:
    """What a test holds of it."""

    home: Path
    key: str | None = None
    has_workspace: bool = False
    """Whether there is an empty /workspace, as an image for Ringfence would have."""
    url: str = ""
    requests: list[tuple[str, str, Form]] = field(default_factory=list)
    keys_seen: list[str | None] = field(default_factory=list)
    scripted: dict[str, Callable[[Form], Any]] = field(default_factory=dict)
    commands: dict[str, _Command] = field(default_factory=dict)
    jupyter: dict[str, dict[str, Any]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    # --- bash ---

    def bash_exec(self, form: Form) -> Form:
        folder = Path(tempfile.mkdtemp(dir=self.home))
        session = form.get("session_id") or f"session-{len(self.commands)}"
        with open(folder / "stdout", "wb") as out, open(folder / "stderr", "wb") as err:
            process = subprocess.Popen(
                [
                    *self._box(),
                    "--chdir",
                    form.get("exec_dir") or str(self.home),
                    "--unshare-pid",
                    "--die-with-parent",
                    "--",
                    "bash",
                    "-c",
                    form["command"],
                ],
                cwd=self.home,
                env={**os.environ, "HOME": str(self.home), **(form.get("env") or {})},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        command = _Command(process, folder, f"cmd-{len(self.commands)}", form["command"])
        self.commands[session] = command
        if form.get("hard_timeout") is not None:
            threading.Thread(target=self._end_at, args=(command, form["hard_timeout"]), daemon=True).start()
        if not form.get("async_mode"):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(form.get("timeout"))
        out_text, out_at = ("", 0) if form.get("async_mode") else command.read("stdout", 0)
        err_text, err_at = ("", 0) if form.get("async_mode") else command.read("stderr", 0)
        about = {"command_id": command.number, "command": command.line, "status": command.status}
        return {
            "session_id": session, **about, "stdout": out_text, "stderr": err_text, "offset": out_at,
            "stderr_offset": err_at, "exit_code": process.poll(),
        }  # fmt: skip

    def _box(self) -> list[str]:
        """Return the command that shows a command the machine, and of it lets nothing be written but its home."""
        box, home = ["bwrap"], str(self.home)
        if not self.has_workspace:
            box += ["--ro-bind", "/", "/"]
        else:  # for a directory more than there are, the root has to be another
            workspace = self.home / "workspace"
            workspace.mkdir(exist_ok=True)
            for name in set(os.listdir("/")) - {"workspace"}:
                path = f"/{name}"
                box += ["--symlink", os.readlink(path), path] if os.path.islink(path) else ["--ro-bind", path, path]
            box += ["--bind", str(workspace), "/workspace"]
        return [*box, "--dev", "/dev", "--proc", "/proc", "--bind", home, home]

    def _end_at(self, command: _Command, seconds: float) -> None:
        try:
            command.process.wait(seconds)
        except subprocess.TimeoutExpired:
            command.ended_by = "timed_out"
            self._kill(command, signal.SIGKILL)

    def _kill(self, command: _Command, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(command.process.pid, number)

    def bash_output(self, form: Form) -> Form:
        command = self.commands.get(form["session_id"])
        if command is None:
            raise Refused({"error_type": "not_found"})
        end = time.monotonic() + (form["wait_timeout"] if form.get("wait") else 0)
        while True:
            status = command.status
            out, out_at = command.read("stdout", form.get("offset", 0))
            err, err_at = command.read("stderr", form.get("stderr_offset", 0))
            if out or err or status != "running" or time.monotonic() >= end:
                break
            with contextlib.suppress(subprocess.TimeoutExpired):
                command.process.wait(0.02)
        about = {"command_id": command.number, "command": command.line, "status": status}
        ended = {"exit_code": command.process.poll()}
        return {
            "session_id": form["session_id"], "stdout": out, "stderr": err, "offset": out_at, "stderr_offset": err_at,
            "command": about | ended,
        }  # fmt: skip

    def bash_kill(self, form: Form) -> None:
        command = self.commands.get(form["session_id"])
        if command is not None:
            command.ended_by = "killed"
            self._kill(command, signal.Signals[form.get("signal", "SIGTERM")])

    def shell_exec(self, form: Form) -> Form:
        done = self.bash_exec({**form, "session_id": form.get("id")})
        return {key: done[key] for key in ("session_id", "command", "status", "exit_code")} | {
            "output": done["stdout"] + done["stderr"]
        }

    def shell_view(self, form: Form) -> Form:
        command = self.commands[form["id"]]
        return {"session_id": form["id"], "status": command.status, "output": command.read("stdout", 0)[0]}

    def shell_wait(self, form: Form) -> Form:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.commands[form["id"]].process.wait(form["seconds"])
        return {"status": self.commands[form["id"]].status}

    def shell_kill(self, form: Form) -> Form:
        self._kill(self.commands[form["id"]], signal.SIGKILL)
        return {"status": "terminated"}

    # --- files ---

    def path(self, named: str) -> Path:
        """Return where a path of the service lies here."""
        inside = Path(named)
        if self.has_workspace and inside.is_relative_to("/workspace"):
            return self.home / inside.relative_to("/")
        return inside

    def file_read(self, form: Form) -> Form:
        lines = _existing(self.path(form["file"]), "read").read_text().splitlines(keepends=True)
        chosen = lines[form.get("start_line") or 0 : form.get("end_line")]
        return {"content": "".join(chosen), "file": form["file"]}

    def file_write(self, form: Form) -> Form:
        content = form["content"].encode()
        if form.get("encoding") == "base64":
            content = base64.b64decode(form["content"])
        path = self.path(form["file"])
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "ab" if form.get("append") else "wb") as file:
            file.write(content)
        return {"file": form["file"], "bytes_written": len(content)}

    def file_list(self, form: Form) -> Form:
        root = _existing(self.path(form["path"]), "list")
        found = sorted(root.rglob("*") if form.get("recursive") else root.iterdir())
        files = [
            {"name": path.name, "path": str(path), "is_directory": path.is_dir(), "size": path.lstat().st_size}
            for path in found
        ]
        return {"path": form["path"], "files": files, "total_count": len(files)}

    def file_find(self, form: Form) -> Form:
        return {"path": form["path"], "files": sorted(map(str, Path(form["path"]).rglob(form["glob"])))}

    def file_search(self, form: Form) -> Form:
        lines = Path(form["file"]).read_text().splitlines()
        matches = [line for line in lines if form["regex"] in line]
        return {"file": form["file"], "matches": matches, "line_numbers": []}

    def file_replace(self, form: Form) -> Form:
        text = Path(form["file"]).read_text()
        Path(form["file"]).write_text(text.replace(form["old_str"], form["new_str"]))
        return {"file": form["file"], "replaced_count": text.count(form["old_str"])}

    # --- code, notebook, browser ---

    def code_execute(self, form: Form) -> Form:
        program = {"python": ["python3", "-c"], "javascript": ["node", "-e"]}[form["language"]]
        done = subprocess.run([*program, form["code"]], capture_output=True, text=True, check=False, timeout=30)
        return {
            "language": form["language"], "status": "ok" if done.returncode == 0 else "error", "code": form["code"],
            "stdout": done.stdout, "stderr": done.stderr, "exit_code": done.returncode, "outputs": [],
        }  # fmt: skip

    def jupyter_execute(self, form: Form) -> Form:
        session = form.get("session_id") or "default"
        said = io.StringIO()
        outputs: list[Form] = []
        with self.lock, contextlib.redirect_stdout(said):
            try:
                exec(form["code"], self.jupyter.setdefault(session, {}))
            except Exception as error:
                outputs.append({"output_type": "error", "ename": type(error).__name__, "traceback": ["here"]})
        if said.getvalue():
            outputs.insert(0, {"output_type": "stream", "name": "stdout", "text": said.getvalue()})
        status = "error" if outputs and outputs[-1]["output_type"] == "error" else "ok"
        return {
            "kernel_name": "python3", "status": status, "outputs": outputs, "code": form["code"], "session_id": session
        }  # fmt: skip

    def jupyter_sessions_create(self, form: Form) -> Form:
        session = form.get("session_id") or f"notebook-{len(self.jupyter)}"
        self.jupyter[session] = {}
        return {"session_id": session, "kernel_name": "python3", "message": "made"}


def _existing(path: Path, operation: str) -> Path:
    if not path.exists():
        told = str(path)
        error = {"path": told, "operation": operation, "message": f"no such file: {told}", "error_type": "not_found"}
        raise Refused(error | {"errno": 2, "errno_name": "ENOENT", "content": "", "file": told})
    return path


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    service: AIOService

    def do_GET(self) -> None:
        self._answer("GET", {})

    def do_DELETE(self) -> None:
        self._answer("DELETE", {})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._answer("POST", json.loads(body or b"{}"))

    def _answer(self, method: str, form: Form) -> None:
        parts = urllib.parse.urlsplit(self.path)
        route = parts.path.removeprefix("/v1/")
        form |= dict(urllib.parse.parse_qsl(parts.query))
        service = self.service
        service.requests.append((method, route, form))
        service.keys_seen.append(self.headers.get("Authorization"))
        if service.key is not None and self.headers.get("Authorization") != f"Bearer {service.key}":
            return self._send(Raw(b'{"detail": "Unauthorized"}', 401))
        if route in service.scripted:
            return self._send(service.scripted[route](form))
        try:
            return self._send(self._done(method, route, form))
        except Refused as refused:
            return self._send({"success": False, "message": str(refused), "data": refused.data})

    def _done(self, method: str, route: str, form: Form) -> Any:
        service = self.service
        match method, route:
            case "GET", "sandbox":
                detail: Form = {"system": {}, "runtime": {}, "utils": []}
                return {"success": True, "home_dir": str(service.home), "version": "1.9.4", "detail": detail}
            case "GET", "file/download":
                return Raw(_existing(self.service.path(form["path"]), "download").read_bytes())
            case "GET", "browser/info":
                info = {"user_agent": "Chrome", "cdp_url": "ws://x", "vnc_url": "http://x"}
                return _well(info | {"viewport": {"width": 1280, "height": 720}})
            case "GET", "browser/screenshot":
                return Raw(PNG, headers={"Content-Type": "image/png"})
            case "GET", "browser/page/text":
                return _well("a page")
            case "GET", "jupyter/sessions":
                return _well({"sessions": {name: {} for name in service.jupyter}})
            case "POST", "browser/actions":
                return {"success": True, "status": "success", "action_performed": form["action_type"]}
            case "DELETE", _:
                service.jupyter.pop(route.rpartition("/")[2], None)
                return _well(None)
            case "POST", _ if route.startswith(("browser/page/", "bash/sessions/")):
                return _well({})
            case _:
                pass
        act = getattr(service, route.replace("/", "_"), None)
        return Raw(b'{"detail": "Not Found"}', 404) if act is None else _well(act(form))

    def _send(self, answer: Any) -> None:
        raw = answer if isinstance(answer, Raw) else Raw(json.dumps(answer).encode())
        kind = "application/octet-stream" if isinstance(answer, Raw) and raw.status == 200 else "application/json"
        self.send_response(raw.status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(raw.body)), **raw.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(raw.body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def _well(data: Any) -> Form:
    return {"success": True, "message": "Operation successful", "data": data}


@contextmanager
def running(home: Path, key: str | None = None, port: int = 0, *, has_workspace: bool = False) -> Iterator[AIOService]:
    """Serve until the block ends; what its commands started is killed."""
    home.mkdir(parents=True, exist_ok=True)
    service = AIOService(home, key, has_workspace)
    server = ThreadingHTTPServer(("127.0.0.1", port), type("Handler", (_Handler,), {"service": service}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    service.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield service
    finally:
        server.shutdown()
        server.server_close()
        for command in service.commands.values():
            service._kill(command, signal.SIGKILL)
            command.process.wait()


if __name__ == "__main__":
    with running(Path(sys.argv[2]), port=int(sys.argv[1])) as serving:
        (serving.home / "pid").write_text(str(os.getpid()))
        signal.pause()
