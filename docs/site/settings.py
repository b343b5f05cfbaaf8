"""The page of the settings of a training run, from the code that reads them."""

from __future__ import annotations

import repository

from train.settings import describe_settings

INTRODUCTION = """# Settings

Every setting of a training run, with its default, as `lookalike train --explain` shows them. Change one with
`--set NAME=VALUE`, or several in a YAML file that `--recipe` takes. What they are for:
[training](training.md), [training options](training_options.md).
"""


def pages() -> dict[str, str]:
    """Return the page by its place on the site."""
    sections: dict[str, list[str]] = {"Run": []}
    for one in describe_settings():
        section, _, _ = one.name.rpartition(".")
        shown = f"`{one.name} = {one.default}`" if one.default else f"`{one.name}`"
        meaning = repository.prose(one.meaning, "")
        block = [shown, f":   {repository.prose(one.accepts, '')}", "", f":   {meaning}", ""]
        sections.setdefault(section or "Run", []).extend(block)
    lines = [line for section, members in sections.items() for line in (f"## {section}", "", *members)]
    return {"settings.md": "\n".join([INTRODUCTION, *lines])}
