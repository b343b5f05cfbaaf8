"""Scripts and styles of the page: they parse, and nothing in them leaves the server."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from serve import page

STATIC = Path(page.__file__).parent / "static"
SCRIPTS = sorted(STATIC.glob("*.js"))


@pytest.mark.parametrize("file", SCRIPTS, ids=lambda file: file.name)
def test_scripts_parse(file: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs node to parse JavaScript")
    done = subprocess.run([node, "--check", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_assets_load_nothing_from_elsewhere() -> None:
    assert SCRIPTS
    for file in (*SCRIPTS, *STATIC.glob("*.css")):
        assert not re.search(r"https?://|//cdn|@import|url\(", file.read_text()), file.name
