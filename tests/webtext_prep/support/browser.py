"""An installed Chromium without a window, steered by its DevTools protocol over two pipes: no driver, no package.

    with Browser() as browser:
        browser.open(path)
        browser.evaluate("document.title")

Nothing is downloaded, and Chromium's own services are switched off: whatever it asks for comes from the page.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PATIENCE = 60
"""Seconds after which the browser is taken for stuck."""
FLAGS = (
    "--headless",
    "--no-sandbox",  # which root may not have, nor many a container; here it opens pages that the tests have made
    "--remote-debugging-pipe",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--mute-audio",
)


def find_chromium() -> str | None:
    """The path of an installed Chromium, or None."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One page in a Chromium of its own.

    Attributes:
        requests: URLs that the page asked for, itself included.
        messages: what it wrote to the console or was refused by its policy.
    """

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.messages: list[str] = []
        self._number = 0
        self._buffer = b""

    def __enter__(self) -> Browser:
        self._folder = tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True)
        here, self._commands = os.pipe()
        self._answers, there = os.pipe()
        command = [str(find_chromium()), *FLAGS, f"--user-data-dir={self._folder.name}", "about:blank"]
        # The protocol is spoken on descriptors 3 and 4.
        script = 'exec "$@" 3<&"$IN" 4>&"$OUT"'
        self._process = subprocess.Popen(
            ["bash", "-c", script, "browser", *command],
            env={**os.environ, "IN": str(here), "OUT": str(there)},
            pass_fds=(here, there),
            stderr=subprocess.DEVNULL,
        )
        os.close(here)
        os.close(there)
        self._session = ""
        targets = self.send("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self._session = self.send("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.send(f"{domain}.enable")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._commands)
        os.close(self._answers)
        self._folder.cleanup()

    def send(self, method: str, **values: Any) -> Any:
        """Give a command of the protocol and return its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": values}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]

    def open(self, place: Path | str, *, width: int = 1200, height: int = 900, dark: bool = False) -> None:
        """Load a file or an address, as a window of that width shows it."""
        self.resize(width, height, dark=dark)
        self._loaded = False
        self.send("Page.navigate", url=place if isinstance(place, str) else place.resolve().as_uri())
        while not self._loaded:
            self._read()

    def resize(self, width: int, height: int = 900, *, dark: bool = False) -> None:
        """Give the window another size, and a light or dark scheme."""
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.send("Emulation.setEmulatedMedia", features=features)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        found = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait_for(self, expression: str) -> Any:
        """The value of a JavaScript expression once it is true."""
        found = self.send(
            "Runtime.evaluate",
            expression="new Promise(done => { const look = () => { let value = " + expression + "; "
            "value ? done(value) : requestAnimationFrame(look); }; look(); })",
            awaitPromise=True,
            returnByValue=True,
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def picture(self, path: Path) -> None:
        """Save the whole page as a PNG."""
        found = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))

    def _read(self) -> dict[str, Any]:
        """The next message; events are remembered."""
        while b"\0" not in self._buffer:
            readable, _, _ = select.select([self._answers], [], [], PATIENCE)
            assert readable, "the browser says nothing"
            piece = os.read(self._answers, 1 << 16)
            assert piece, "the browser has ended"
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        values = message.get("params", {})
        match message.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(values["request"]["url"])
            case "Page.loadEventFired":
                self._loaded = True
            case "Runtime.consoleAPICalled":
                self.messages.append(str([entry.get("value") for entry in values["args"]]))
            case "Log.entryAdded":
                self.messages.append(values["entry"]["text"])
            case "Page.javascriptDialogOpening":
                self.messages.append(f"dialog: {values['message']}")
        return message
