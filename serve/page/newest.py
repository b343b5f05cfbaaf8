"""Visitors are quick: of what is wanted while an answer is awaited, the newest is asked for when that comes.

Left to itself, the framework would drop what is wanted meanwhile, or ask for the same once more.
"""

from __future__ import annotations

import time

# For components that each answer to their events sets to something `fresh`: `want` in place of `trigger`.
# `awaited` is when the last question was asked; one without an answer is given up after ten seconds.
NEWEST = """
let awaited = 0, wish = null;
const want = (name, data) => {
  if (awaited && performance.now() - awaited < 10000) { wish = [name, data]; return; }
  awaited = performance.now();
  wish = null;
  trigger(name, data);
};
watch('value', () => {
  awaited = 0;
  if (wish) want(...wish);
});
"""


def fresh(html: str) -> str:
    """The same HTML as another value than ever before: the browser is told of changes alone."""
    return f"{html}<!--{time.monotonic_ns()}-->"
