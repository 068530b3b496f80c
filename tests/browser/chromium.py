"""Headless Chromium for tests: open a page, ask it something in JavaScript, take a picture.

It speaks the DevTools protocol over a pair of pipes (`--remote-debugging-pipe`), so that it needs neither a
driver program nor a port. `tests/browser/install` makes sure that Chromium is there.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

WAIT_S = 180.0
FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",  # CI runs as root in a container; the pages are our own
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--hide-scrollbars",
)


class Browser:
    """A context manager: one process of Chromium with one page."""

    def __init__(self, *, width: int = 1200, height: int = 900, dark: bool = False) -> None:
        self._size = (width, height)
        self._dark = dark
        self._number = 0
        self._rest = b""
        self._session: str | None = None
        self._shown: set[str] = set()  # the loads whose documents the page has taken over
        self.problems: list[str] = []
        """What the page has complained of: exceptions, errors on the console, failed loads."""
        self.requests: list[str] = []
        """Every address that was asked for."""

    def __enter__(self) -> Browser:
        program = shutil.which("chromium") or shutil.which("chromium-browser")
        assert program is not None, "there is no Chromium: run tests/browser/install"
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        arguments = [
            program,
            *FLAGS,
            f"--user-data-dir={self._folder.name}",
            f"--window-size={self._size[0]},{self._size[1]}",
        ]
        # Chromium reads commands from descriptor 3 and answers on 4. A plain sh knows one-digit numbers only.
        script = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, "bash", *arguments],
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        if self._dark:
            features = [{"name": "prefers-color-scheme", "value": "dark"}]
            self.call("Emulation.setEmulatedMedia", features=features)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        try:
            self._process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)
        os.close(self._out)
        self._folder.cleanup()

    def open(self, url: str) -> None:
        """Go to a page; `until` waits for what it shows.

        The answer may come while the old page is still there, which would then be asked instead.
        """
        answer = self.call("Page.navigate", url=url)
        assert "errorText" not in answer, answer["errorText"]
        deadline = time.monotonic() + WAIT_S
        while answer.get("loaderId", "") not in {"", *self._shown}:  # there is none for another anchor
            self._notice(self._next(deadline))

    def evaluate(self, script: str) -> Any:
        """The value of an expression in the page, as JSON tells it; a promise is awaited."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, script: str, timeout: float = WAIT_S) -> Any:
        """Wait until an expression is true in the page; returns its value."""
        deadline = time.monotonic() + timeout
        while True:
            # A page that is still being built may not have what the expression looks at.
            value = self.evaluate(f"(() => {{ try {{ return {script} }} catch {{ return null }} }})()")
            if value:
                return value
            assert time.monotonic() < deadline, (
                f"not within {timeout} s: {script}; text: {self.text()[:2000]}"
            )
            select.select([], [], [], 0.05)

    def text(self) -> str:
        """What can be read on the page."""
        return str(self.evaluate("document.body ? document.body.innerText : ''"))

    def screenshot(self, path: Path) -> None:
        """A picture (PNG) of the whole page."""
        picture = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(picture["data"]))

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the DevTools protocol, and its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._out, data) :]
        deadline = time.monotonic() + WAIT_S
        while True:
            answer = self._next(deadline)
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result
            self._notice(answer)

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], max(deadline - time.monotonic(), 0))
            assert ready, "Chromium does not answer"
            data = os.read(self._in, 1 << 20)
            assert data, "Chromium has ended"
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    def _notice(self, message: dict[str, Any]) -> None:
        method, told = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(told["exceptionDetails"]))
        elif method == "Log.entryAdded" and told["entry"]["level"] == "error":
            self.problems.append(f"{told['entry']['text']} {told['entry'].get('url', '')}")
        elif method == "Page.frameNavigated":
            self._shown.add(told["frame"]["loaderId"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])
        elif method == "Runtime.consoleAPICalled" and told["type"] == "error":
            self.problems.append(json.dumps(told["args"]))
