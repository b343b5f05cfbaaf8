"""Accessibility checks: axe-core, reflow at 320 pixels, and keyboard focus."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

_RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
_LOOKS = [("light", 1280), ("dark", 390)]
# Elements that the Tab key should reach, in document order: those of the open dialog, if there is one; of a
# group of radio buttons, only the checked one.
_CONTROLS = """
(() => {
  const top = document.querySelector('dialog[open]') || document;
  const known = 'a[href], button, input, select, textarea, summary, [tabindex], [contenteditable=true]';
  return [...top.querySelectorAll(known)].filter(e =>
    e.tabIndex >= 0 && !e.disabled && e.checkVisibility({visibilityProperty: true})
    && !(e.type === 'radio' && !e.checked && document.querySelector(`[name="${e.name}"]:checked`)));
})()
"""

# Wait until all transitions and finite animations have ended.
_STILL = """
async () => {
  const frame = () => new Promise(requestAnimationFrame);
  const moving = () => document.getAnimations().filter(
    a => a.playState === 'running' && Number.isFinite(a.effect.getComputedTiming().endTime));
  for (let quiet = 0, tries = 0; quiet < 3 && tries < 100; tries++) {
    await Promise.allSettled(moving().map(a => a.finished));
    await frame();
    quiet = moving().length ? 0 : quiet + 1;
  }
}
"""
# Index of the focused control, whether its focus is visible, and the start of any other focused element.
_FOCUS = """
() => {
  const focused = document.activeElement, s = getComputedStyle(focused);
  const seen = s.outlineStyle === 'auto' || (s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) >= 2);
  return [controls.indexOf(focused), seen, focused === document.body ? '' : focused.outerHTML.slice(0, 200)];
}
"""
_WIDTHS = "all => all.map(e => [e.scrollWidth, e.clientWidth])"
_HIDDEN = "all => all.filter(e => !e.checkVisibility()).length"


def violations(page: Page) -> list[str]:
    """Return the violations that axe-core finds, in light on a wide screen and in dark on a phone."""
    found = {}
    for scheme, width in _LOOKS:
        with _look(page, scheme, width):
            for violation in _violations(page):
                found.setdefault(violation, f"{scheme}, {width} px: {violation}")
    return list(found.values())


def cut_off(page: Page) -> list[str]:
    """Return what is cut off at 320 pixels, as 1280 at 400% zoom (WCAG 1.4.10), and tabs hidden there."""
    with _look(page, "light", 320):
        found = [
            f"{selector} is {width} pixels wide, of which {seen} are visible"
            for selector in ("html", "dialog[open]")
            for width, seen in page.locator(selector).evaluate_all(_WIDTHS)
            if width > seen
        ]
        hidden = page.locator("[role=tab]").evaluate_all(_HIDDEN)
        return found + [f"{hidden} tabs are hidden"] * bool(hidden)


@contextmanager
def _look(page: Page, scheme: Any, width: int) -> Iterator[None]:
    """Show the page in a color scheme and a width; restore the width and the light scheme afterwards."""
    before = page.viewport_size
    assert before
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 844})
    page.evaluate(_STILL)
    yield
    page.set_viewport_size(before)
    page.emulate_media(color_scheme="light")


def _violations(page: Page) -> Iterator[str]:
    options = {"runOnly": _RULES, "resultTypes": ["violations"]}
    if not page.evaluate("'axe' in window"):
        page.evaluate(Axe().axe_script)
    for broken in page.evaluate("options => axe.run(options)", options)["violations"]:
        for node in broken["nodes"]:
            why = " ".join(check["message"] for check in node["any"] + node["all"] + node["none"])
            yield f"{broken['impact']}, {broken['id']}: {node['target']} {node['html'][:200]} {why[:300]}"


def walk(page: Page) -> list[str]:
    """Press Tab through the whole page and return the problems on the way."""
    page.evaluate(f"window.controls = {_CONTROLS}")
    names = page.evaluate("controls.map(e => e.outerHTML.slice(0, 200))")
    page.evaluate("(document.querySelector('dialog[open]') || document.body).focus()")
    page.evaluate("document.activeElement.blur()")
    order: list[int] = []
    wrong = []
    for _ in range(2 * len(names)):
        page.keyboard.press("Tab")
        at, seen, other = page.evaluate(_FOCUS)
        if at in order:
            break
        if at >= 0:
            order.append(at)
            if not seen:
                wrong.append(f"focus is not visible: {names[at]}")
        elif other:
            wrong.append(f"unexpected focus: {other}")
    start = order.index(min(order)) if order else 0  # a dialog keeps its initial focus
    around = order[start:] + order[:start]
    wrong += [f"not reached: {name}" for at, name in enumerate(names) if at not in order]
    wrong += [f"out of order: {names[b]}" for a, b in pairwise(around) if b < a]
    return wrong
