"""`lookalike check`: what is wrong with the images of a gallery and their labels."""

from __future__ import annotations

from pathlib import Path

import click

from retrieval.cli import LazyGroup

_HERE = "retrieval.commands.check"
_COMMANDS = {
    "overview": (
        f"{_HERE}.overview:overview",
        "Begin here: see how much each check finds (short: check GALLERY).",
    ),
    "duplicates": (
        f"{_HERE}.duplicates:duplicates",
        "Images are there twice: find identical and similar ones, and thin them out.",
    ),
    "suspects": (
        f"{_HERE}.suspects:suspects",
        "Labels are wrong: find those that the neighbours contradict.",
    ),
    "quality": (
        f"{_HERE}.quality:quality",
        "Pictures are bad: find blurred, dark, tiny and odd ones, and files that are gone.",
    ),
    "leakage": (
        f"{_HERE}.leakage:leakage",
        "A test is too easy: find test images with a near-duplicate in training.",
    ),
    "decide": (
        f"{_HERE}.decisions:decide",
        "You have looked at a list: remove, keep and relabel its images as it says.",
    ),
    "decisions": (f"{_HERE}.decisions:decisions", "See what was decided by hand, and when."),
    "undo": (f"{_HERE}.decisions:undo", "A decision was wrong: take it back."),
}


class _CheckGroup(LazyGroup):
    """The group, which takes a gallery without a command as the overview of it."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        is_gallery = args[0] not in _COMMANDS and (Path(args[0]).exists() or bool({*args[0]} & {*"./"}))
        return super().resolve_command(ctx, ["overview", *args] if is_gallery else args)


@click.group(cls=_CheckGroup, lazy=_COMMANDS)
def check() -> None:
    """Find what is wrong with a gallery: duplicates, wrong labels, bad pictures, leaks into a test.

    \b
      lookalike check shop.gallery
      lookalike check suspects shop.gallery --sheet suspects.html --list suspects.csv
      lookalike check decide shop.gallery suspects.csv
      lookalike check undo shop.gallery 17

    The checks change nothing, but for `duplicates --remove`. Each prints its findings, or writes them to a
    page with the pictures (--sheet), a table (--list) or JSON (--json). Fill in the column `decision` of the
    table, or correct its column `label`, and give it back to `decide`. Decisions are logged, hold when the
    folders are indexed again, and can be undone.
    """
