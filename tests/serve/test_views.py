"""The HTML of the page: names are text, numbers are formatted."""

from html.parser import HTMLParser
from pathlib import Path

import numpy as np

from retrieval.gallery import Hit, Item
from serve import views
from serve.service import Answer, Facts, Query

_NASTY = "<img src=x onerror=alert(1)>'\"&${1+1}{{2}}"


class _Parsed(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def _answer(*hits: Hit, item: Item | None = None, embed_ms: float = 0.0) -> Answer:
    vector = None if item else np.zeros(2, np.float32)
    return Answer(Query(vector, item, "f", embed_ms), list(hits), 3.14159)


def test_names_are_shown_as_text_wherever_they_come_from() -> None:
    hit = Hit(7, f"/shop/{_NASTY}", _NASTY, score=0.5)
    page = _Parsed(views.results(_answer(hit), "abc"))
    images = [attributes for tag, attributes in page.tags if tag == "img"]
    assert [image["src"] for image in images] == ["/v1/images/7/thumbnail?v=abc"]
    assert images[0]["alt"] == f"1 · 0.5000 · {_NASTY}"
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert page.text.count(_NASTY) == 4  # label and file name on the card, label and path in the table
    for text in (views.note(_NASTY), views.trouble(_NASTY), views.header(Facts(_NASTY, 1, "f", "u"))):
        assert _NASTY in _Parsed(text).text
        assert "<img" not in text


def test_a_result_shows_rank_score_label_and_path() -> None:
    hits = [Hit(7, "/shop/red/a.png", "red", score=1.0), Hit(9, "/shop/b.png", None, score=-0.25)]
    page = _Parsed(views.results(_answer(*hits), "abc"))
    assert [a["alt"] for tag, a in page.tags if tag == "img"] == [
        "1 · 1.0000 · red",
        "2 · -0.2500 · no label",
    ]
    assert [a["data-item"] for tag, a in page.tags if tag == "button"] == ["7", "9"]
    for hit in hits:
        assert hit.path in page.text
        assert Path(hit.path).name in page.text


def test_the_status_splits_the_time_and_names_the_item() -> None:
    one = _Parsed(views.status(_answer(Hit(1, "a", None), embed_ms=12.34))).text
    assert "1 result" in one
    assert "1 results" not in one
    assert "embedding 12.3 ms" in one
    assert "search 3.1 ms" in one
    by_item = _Parsed(views.status(_answer(item=Item(24, "a", None)))).text
    assert "0 results" in by_item
    assert "like item 24" in by_item


def test_nothing_found_leaves_nothing_behind() -> None:
    assert views.results(_answer(), "abc") == ""
