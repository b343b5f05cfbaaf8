"""The documentation: every path, module, name and link in it exists."""

from __future__ import annotations

import re
from pathlib import Path
from pkgutil import resolve_name

import pytest

from train import losses

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PACKAGES = "retrieval|train|serve|export|recipes|tests|benchmarks"
FOLDERS = re.compile(rf"(?:{PACKAGES}|lookalike|docs|deploy)/[\w./*-]*")
# Other names with `lookalike.` are those of metadata and of entry points.
NAMES = re.compile(rf"(?:{PACKAGES}|lookalike\.(?:[A-Z]\w+|losses|metrics|datasets))(?:\.\w+)*")


def code(page: Path) -> set[str]:
    """Return the inline code of a page, outside fenced blocks."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return set(re.findall(r"`([^`\n]+)`", text))


def exists(name: str) -> bool:
    """Return whether a dotted name is a module, or an attribute of one."""
    path = ROOT / name.replace(".", "/")
    if path.is_dir() or path.with_suffix(".py").is_file():
        return True
    try:
        return resolve_name(name) is not None
    except (ImportError, AttributeError):
        return False


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_paths_exist(page: Path) -> None:
    named = {word for word in code(page) if FOLDERS.fullmatch(word)}
    assert not {word for word in named if not list(ROOT.glob(word.rstrip("/")))}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_modules_and_attributes_exist(page: Path) -> None:
    named = {word for word in code(page) if NAMES.fullmatch(word) and not word.endswith(".py")}
    assert not {word for word in named if not exists(word)}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md", ROOT / "deploy" / "README.md"], ids=str)
def test_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
    assert not {link for link in links if "://" not in link and not (page.parent / link).exists()}


def test_losses_page_says_when_to_take_each_part() -> None:
    rows = set(re.findall(r"^\| `([\w-]+)` \| \S", (ROOT / "docs" / "losses.md").read_text(), re.MULTILINE))
    every = {name for kind in ("loss", "negatives", "mining", "regularizer") for name in losses.names(kind)}
    assert rows - {"batch"} == every


def test_glossary_is_in_alphabetical_order() -> None:
    lines = (ROOT / "docs" / "glossary.md").read_text().splitlines()
    terms = [line.split("|")[1].strip() for line in lines if line.startswith("| ")][1:]
    assert terms
    assert terms == sorted(terms, key=str.casefold)
