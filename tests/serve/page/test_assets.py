"""Scripts and styles of the page: they parse, and nothing in them leaves the server."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from serve import page
from serve.page.assets import ENTRY, LATER, first_modules, later_modules

STATIC = Path(page.__file__).parent / "static"
SCRIPTS = sorted(STATIC.rglob("*.js"))


@pytest.mark.parametrize("file", SCRIPTS, ids=lambda file: file.name)
def test_scripts_parse(file: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs node to parse JavaScript")
    # As modules: some have imports, and one awaits at the top.
    command = [node, "--input-type=module", "--check"]
    done = subprocess.run(command, input=file.read_text(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_assets_load_nothing_from_elsewhere() -> None:
    assert SCRIPTS
    for file in (*SCRIPTS, *STATIC.glob("*.css")):
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|//cdn|@import|url\(", file.read_text()), (
            file.name
        )


def test_scripts_need_no_permission_to_evaluate_text() -> None:
    for file in SCRIPTS:
        assert not re.search(r"\beval\(|new Function|Function\(|\bjavascript:", file.read_text()), file.name


def imported(*entries: str) -> set[str]:
    """Return modules and what they import, by regular expressions; dynamic imports are not among them."""
    found, waiting = set(entries), [*entries]
    while waiting:
        text = (STATIC / "modules" / waiting.pop()).read_text()
        new = set(re.findall(r"""from\s*['"]\./(.+?)['"]""", text)) - found
        found |= new
        waiting += new
    return found


def test_modules_that_load_at_once_are_those_that_the_entry_needs() -> None:
    needed = imported(ENTRY)
    assert sorted([ENTRY, *first_modules()]) == sorted(needed)
    assert {"start.js", "tabs.js"} <= needed
    assert not {"search.js", "map.js", "evaluation.js", "collection.js", "dialog.js"} & needed


def test_modules_that_load_after_those_are_what_a_search_needs() -> None:
    assert sorted(later_modules()) == sorted(imported(*LATER) - imported(ENTRY))
    assert len(set(later_modules())) == len(later_modules())


def test_scripts_have_one_idea_each() -> None:
    long = {file.name: count for file in SCRIPTS if (count := len(file.read_text().splitlines())) > 300}
    assert long == {}
