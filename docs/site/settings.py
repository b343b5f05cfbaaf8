"""The page of the settings of a training run, from the code that reads them."""

from __future__ import annotations

from itertools import groupby

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
    lines = [INTRODUCTION]
    for section, members in groupby(fields(Config), key=lambda field: field[0].rpartition(".")[0]):
        lines += [f"## {section or 'Run'}", ""]
        for name, field in members:
            key = name.rpartition(".")[2]
            default = to_line(defaults[section][key] if section else defaults[key])
            default = automatic.AUTO if name in automatic.DEFAULTED else default
            lines += [f"`{name} = {default}`" if name != "data" else "`data`", f":   {field.description}", ""]
    return {"settings.md": "\n".join(lines)}
