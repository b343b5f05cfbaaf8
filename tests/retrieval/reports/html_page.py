"""A page as a browser's parser sees it."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path


class Page(HTMLParser):
    """The tags of a page, a file or its text, with their attributes; and what is read between them."""

    def __init__(self, page: Path | str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page.read_text(encoding="utf-8") if isinstance(page, Path) else str(page))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        """The attributes of every tag of this name."""
        return [attributes for name, attributes in self.tags if name == tag]

    @property
    def pictures(self) -> list[str]:
        """Where every picture comes from."""
        return [str(attributes["src"]) for attributes in self.all("img")]
