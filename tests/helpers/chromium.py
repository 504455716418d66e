"""A headless Chromium that tests drive through its DevTools protocol: no driver of its own, one websocket."""

import base64
import itertools
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import websocket

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
KEYS = {
    "Enter": 13,
    "Escape": 27,
    "ArrowLeft": 37,
    "ArrowUp": 38,
    "ArrowRight": 39,
    "ArrowDown": 40,
    "End": 35,
    "Home": 36,
}
TIMEOUT = 120  # seconds, which a loaded machine may take for a page that it opens in one


def program() -> str | None:
    """Where a Chromium is on this machine."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


class Page:
    """A page in Chromium; what went wrong on it, which is errors and warnings of its console and scripts; and what it
    asked of a network."""

    def __init__(self, address: str):
        # Chromium refuses a connection that names a web page as its origin.
        self._socket = websocket.create_connection(address, timeout=TIMEOUT, suppress_origin=True)
        self._numbers = itertools.count(1)
        self.complaints: list[str] = []
        self.asked_for: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        """Ends the connection."""
        self._socket.close()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of a call of the protocol; events that come before it are noted."""
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv())
            if message.get("id") == number:
                assert "error" not in message, f"{method}: {message['error']}"
                return message["result"]
            self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        said = message.get("params", {})
        match message.get("method"):
            case "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(said["exceptionDetails"])[:2000])
            case "Runtime.consoleAPICalled" if said["type"] in ("error", "warning", "assert"):
                self.complaints.append(json.dumps(said["args"])[:2000])
            case "Log.entryAdded" if said["entry"]["level"] in ("error", "warning"):
                self.complaints.append(said["entry"]["text"])
            case "Network.requestWillBeSent":
                self.asked_for.append(said["request"]["url"][:200])

    def open(self, address: str, width: int = 1400, height: int = 900, dark: bool = False, script: bool = True) -> None:
        """Opens an address in a window of so many pixels, and waits until it is loaded."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Emulation.setScriptExecutionDisabled", value=not script)
        self.call("Page.navigate", url=address)
        self.wait("location.href !== 'about:blank' && document.readyState === 'complete'")

    def js(self, expression: str) -> Any:
        """The value of an expression, awaited where it is a promise."""
        result = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, f"{expression}: {result['exceptionDetails']}"
        return result["result"].get("value")

    def wait(self, condition: str, seconds: float = TIMEOUT) -> None:
        """Waits until an expression is true."""
        until = time.monotonic() + seconds
        while not self.js(condition):
            assert time.monotonic() < until, f"still not so: {condition}"
            time.sleep(0.02)

    def await_inflight(self) -> None:
        """Waits until what a script asked to be drawn is drawn."""
        self.js("new Promise((done) => setTimeout(() => requestAnimationFrame(() => requestAnimationFrame(done)), 30))")

    def click(self, selector: str) -> None:
        """Clicks the middle of the first element that a selector finds, as a mouse does, once it is there, lies still
        and on top: a page that is still being laid out moves it away from the mouse."""
        find = selector.removeprefix("js:") if selector.startswith("js:") else f"document.querySelector({selector!r})"
        middle = (
            f"(() => {{ const box = {find}; if (!box) return null; box.scrollIntoView({{ block: 'nearest' }}); "
            "const r = box.getBoundingClientRect(), x = r.x + r.width / 2, y = r.y + r.height / 2; "
            "return [x, y, box.contains(document.elementFromPoint(x, y))]; })()"
        )
        before, until = None, time.monotonic() + TIMEOUT
        while not (seen := self.js(middle)) or seen != before or not seen[2]:
            assert time.monotonic() < until, f"is not there, still and on top: {selector}"
            before = seen
            self.await_inflight()
        x, y, _ = seen
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
        self.await_inflight()

    def press(self, key: str, modifiers: int = 0) -> None:
        """Presses a key."""
        code = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key], "modifiers": modifiers}
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, **code)
        self.await_inflight()

    def choose(self, label: str, value: str) -> None:
        """Chooses a value of the `select` with a label, or writes it into the input, as a user does."""
        field = f"[...document.querySelectorAll('label')].find((x) => x.innerText.startsWith({label!r})).lastChild"
        self.js(
            f"(() => {{ const field = {field}; field.value = {value!r}; for (const kind of ['input', 'change']) "
            "field.dispatchEvent(new Event(kind, { bubbles: true })); })()"
        )
        self.await_inflight()

    def screenshot(self, file: Path, whole: bool = False) -> None:
        """Writes what is seen, or the whole page, as PNG."""
        picture = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(picture["data"]))


@contextmanager
def browser() -> Iterator[Page]:
    """A page of a new Chromium, which ends with the block."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--hide-scrollbars",
            "--mute-audio",
        ]
        options += ["--disable-background-networking", "--disable-dev-shm-usage", "--remote-debugging-port=0"]
        process = subprocess.Popen(
            [program(), *options, f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            page = Page(_address(Path(profile) / "DevToolsActivePort", process))
            yield page
            page.close()
        finally:
            process.terminate()
            process.wait(30)


def _address(file: Path, process: subprocess.Popen) -> str:
    """The address of the first page, when Chromium has written at which port it listens."""
    import urllib.request

    until = time.monotonic() + TIMEOUT
    while not (file.is_file() and len(file.read_text().splitlines()) == 2):
        assert process.poll() is None and time.monotonic() < until, "Chromium does not start"
        time.sleep(0.05)
    port = file.read_text().splitlines()[0]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=TIMEOUT) as answer:
        return next(page["webSocketDebuggerUrl"] for page in json.load(answer) if page["type"] == "page")
