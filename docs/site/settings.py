"""The page of the settings of a training run, from the code that reads them."""

from __future__ import annotations

import repository

from train import automatic
from train.config import Config
from train.settings import fields
from train.yaml_files import to_line

INTRODUCTION = """# Settings

Every setting of a training run, with its default, as `lookalike train --help` lists them. Change one with
`--set NAME=VALUE`, or several in a YAML file that `--recipe` takes. What they are for:
[training](training.md), [training options](training_options.md).
"""


def pages() -> dict[str, str]:
    """Return the page by its place on the site."""
    defaults = Config(data="").to_dict()
    sections: dict[str, list[str]] = {"Run": []}
    for name, field in fields(Config):
        section, _, key = name.rpartition(".")
        default = to_line(defaults[section][key] if section else defaults[key])
        default = automatic.AUTO if name in automatic.DEFAULTED else default
        shown = f"`{name} = {default}`" if name != "data" else "`data`"
        meaning = repository.prose(field.description or "", "")
        sections.setdefault(section or "Run", []).extend([shown, f":   {meaning}", ""])
    lines = [line for section, members in sections.items() for line in (f"## {section}", "", *members)]
    return {"settings.md": "\n".join([INTRODUCTION, *lines])}
