"""A page in a real browser, spoken to over Chromium's debugging pipe: no driver, no sockets."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ANSWERS_WITHIN_S = 60.0
FLAGS = (
    "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu",
    "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
)  # fmt: skip
_IN, _OUT = 3, 4  # where Chromium reads and writes


class Browser:
    def __init__(self, folder: Path) -> None:
        read, self._write = (_far(end) for end in os.pipe())
        self._read, write = (_far(end) for end in os.pipe())

        def connect_pipes() -> None:
            os.dup2(read, _IN)
            os.dup2(write, _OUT)

        chromium = shutil.which("chromium")
        assert chromium is not None, "tests/prepare installs chromium"
        self._process = subprocess.Popen(
            [chromium, *FLAGS, f"--user-data-dir={folder}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=connect_pipes,  # noqa: PLW1509 - no threads here
            pass_fds=(_IN, _OUT),
        )
        os.close(read)
        os.close(write)
        self._buffer = b""
        self._last_id = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._write)
        os.close(self._read)

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._last_id += 1
        message: dict[str, Any] = {"id": self._last_id, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + ANSWERS_WITHIN_S
        while True:
            answer = self._next(deadline)
            if answer.get("id") == self._last_id:
                assert "error" not in answer, (method, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            left_s = deadline - time.monotonic()
            ready, _, _ = select.select([self._read], [], [], max(0.0, left_s))
            assert ready, f"no answer within {ANSWERS_WITHIN_S} s"
            data = os.read(self._read, 1 << 16)
            assert data, "the browser ended"
            self._buffer += data
        message, self._buffer = self._buffer.split(b"\0", 1)
        response: dict[str, Any] = json.loads(message)
        return response

    def open(
        self, page: Path, *, width: int = 1_200, scheme: str = "light", phone: bool = False
    ) -> None:
        """The page, loaded and drawn."""
        if self._session is None:
            target = self.ask("Target.createTarget", url="about:blank")["targetId"]
            attached = self.ask("Target.attachToTarget", targetId=target, flatten=True)
            self._session = attached["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.ask(f"{domain}.enable")
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=900, deviceScaleFactor=2 if phone else 1, mobile=phone,
        )  # fmt: skip
        scheme_feature = {"name": "prefers-color-scheme", "value": scheme}
        self.ask("Emulation.setEmulatedMedia", features=[scheme_feature])
        self.events.clear()
        self.ask("Page.navigate", url=page.as_uri())
        deadline = time.monotonic() + ANSWERS_WITHIN_S
        while not self.script(
            "document.readyState === 'complete' && 'drawn' in document.body.dataset"
        ):
            assert time.monotonic() < deadline, (
                f"not drawn; its console has {self.console_messages()}"
            )
            time.sleep(0.05)

    def script(self, expression: str) -> Any:
        result = self.ask(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def console_messages(self) -> list[dict[str, Any]]:
        """The console messages of the page and the browser."""
        methods = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        return [event for event in self.events if event.get("method") in methods]

    def requests(self) -> list[str]:
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event.get("method") == "Network.requestWillBeSent"
        ]

    def screenshot(self, path: Path) -> None:
        """The whole page, also what lies below the window."""
        size = self.ask("Page.getLayoutMetrics")["cssContentSize"]
        image = self.ask(
            "Page.captureScreenshot", captureBeyondViewport=True, clip=size | {"scale": 1}
        )
        path.write_bytes(base64.b64decode(image["data"]))


def _far(end: int) -> int:
    """Out of the way of the numbers that the browser reads and writes."""
    far: int = fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(end)
    return far


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    with Browser(folder) as opened:
        yield opened
