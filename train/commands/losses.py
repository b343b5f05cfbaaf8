"""The `lookalike losses` command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from retrieval.cli import json_option, print_result
from retrieval.errors import InputError

if TYPE_CHECKING:
    from train.losses.registry import Entry


@click.command()
@click.argument("names", nargs=-1)
@json_option
def losses(names: tuple[str, ...], as_json: bool) -> None:
    """List losses, negatives, miners and regularizers, or describe the named ones in detail.

    \b
    Published forms, defaults and the meaning of each parameter:
      lookalike losses triplet rand-disjoint

    \b
    They can be combined in the `loss` setting of a recipe or of --set:
      lookalike train ... --set "loss={name: n-pair, negatives: symmetric}"
      lookalike train ... --set "loss={name: triplet, negatives: optimal, margin: 0.2,
                                       regularizers: [{name: wasserstein, weight: 0.5}]}"
      lookalike train ... --set "loss={name: triplet-nca, mining: {positive: easy, negative: semi-hard}}"

    Losses of pytorch-metric-learning are available by class name, as in pml:CircleLoss. Plug-ins of other
    packages are listed last, by name; see docs/plugins.md.
    """
    from train.losses import builder  # torch takes seconds to import
    from train.losses.registry import WORDS, not_loaded

    try:
        text = builder.describe(*names)
    except ValueError as error:
        raise InputError(str(error)) from error
    every = [entry for kind in builder.TITLES for entry in builder.names(kind).values()]
    facts = [_entry_facts(entry) for entry in every if not names or entry.name in names]
    if not names:
        facts += [
            {"kind": kind, "name": name, "plug-in": origin}
            for kind in WORDS
            for name, origin in not_loaded(kind).items()
        ]
    print_result(facts, as_json, text)


def _entry_facts(entry: Entry) -> dict[str, Any]:
    return {
        "kind": entry.kind,
        "name": entry.name,
        "summary": entry.summary,
        "details": entry.details,
        "source": entry.source,
        "formula": entry.formula,
        "parameters": {name: str(parameter) for name, parameter in entry.parameters.items()},
        **({"negatives": entry.negatives, "mining": entry.mining} if entry.kind == "loss" else {}),
        **({"default_weight": 1.0, "mean_weight": entry.mean_weight} if entry.kind == "regularizer" else {}),
    }
