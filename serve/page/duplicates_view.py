"""Near-duplicates as HTML: groups as rows of pictures."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from retrieval.text import pluralize
from retrieval.upkeep.duplicates import Group
from serve.core.service import Facts
from serve.page.browsing import last_page
from serve.page.changing import remove_button
from serve.page.gallery_view import card
from serve.page.views import note, pages

GROUPS = 20  # on a page
_MEMBERS = 24  # of a group that are shown
_LABELS = 5


def groups(found: Sequence[Group], page: int, gallery: Facts, *, removes: bool) -> str:
    """One page of the groups.

    Args:
        found: all of them.
        page: its number, from 0; the last one where there are not as many.
        gallery: where they are.
        removes: whether all but the first of a group can be removed.
    """
    if not found:
        return note("No two pictures are as alike as that.")
    page = min(max(page, 0), last_page(len(found), GROUPS))
    shown = found[page * GROUPS : (page + 1) * GROUPS]
    rows = "".join(_group(group, gallery, removes=removes) for group in shown)
    turns = pages("group", "group-page", page, GROUPS, len(found)) if len(found) > GROUPS else ""
    return f"{_summary(found)}{turns}<ol class='groups'>{rows}</ol>"


def _summary(found: Sequence[Group]) -> str:
    members = sum(len(group.members) for group in found)
    across = sum(len(group.labels) > 1 for group in found)
    text = f"{pluralize(len(found), 'group')} with {members:,} pictures"
    if across:
        text += f"; in {across:,} of them labels disagree: these come first"
    return f"<p role='status' tabindex='-1'>{text}.</p>"


def _group(group: Group, gallery: Facts, *, removes: bool) -> str:
    facts = [pluralize(len(group.members), "picture"), f"lowest similarity {group.lowest:.4f}"]
    facts.append("the same bytes" if group.identical else "different files")
    words = f"<span>{' · '.join(facts)}</span>"
    if len(group.labels) > 1:
        words += f"<span class='disagree'>labels disagree: {escape(_some(group.labels))}</span>"
    if removes:
        rest = [item.id for item in group.members[1:]]
        words += remove_button(rest, gallery, f"Remove all but item {group.members[0].id}")
    cards = "".join(card(item, gallery) for item in group.members[:_MEMBERS])
    more = len(group.members) - _MEMBERS
    hidden = f"<p class='quiet'>and {more:,} more</p>" if more > 0 else ""
    return f"<li><p>{words}</p><ol class='grid'>{cards}</ol>{hidden}</li>"


def _some(labels: Sequence[str]) -> str:
    more = len(labels) - _LABELS
    return ", ".join(labels[:_LABELS]) + (f" and {more:,} more" if more > 0 else "")
