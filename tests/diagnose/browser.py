"""A real browser for tests: Chromium, controlled through ChromeDriver by JSON over HTTP."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

WANTED = "FASTFEED_BROWSER"  # "required" where there must be one
FLAGS = (
    *(
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-dev-shm-usage",
    ),
    *(
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-extensions",
    ),
)


class Browser:
    """A browser window. `script` runs in the page, `command` belongs to the Chrome DevTools
    Protocol."""

    def __init__(self, port: int, session: str) -> None:
        self._base = f"http://127.0.0.1:{port}/session/{session}"

    def open(self, path: Path) -> None:
        """A page of the disk; the console begins anew."""
        self.console()
        call(f"{self._base}/url", url=path.as_uri())

    def script(self, text: str) -> Any:
        """Return the value that the body of a function returns."""
        return call(f"{self._base}/execute/sync", script=text, args=[])

    def command(self, name: str, **params: Any) -> Any:
        return call(f"{self._base}/goog/cdp/execute", cmd=name, params=params)

    def console(self) -> list[str]:
        """Return the new messages of the console: errors, warnings, and requests that a policy
        refused."""
        return [entry["message"] for entry in call(f"{self._base}/se/log", type="browser")]

    def width(self, pixels: int) -> None:
        phone = pixels < 500
        self.command(
            "Emulation.setDeviceMetricsOverride",
            width=pixels,
            height=800,
            deviceScaleFactor=1,
            mobile=phone,
        )

    def dark(self, dark: bool) -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.command("Emulation.setEmulatedMedia", features=[scheme])


def call(address: str, /, *, method: str = "POST", **body: Any) -> Any:
    """Send a command of WebDriver, without a proxy."""
    data = json.dumps(body).encode() if method == "POST" else None
    request = urllib.request.Request(
        address, data=data, method=method, headers={"Content-Type": "application/json"}
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=60) as answer:
            return json.load(answer)["value"]
    except urllib.error.HTTPError as error:
        with error:
            raise AssertionError(json.load(error)["value"]["message"]) from None


def programs() -> tuple[str, str]:
    """Return Chromium and ChromeDriver; fail without them where they are required."""
    found = (
        shutil.which("chromium") or shutil.which("google-chrome") or "",
        shutil.which("chromedriver") or "",
    )
    if all(found):
        return found
    missing = (
        "this test opens the page in Chromium, through ChromeDriver, and one of them is not "
        "installed: apt-get install --no-install-recommends chromium chromium-driver"
    )
    if os.environ.get(WANTED) == "required":
        pytest.fail(missing)
    pytest.skip(missing)


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """Its files are in `folder`, and it is gone afterwards."""
    chromium, driver = programs()
    server = subprocess.Popen(
        [driver, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert server.stdout is not None
        ports = (re.search(r"started successfully on port (\d+)", line) for line in server.stdout)
        port = next((int(found[1]) for found in ports if found), None)
        assert port is not None, "ChromeDriver did not start"
        options = {"binary": chromium, "args": [*FLAGS, f"--user-data-dir={folder / 'profile'}"]}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        base = f"http://127.0.0.1:{port}/session"
        session = call(base, capabilities={"alwaysMatch": wanted})["sessionId"]
        try:
            yield Browser(port, session)
        finally:
            call(f"{base}/{session}", method="DELETE")
    finally:
        server.terminate()
        server.communicate()
