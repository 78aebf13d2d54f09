"""A headless Chromium over its DevTools protocol: what a person at a browser sees and does."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

CHROMIUM: Final = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
# The accessibility checker; a development file that is not in the repository: npm ci in tests/accessibility.
AXE: Final = Path(__file__).parent / "accessibility/node_modules/axe-core/axe.min.js"
_VIOLATIONS: Final = """axe.run({resultTypes: ['violations']}).then(found => found.violations.map(one =>
  one.id + ': ' + one.nodes.map(node => node.html.slice(0, 120)).join(' | ')))"""
_LIMIT_S: Final = 60.0
# What must be true of every page at every width, and what is not reachable or has no name.
CHECKS: Final = """(() => {
  const r = document.documentElement, bad = [];
  if (r.scrollWidth > r.clientWidth) bad.push('overflow ' + r.scrollWidth + ' > ' + r.clientWidth);
  if (!r.lang) bad.push('no language');
  if (!document.title) bad.push('no title');
  if (document.querySelectorAll('main').length !== 1) bad.push('main');
  if (document.querySelectorAll('h1').length !== 1) bad.push('h1');
  if (document.scripts.length) bad.push('script');
  let last = 1;
  for (const h of document.querySelectorAll('h1, h2, h3')) {
    const level = +h.tagName[1]; if (level > last + 1) bad.push('skipped ' + h.tagName); last = level; }
  for (const e of document.querySelectorAll('input:not([type=hidden])'))
    if (!e.labels.length && !e.ariaLabel) bad.push('no label ' + e.name);
  for (const e of document.querySelectorAll('a, button, summary'))
    if (!(e.innerText || '').trim()) bad.push('no name ' + e.outerHTML.slice(0, 60));
  for (const e of document.querySelectorAll('svg, img'))
    if (!e.getAttribute('aria-label') && !e.alt) bad.push('no alternative');
  for (const e of document.querySelectorAll('th')) if (!e.scope) bad.push('th without scope');
  const ids = [...document.querySelectorAll('[id]')].map(e => e.id);
  if (new Set(ids).size !== ids.length) bad.push('ids');
  const lum = c => { const v = c.match(/[\\d.]+/g).slice(0, 3).map(x => x / 255)
      .map(x => x <= .03928 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4);
    return .2126 * v[0] + .7152 * v[1] + .0722 * v[2]; };
  const ground = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
    if (!/, 0\\)$|transparent/.test(c)) return c; } return 'rgb(255, 255, 255)'; };
  for (const e of document.querySelectorAll('body *')) {
    if (![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()) || e.closest('.skip')) continue;
    const a = lum(getComputedStyle(e).color), b = lum(ground(e));
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < 4.5) bad.push('contrast ' + ratio.toFixed(2) + ' ' + e.innerText.slice(0, 30)); }
  return bad; })()"""


class Browser:
    """One tab."""

    def __init__(self, connection: Any, port: str, name: str) -> None:
        self._connection, self._number, self.requests = connection, 0, []
        self._port, self._name = port, name
        self.call("Page.enable")
        self.call("Network.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the protocol, and its answer."""
        self._number += 1
        self._connection.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._connection.recv(timeout=_LIMIT_S))
            if message.get("method") == "Network.requestWillBeSent":
                self.requests.append(message["params"]["request"]["url"])
            if message.get("id") == self._number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return dict(message["result"])

    def run(self, script: str) -> Any:
        """The value of an expression on the page; a person's own tools, which no policy of the page stops."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"])
        return answer["result"].get("value")

    @property
    def violations(self) -> list[str]:
        """What axe finds on this page, its folded parts included."""
        self.run("document.querySelectorAll('details').forEach(one => one.open = true)")
        self.run(f"{AXE.read_text('utf-8')}; 0")
        return list(self.run(_VIOLATIONS))

    def open(self, address: str) -> None:
        """Go to an address, and wait until it is loaded."""
        self._leave(lambda: self.call("Page.navigate", url=address))

    def size(self, width: int, height: int = 900) -> None:
        """The window."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def picture(self) -> bytes:
        """The whole page as PNG."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        return base64.b64decode(answer["data"])

    @property
    def text(self) -> str:
        """What is to be read."""
        return " ".join(str(self.run("document.body.innerText")).split())

    def follow(self, words: str) -> None:
        """Go to a link or press a button with these words, by the keyboard alone."""
        for _ in range(80):
            self.key("Tab")
            if self.run("(document.activeElement.innerText || '').trim()").startswith(words):
                self._leave(lambda: self.key("Enter"))
                return
        raise AssertionError(f"{words!r} is not reached by the Tab key: {self.text[:400]}")

    @contextmanager
    def beside(self) -> Iterator[Browser]:
        """The tab that a link has opened; closed at the end."""
        until = time.monotonic() + _LIMIT_S
        while not (others := [one for one in _tabs(self._port) if one["id"] != self._name]):
            assert time.monotonic() < until, "no other tab"
            time.sleep(0.02)
        with _connected(self._port, others[0]) as made:
            yield made
            made.call("Page.close")

    def key(self, name: str) -> None:
        """Press a key."""
        code = {"Tab": 9, "Enter": 13, " ": 32}[name]
        text = {"Enter": "\r", " ": " "}.get(name, "")
        more = {"key": name, "windowsVirtualKeyCode": code, **({"text": text} if text else {})}
        self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", **more)
        self.call("Input.dispatchKeyEvent", type="keyUp", **more)

    def _leave(self, go: Any) -> None:
        """Do what leads to another page, and wait for that."""
        self.run("window.wasHere = true")
        go()
        until = time.monotonic() + _LIMIT_S
        while time.monotonic() < until:
            try:
                if self.run("document.readyState === 'complete' && !window.wasHere"):
                    return
            except RuntimeError:
                pass  # between two pages
            time.sleep(0.02)
        raise AssertionError("the page did not change")


def _tabs(port: str) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list") as answer:
        return [one for one in json.load(answer) if one["type"] == "page"]


@contextmanager
def _connected(port: str, tab: dict[str, Any]) -> Iterator[Browser]:
    from websockets.sync.client import connect

    with connect(tab["webSocketDebuggerUrl"], max_size=None, compression=None) as connection:
        yield Browser(connection, port, tab["id"])


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A tab of a new browser, without any network chatter of its own."""
    profile = folder / "profile"
    command = [
        str(CHROMIUM),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--no-first-run",
        "--hide-scrollbars",
        "--remote-debugging-port=0",
        f"--user-data-dir={profile}",
        "about:blank",
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        chosen, until = profile / "DevToolsActivePort", time.monotonic() + _LIMIT_S
        while not chosen.exists() or not chosen.read_text():
            assert process.poll() is None, "the browser did not start"
            assert time.monotonic() < until
            time.sleep(0.05)
        port = chosen.read_text().split()[0]
        with _connected(port, _tabs(port)[0]) as made:
            yield made
    finally:
        process.terminate()
        process.wait(30)
