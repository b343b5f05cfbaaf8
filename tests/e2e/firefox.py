"""A headless Firefox, driven by WebDriver BiDi (https://www.w3.org/TR/webdriver-bidi/).

Playwright drives only its own build of Firefox; this one drives the browser that is installed.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import time
from collections.abc import Sequence
from pathlib import Path
from threading import Thread
from typing import Any

import aiohttp

_PREFERENCES = """
user_pref("remote.active-protocols", 1);
user_pref("services.settings.server", "data:,");
user_pref("webgl.force-enabled", true);
"""
_ARGUMENTS = ("--headless", "--no-remote", "--remote-debugging-port=0", "--profile")
_PATIENCE = 60.0  # seconds: machines may be busy
_SELECT = "document.querySelector({!r})"


class Firefox:
    """One tab.

    Args:
        program: The program.
        profile: A folder for its settings, which is made.
    """

    def __init__(self, program: str, profile: Path) -> None:
        profile.mkdir(parents=True)
        (profile / "user.js").write_text(_PREFERENCES)
        self.errors: list[str] = []
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        # Playwright has a loop of its own in the main thread.
        self._loop = asyncio.new_event_loop()
        Thread(target=self._loop.run_forever, daemon=True).start()
        self._wait(self._start(program, profile))
        self._call("session.new", capabilities={})
        self._call("session.subscribe", events=["log.entryAdded"])
        self._tab = self._call("browsingContext.create", type="tab")["context"]

    def close(self) -> None:
        self._call("browser.close")
        self._wait(self._session.close())
        self._wait(self._process.wait())
        self._loop.call_soon_threadsafe(self._loop.stop)

    def open(self, url: str) -> None:
        self._call("browsingContext.navigate", context=self._tab, url=url, wait="complete")

    def reload(self) -> None:
        self._call("browsingContext.reload", context=self._tab, wait="complete")

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression: a string, a number, a truth value or null."""
        found = self._call(
            "script.evaluate", expression=expression, target={"context": self._tab}, awaitPromise=True
        )
        assert found["type"] == "success", found["exceptionDetails"]["text"]
        return found["result"].get("value")

    def expect(self, expression: str, value: Any = True) -> None:
        """Wait until an expression has a value."""
        end = time.monotonic() + _PATIENCE
        while (found := self.evaluate(expression)) != value:
            assert time.monotonic() < end, f"{expression} is {found!r}, not {value!r}"
            time.sleep(0.05)

    def click(self, selector: str) -> None:
        """Move the pointer to an element, as soon as there is one, and press."""
        self.expect(f"Boolean({_SELECT.format(selector)}?.checkVisibility())")
        self.evaluate(f"{_SELECT.format(selector)}.scrollIntoView({{block: 'center'}})")
        element = {"type": "element", "element": self._element(selector)}
        actions = [
            {"type": "pointerMove", "x": 0, "y": 0, "origin": element},
            {"type": "pointerDown", "button": 0},
            {"type": "pointerUp", "button": 0},
        ]
        pointer = {"type": "pointer", "id": "mouse", "actions": actions}
        self._call("input.performActions", context=self._tab, actions=[pointer])

    def press(self, key: str) -> None:
        """Press a key, named as WebDriver does: a letter, or a code point of its table."""
        actions = [{"type": kind, "value": key} for kind in ("keyDown", "keyUp")]
        keyboard = {"type": "key", "id": "keyboard", "actions": actions}
        self._call("input.performActions", context=self._tab, actions=[keyboard])

    def choose(self, selector: str, files: Sequence[Path]) -> None:
        """Choose files in a field."""
        paths = [str(path) for path in files]
        self._call("input.setFiles", context=self._tab, element=self._element(selector), files=paths)

    def _element(self, selector: str) -> dict[str, str]:
        locator = {"type": "css", "value": selector}
        (found,) = self._call(
            "browsingContext.locateNodes", context=self._tab, locator=locator, maxNodeCount=1
        )["nodes"]
        return {"sharedId": found["sharedId"]}

    async def _start(self, program: str, profile: Path) -> None:
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            program, *_ARGUMENTS, str(profile), "about:blank", stdout=asyncio.subprocess.DEVNULL, stderr=pipe
        )
        assert self._process.stderr
        address = None
        while address is None:
            line = await self._process.stderr.readline()
            assert line, "Firefox has ended"
            address = re.search(r"WebDriver BiDi listening on (ws://\S+)", line.decode())
        self._session = aiohttp.ClientSession()
        self._socket = await self._session.ws_connect(f"{address[1]}/session", max_msg_size=0)
        self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._drain())]

    async def _drain(self) -> None:
        assert self._process.stderr
        while await self._process.stderr.readline():
            pass

    async def _listen(self) -> None:
        async for message in self._socket:
            found = message.json()
            if found.get("method") == "log.entryAdded" and found["params"]["level"] == "error":
                self.errors.append(found["params"]["text"])
            if found.get("id") in self._answers:
                self._answers.pop(found["id"]).set_result(found)

    async def _ask(self, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        number = next(self._numbers)
        answer = self._answers[number] = self._loop.create_future()
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        return await answer

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        found = self._wait(self._ask(method, parameters))
        assert found["type"] == "success", f"{method}: {found.get('message')}"
        return dict(found["result"])

    def _wait(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_PATIENCE)
