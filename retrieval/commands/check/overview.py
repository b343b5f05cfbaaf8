"""`lookalike check overview`: how much each check finds."""

from __future__ import annotations

from pathlib import Path

import click

from retrieval.cli import json_option, print_result
from retrieval.commands.check import duplicates, suspects
from retrieval.commands.device_options import search_device_option
from retrieval.curation.suspects import find_suspects
from retrieval.gallery import Gallery
from retrieval.machine.devices import Device
from retrieval.model.runtime import Runtime
from retrieval.storage.decisions import DecisionLog
from retrieval.text import align_columns


@click.command()
@click.argument("gallery", type=click.Path(path_type=Path))
@search_device_option
@json_option
def overview(gallery: Path, device: Device, as_json: bool) -> None:
    """Show how much each check finds in a gallery, with its defaults.

    Only the checks that need no image file are made. `lookalike check quality` reads all files, and
    `lookalike check leakage` needs a second gallery.

    \b
      lookalike check shop.gallery
      lookalike check overview shop.gallery --json
    """
    target = Gallery.open(gallery, runtime=Runtime(device))
    alike = target.duplicates(show_progress=True).groups
    doubtful = find_suspects(target, show_progress=True)
    decided = len(DecisionLog(target.folder).in_effect())
    facts = {
        "gallery": str(gallery),
        "images": len(target),
        "duplicates": {
            "groups": len(alike),
            "images": sum(len(group.members) for group in alike),
            "across_labels": sum(len(group.labels) > 1 for group in alike),
        },
        "suspects": {"labelled": doubtful.labelled, "likely": doubtful.likely},
        "decisions": decided,
    }
    rows = [
        ["duplicates", duplicates.summary(len(target), alike)],
        ["suspects", suspects.summary(doubtful)],
        ["decisions", f"in effect: {decided}"],
        ["quality", f"not checked, it reads all files: `lookalike check quality {gallery}`"],
    ]
    print_result(facts, as_json, align_columns(rows))
