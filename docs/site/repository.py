"""Pages that are Markdown of the repository, with links that hold on the site, and the pictures in them."""

from __future__ import annotations

import html
import posixpath
import re
import shutil
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

# Pages by the path of their source, with their place on the site.
PLACES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "deploy/README.md": "deployment.md",
} | {f"docs/{path.name}": path.name for path in sorted(DOCS.glob("*.md"))}

NOTEBOOK = "docs/notebook.ipynb"
_TARGETS = {**PLACES, NOTEBOOK: "notebook.md"}  # of links

# A fenced block, a link (text and target), or code.
_PART = re.compile(
    r"^```.*?^```|\[((?:`[^`\n]+`|[^][`])*)\]\(([^()\s]+)\)|`[^`\n]+`", re.MULTILINE | re.DOTALL
)
_SPECIAL = re.compile(r"([\\*_\[\]#|])")
_KEPT = re.compile(r"(`[^`]+`|docs/[a-z_]+\.md)")  # code, and names of pages


def pages() -> dict[str, str]:
    """Return the text of every page, by its place on the site."""
    texts = {
        place: _with_links_of_site((ROOT / source).read_text(), source) for source, place in PLACES.items()
    }
    texts["index.md"] = "---\nhide: [navigation]\n---\n" + texts["index.md"]
    return texts


def copy_files(folder: Path) -> None:
    """Copy the pictures of the pages into the folder of the site."""
    for pattern in ("*.png", "*.svg", "experiments/figures/*.svg"):
        for path in DOCS.glob(pattern):
            copy = folder / path.relative_to(DOCS)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)


def title(source: str) -> str:
    """Return the title of a page of the repository."""
    return (ROOT / source).read_text().partition("\n")[0].removeprefix("# ")


def prose(text: str, up: str) -> str:
    """Return plain text as Markdown: special characters escaped outside of code, names of pages as links.

    Args:
        text: Plain text with code between backticks.
        up: Way from the page to the top of the site, as in "../".
    """

    def part(words: str) -> str:
        if words in PLACES:
            return f"[{title(words)}]({up}{PLACES[words]})"
        return words if words.startswith("`") else _SPECIAL.sub(r"\\\1", html.escape(words, quote=False))

    return "".join(map(part, _KEPT.split(text)))


def _with_links_of_site(text: str, source: str) -> str:
    """Return the text of a page with links that lead to pages of the site.

    A link to another file of the repository becomes the path of that file. A link whose text is the name of a
    page gets the title of the page.
    """
    here = posixpath.dirname(PLACES[source]) or "."

    def replace(match: re.Match[str]) -> str:
        words, link = match.groups()
        path, hash_, anchor = (link or "").partition("#")
        if not path or "://" in path:
            return match[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if target in _TARGETS:
            words = title(target) if words.endswith(".md") else words
            return f"[{words}]({posixpath.relpath(_TARGETS[target], here)}{hash_}{anchor})"
        if target.startswith("docs/"):
            return f"[{words}]({posixpath.relpath(target.removeprefix('docs/'), here)})"
        return f"`{target}`"

    return _PART.sub(replace, text)
