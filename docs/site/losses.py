"""Pages of the losses, sources of negatives, miners and regularizers, from their registry."""

from __future__ import annotations

import inspect
import json
import re
import textwrap
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import repository
from latex2mathml.converter import convert
from loss_figures import figure

from train import losses
from train.losses.registry import Entry, Kind, Parameter

FOLDERS: dict[Kind, str] = {
    "loss": "losses/loss",
    "negatives": "losses/negatives",
    "mining": "losses/mining",
    "regularizer": "losses/regularizer",
}
HEADINGS: dict[Kind, str] = {
    "loss": "Losses to choose from",
    "negatives": "Sources of negatives",
    "mining": "Miners",
    "regularizer": "Regularizers",
}
_COSTS = json.loads((repository.ROOT / "benchmarks" / "losses.json").read_text())["rows"]
_ROW = re.compile(r"^\| `([\w-]+)` \| (.*) \|$", re.MULTILINE)
_ARGUMENT = re.compile(r"^([\w, ]+): (.*(?:\n +.*)*)", re.MULTILINE)


def pages() -> dict[str, str]:
    """Return a page for each entry, and the overview with links to them, by their places on the site."""
    overview = repository.pages()["losses.md"]
    sections = _sections(overview)
    made = {
        f"{FOLDERS[kind]}/{entry.name}.md": "\n".join(_describe(entry, dict(_ROW.findall(sections[kind]))))
        for kind in FOLDERS
        for entry in losses.names(kind).values()
    }
    return made | {"losses.md": _with_links(overview)}


def _with_links(text: str) -> str:
    for kind, section in _sections(text).items():
        known = losses.names(kind)

        def link(match: re.Match[str], kind: Kind = kind, known: Mapping[str, Entry] = known) -> str:
            name, rest = match.groups()
            return f"| [`{name}`]({FOLDERS[kind]}/{name}.md) | {rest} |" if name in known else match[0]

        text = text.replace(section, _ROW.sub(link, section))
    return text


def _sections(text: str) -> dict[Kind, str]:
    parts = dict(part.split("\n", 1) for part in text.split("\n## ")[1:])
    return {kind: parts[heading] for kind, heading in HEADINGS.items()}


def _describe(entry: Entry, uses: Mapping[str, str]) -> Iterator[str]:
    prose, _, arguments = entry.details.partition("Args:\n")
    yield from (f"# {entry.name}", "", repository.prose(entry.summary, "../../"), "")
    yield from (_mathml(entry.formula), "", "The symbols are in [Losses](../../losses.md#symbols).", "")
    when = uses[entry.name].replace("](", "](../../")  # links of the overview
    yield from (f"**Take it when** {when}", "", f"**Source:** {entry.source}.", "")
    yield from _figure(entry)
    if prose.strip():
        yield from ("## Details", "", repository.prose(prose.strip(), "../../"), "")
    yield from _settings(entry, arguments)
    yield from _parts(entry)
    yield from _cost(entry)


def _mathml(formula: str) -> str:
    math = convert(formula, display="block").replace("\\_", "_")  # which it leaves in texts
    return f'<div class="formula">{math}</div>'


def _figure(entry: Entry) -> Iterator[str]:
    spec: dict[Kind, dict[str, Any]] = {
        "loss": {"name": entry.name},
        "negatives": {"name": "triplet", "negatives": entry.name},
        "regularizer": {"regularizers": [{"name": entry.name}]},
    }
    if entry.kind not in spec:
        return
    what = "of `triplet` with this source" if entry.kind == "negatives" else "with the default settings"
    yield from (
        '<div class="figure">' + figure(spec[entry.kind]) + "</div>",
        "",
        f"The value {what}, for two images of each of two classes on a circle: as the classes come apart, "
        "with 30 degrees between the images of each; and as the images of a class come apart, with a right "
        "angle between the classes.",
        "",
    )


def _settings(entry: Entry, arguments: str) -> Iterator[str]:
    if not entry.parameters:
        return
    meanings = _meanings(arguments)
    for base in entry.cls.__mro__[1:]:
        meanings = _meanings(inspect.cleandoc(base.__doc__ or "").partition("Args:\n")[2]) | meanings
    yield from ("## Settings", "", "| setting | default | values | meaning |", "|---|---|---|---|")
    for name, parameter in entry.parameters.items():
        meaning = repository.prose(meanings.get(name, ""), "../../")
        yield f"| `{name}` | `{_plain(parameter.default)}` | {_values(parameter)} | {meaning} |"
    yield ""


def _meanings(arguments: str) -> dict[str, str]:
    """Return the meaning of each argument, from that section of a docstring and what follows it."""
    return {
        name.strip(): " ".join(meaning.split())
        for names, meaning in _ARGUMENT.findall(textwrap.dedent(arguments.partition("\n\n")[0]))
        for name in names.split(",")
    }


def _plain(value: Any) -> str:
    """Return a default as YAML spells it."""
    return value if isinstance(value, str) else json.dumps(value)


def _values(parameter: Parameter) -> str:
    words = {float: "number", int: "whole number", bool: "true, false"}
    words |= {list[float]: "list of numbers", list[int]: "list of whole numbers"}
    options = typing.get_args(parameter.annotation) or (parameter.annotation,)
    if typing.get_origin(parameter.annotation) in (typing.Literal, list):
        options = (parameter.annotation,)
    found: list[str] = []
    for option in options:
        if typing.get_origin(option) is typing.Literal:
            found += [f"`{_plain(choice)}`" for choice in typing.get_args(option)]
        else:
            found.append(words.get(option, "`null`"))
    return ", ".join(found)


def _parts(entry: Entry) -> Iterator[str]:
    if entry.kind == "loss":
        yield from (
            "## Combine it with",
            "",
            f"- **sources of negatives**: {_links('negatives', entry.negatives)}",
            f"- **miners**: {_links('mining', entry.mining) or 'none'}",
            "- **regularizers**: all",
            "",
        )
    elif entry.kind in ("negatives", "mining"):
        taken = {"negatives": lambda e: e.negatives, "mining": lambda e: e.mining}[entry.kind]
        names = [name for name, loss in losses.names("loss").items() if entry.name in taken(loss)]
        yield from ("## Combine it with", "", f"Losses: {_links('loss', names)}.", "")
    else:
        weight = "1" if entry.mean_weight is None else f"1; {entry.mean_weight:g} with `classes: mean`"
        yield from (
            f"Its weight is {weight} unless `weight` says otherwise. It combines with every loss.",
            "",
        )


def _links(kind: Kind, names: typing.Iterable[str]) -> str:
    place = FOLDERS[kind].removeprefix("losses/")
    known = losses.names(kind)
    return ", ".join(f"[`{name}`](../{place}/{name}.md)" if name in known else f"`{name}`" for name in names)


def _cost(entry: Entry) -> Iterator[str]:
    name = {"raw": "multi-similarity"}.get(entry.name, entry.name)  # one class, two names
    labels = {"negatives": f"triplet {name}", "mining": ""}.get(entry.kind, name)
    rows = [row for row in _COSTS if labels and re.match(rf"{labels}( |$)", row["loss"])]
    if not rows:
        return
    yield from (
        "## Cost",
        "",
        "CPU time of forward and backward pass on one thread of a server (AMD EPYC), 128 embeddings of 512 "
        "numbers, four of a class; its ratio to the matrix products that no loss over all pairs avoids; peak "
        "memory; and CPU time relative to the same loss of pytorch-metric-learning, where it has it. "
        "`python benchmarks/losses.py` measures it on your machine.",
        "",
        "| loss | ms | to the limit | MiB | to pytorch-metric-learning |",
        "|---|---|---|---|---|",
    )
    for row in rows:
        peer = f"{row['to_peer']:.2f}" if "to_peer" in row else "-"
        ours = f"{row['ms']:.1f} | {row['to_limit']:.1f} | {row['mib']:.1f}"
        yield f"| {row['loss']} | {ours} | {peer} |"
    yield ""
