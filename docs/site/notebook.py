"""The page of the notebook: its text, code and stored outputs."""

from __future__ import annotations

import html
import json

import repository


def pages() -> dict[str, str]:
    """Return the page by its place on the site."""
    cells = json.loads((repository.ROOT / repository.NOTEBOOK).read_text())["cells"]
    return {"notebook.md": "\n\n".join(block for cell in cells for block in _blocks(cell)) + "\n"}


def _blocks(cell: dict) -> list[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return [source]
    return [f"```python\n{source}\n```", *map(_output, cell["outputs"])]


def _output(output: dict) -> str:
    """Return an output as HTML without blank lines, at which Markdown would end it."""
    data = output.get("data", {})
    plain = "".join(data.get("text/plain", output.get("text", "")))
    shown = "".join(data.get("text/html", f"<pre>{html.escape(plain)}</pre>"))
    lines = "\n".join(line for line in shown.splitlines() if line.strip() or "<pre>" in shown)
    return f'<div class="notebook-output">{lines}</div>'
