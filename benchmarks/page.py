"""First visits of pages in headless Chromium: until usable, bytes, requests, and work of the main thread.

The pages are measured in turns, each visit with an empty cache, on a local line and on a slow one
(400 kbit/s, 400 ms). A page is usable when it offers to choose a picture and says how many images there are.
Pictures are not counted. Wall times are those of a busy machine: compare the pages with each other.

    lookalike serve shop.gallery --port 8001 &         # and another version of the server on port 8002
    python -m benchmarks.page new=http://127.0.0.1:8001 old=http://127.0.0.1:8002 --rounds 7
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, CDPSession, sync_playwright

PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
LOCAL = {"offline": False, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
SLOW = {**LOCAL, "latency": 400, "downloadThroughput": 50_000, "uploadThroughput": 50_000}  # ms, bytes/s
LINES = {"local": LOCAL, "400 kbit/s, 400 ms": SLOW}
SETTLED = 1000  # milliseconds without a request
# Notes the time at which the page is usable.
WATCH = """
const watch = setInterval(() => {
  const [box, status] = ['ask', 'status'].map(name => document.querySelector(`#search [data-part=${name}]`));
  const covered = document.getElementById('first-paint');
  if (covered || !box?.getClientRects().length || !status?.textContent.includes('in the gallery')) return;
  clearInterval(watch);
  window.usable = performance.now();
}, 10);
"""
FIRST_PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"


def visit(browser: Browser, url: str, line: dict[str, Any]) -> dict[str, float]:
    """Visit a page for the first time.

    Returns:
        Seconds until the first paint (`painted`), until it is usable (`usable`) and of its main thread
        (`work`); `requests`, `styles` and kilobytes (`kB`) without pictures.
    """
    with browser.new_context(viewport={"width": 1440, "height": 900}) as context:
        page = context.new_page()
        session = context.new_cdp_session(page)
        sizes, kinds = _counted(session)
        session.send("Network.emulateNetworkConditions", line)
        session.send("Performance.enable")
        page.add_init_script(WATCH)
        page.goto(url, wait_until="commit")
        page.wait_for_function("() => window.usable", timeout=180_000)
        usable, painted = page.evaluate(f"[window.usable, {FIRST_PAINT}]")
        before = -1
        while before != len(sizes):
            before = len(sizes)
            page.wait_for_timeout(SETTLED)
        metrics = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
    ours = [name for name, kind in kinds.items() if kind != "Image"]
    return {
        "painted": painted / 1000,
        "usable": usable / 1000,
        "work": metrics["TaskDuration"],
        "kB": sum(sizes.get(name, 0) for name in ours) / 1000,
        "requests": len(ours),
        "styles": sum(kind == "Stylesheet" for kind in kinds.values()),
    }


def _counted(session: CDPSession) -> tuple[dict[str, int], dict[str, str]]:
    """Count what is loaded: request -> its bytes, headers included; request -> its kind."""
    sizes: dict[str, int] = {}
    kinds: dict[str, str] = {}

    def received(event: dict[str, Any]) -> None:
        if urlsplit(event["response"]["url"]).scheme.startswith("http"):
            kinds[event["requestId"]] = event["type"]

    session.send("Network.enable")
    session.on("Network.responseReceived", received)
    session.on(
        "Network.loadingFinished",
        lambda event: sizes.update({event["requestId"]: event["encodedDataLength"]}),
    )
    return sizes, kinds


def measure(pages: dict[str, str], rounds: int) -> Iterator[tuple[str, str, dict[str, float]]]:
    """Visit the pages in turns. Yield the page, the line and the numbers of each visit."""
    program = next(filter(None, map(shutil.which, PROGRAMS)))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        for _ in range(rounds):
            for line, settings in LINES.items():
                for name, url in pages.items():
                    yield name, line, visit(browser, url, settings)
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.page",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("pages", nargs="+", metavar="NAME=URL")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write all numbers to this file")
    args = parser.parse_args()
    pages = dict(page.split("=", 1) for page in args.pages)
    found: dict[str, list[dict[str, float]]] = defaultdict(list)
    for name, line, numbers in measure(pages, args.rounds):
        found[f"{name}, {line}"].append(numbers)
    names = list(next(iter(found.values()))[0])
    print("| page, line | " + " | ".join(names) + " |")
    print("|---" * (len(names) + 1) + "|")
    for what in sorted(found):
        medians = [statistics.median(visit[name] for visit in found[what]) for name in names]
        print(f"| {what} | " + " | ".join(f"{value:.3g}" for value in medians) + " |")
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
