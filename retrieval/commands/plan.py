"""`lookalike plan`: what a gallery of any size takes, before it is built."""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from retrieval.cli import json_option, print_result
from retrieval.commands.options import parse_size
from retrieval.errors import InputError
from retrieval.model.embedder import Embedder
from retrieval.planning.constants import DECODE_MS, EMBED_MS, USABLE_MEMORY
from retrieval.planning.plan import HIGHEST, SETUPS, Estimate, Need, estimate, least_memory, reason, recommend
from retrieval.planning.sizes import bytes_text, count_text, hours_text, parse_count, rate_text
from retrieval.stores.opening import find_driver
from retrieval.text import align_columns

_WIDTH = 100


def _value(parse: Callable[[str], int]) -> Callable[[str], int]:
    def read(text: str) -> int:
        try:
            return parse(text)
        except ValueError as error:
            raise click.BadParameter(str(error)) from error

    return read


@click.command()
@click.option(
    "--images",
    required=True,
    multiple=True,
    type=_value(parse_count),
    metavar="COUNT",
    help="Number of images: 1e9, 250k, 30M, 1B or 10^8. Repeatable, for one line per size.",
)
@click.option(
    "--dim", type=int, metavar="D", help="Dimension of the vectors.  [default: of --model, else 512]"
)
@click.option(
    "--recall",
    type=float,
    default=0.95,
    show_default=True,
    help="Share of the 10 nearest neighbours that a search must find.",
)
@click.option(
    "--memory",
    type=parse_size,
    default="64GB",
    show_default=True,
    metavar="SIZE",
    help="Memory of a machine.",
)
@click.option("--cores", type=click.IntRange(1), default=16, show_default=True, help="Cores of a machine.")
@click.option(
    "--qps",
    type=click.FloatRange(0, min_open=True),
    default=10,
    show_default=True,
    help="Searches per second, of all clients.",
)
@click.option(
    "--latency",
    type=click.FloatRange(0, min_open=True),
    default=1000,
    show_default=True,
    metavar="MS",
    help="Most milliseconds that a search may take, without the network.",
)
@click.option(
    "--disk-speed",
    type=parse_size,
    default="2GB",
    show_default=True,
    metavar="SIZE",
    help="Bytes that the disk of a machine reads in a second.",
)
@click.option(
    "--model",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Model file: take the dimension from it.",
)
@json_option
def plan(
    images: tuple[int, ...],
    dim: int | None,
    recall: float,
    memory: int,
    cores: int,
    qps: float,
    latency: float,
    disk_speed: int,
    model: Path | None,
    as_json: bool,
) -> None:
    """Plan a gallery of up to 10^11 images: memory, disk, time and machines of each index kind and store.

    The numbers come from the benchmarks of this project and from what the stores publish; for other sizes
    from formulas. docs/scaling.md names their sources and how far to trust them. Search times hold for
    clustered vectors, as trained embeddings are; vectors without clusters take many times as long.

    \b
      lookalike plan --images 1e6
      lookalike plan --images 1e9 --dim 512 --recall 0.95 --memory 64GB --qps 200
      lookalike plan --images 1e6 --images 1e7 --images 1e8
      lookalike plan --images 30M --model model.onnx --json

    docs/scaling.md goes through the sizes from 10^5 to 10^10.
    """
    if model is not None:
        found = Embedder(model).dim
        if dim is not None and dim != found:
            raise InputError(f"--dim: {dim} is not {found}, the dimension of {model}; leave it out")
        dim = found
    needs = [
        Need(count, 512 if dim is None else dim, recall, memory, cores, qps, latency, disk_speed)
        for count in images
    ]
    plans = [[estimate(setup, need) for setup in SETUPS] for need in needs]
    facts = [_facts(need, estimates) for need, estimates in zip(needs, plans, strict=True)]
    if len(needs) > 1:
        print_result(facts, as_json, list(_summary(needs, plans)))
    elif recommend(plans[0]):
        print_result(facts[0], as_json, list(_lines(needs[0], plans[0])))
    else:
        raise InputError(_no_setup(needs[0], plans[0]))


def _facts(need: Need, estimates: Sequence[Estimate]) -> dict[str, Any]:
    """Return a plan as JSON values: bytes, hours of one core, milliseconds."""
    best = recommend(estimates)
    setups = [
        vars(each) | {"setup": each.setup.name, "engine": each.setup.engine, "disk": each.disk}
        for each in estimates
    ]
    return {
        "need": asdict(need),
        "embedding_hours": need.embedding_hours,
        "setups": setups,
        "recommended": best and best.setup.name,
        "reason": reason(best, estimates) if best else "",
    }


def _lines(need: Need, estimates: Sequence[Estimate]) -> Iterator[str]:
    """Yield a plan as lines: what is asked for, indexing, the setups, the recommended one."""
    yield from _wrapped(
        f"{count_text(need.images)} images x {need.dim} dimensions, recall {need.recall:g}, "
        f"{need.qps:g} searches a second, machines of {bytes_text(need.memory)} and {need.cores} cores"
    )
    yield ""
    ms = f"{DECODE_MS:.3g} + {EMBED_MS:.3g} ms an image"
    machine = hours_text(need.embedding_hours / need.cores)
    queries = need.qps * (DECODE_MS + EMBED_MS) / 1000
    yield from align_columns(
        [
            ["decode + embed", hours_text(need.embedding_hours), f"of one core ({ms})"],
            ["", machine, f"of one machine of {need.cores} cores"],
            ["query images", f"{queries:.2g} cores", f"decode and embed {need.qps:g} images a second"],
        ]
    )
    yield ""
    head = ["setup", "memory", "disk", "build", "CPU ms", "latency", "machines", "for"]
    rows = [head, *(_row(each) for each in estimates if not each.problem)]
    yield from align_columns(rows, right=range(1, len(head) - 1))
    yield from _problems(estimates)
    best = recommend(estimates)
    if best:
        yield ""
        yield from _wrapped(f"Recommended: {best.setup.name}: {reason(best, estimates)}.")
        yield f"  {_command(need, best)}"
        yield from _wrapped(best.setup.advice, "    ", "  ")
    yield from _wrapped(
        "build and CPU ms, of a search, are times of one core; latency is without the network. Bytes follow "
        "from file formats and published formulas, times from measurements at other sizes."
    )


def _row(each: Estimate) -> list[str]:
    return [
        each.setup.name,
        bytes_text(each.memory),
        bytes_text(each.disk),
        hours_text(each.build_hours),
        rate_text(each.search_ms),
        hours_text(each.latency_ms / 3.6e6),
        f"{each.machines:,}",
        each.bound,
    ]


def _problems(estimates: Sequence[Estimate]) -> Iterator[str]:
    """Yield why the other setups do not fit, those of the same reason together."""
    names: defaultdict[str, list[str]] = defaultdict(list)
    for each in estimates:
        if each.problem:
            why, larger, size = each.problem.partition("needs one machine of ")
            names[f"{larger}more memory" if larger else why].append(f"{each.setup.name} {size}".strip())
    for why, which in names.items():
        yield from _wrapped(f"not possible, {why}: {', '.join(which)}", "  ")


def _summary(needs: Sequence[Need], plans: Sequence[Sequence[Estimate]]) -> Iterator[str]:
    """Yield the recommended setups of several sizes, one line each."""
    need = needs[0]
    yield from _wrapped(
        f"{need.dim} dimensions, recall {need.recall:g}, {need.qps:g} searches a second of at most "
        f"{hours_text(need.latency / 3.6e6)}, machines of {bytes_text(need.memory)} and {need.cores} cores"
    )
    yield ""
    rows = [["images", "setup", "machines", "for", "memory", "disk", "embedding", "index", "latency"]]
    for need, estimates in zip(needs, plans, strict=True):
        best = recommend(estimates)
        if best is None:
            rows.append([count_text(need.images), "none", *["-"] * 7])
            continue
        name, memory, disk, _, _, latency, machines, bound = _row(best)
        hours = hours_text(need.embedding_hours / need.cores), hours_text(best.build_hours / need.cores)
        rows.append([count_text(need.images), name, machines, bound, memory, disk, *hours, latency])
    yield from align_columns(rows, right=(0, 2, 4, 5, 6, 7, 8))
    yield ""
    yield "embedding and index are hours of one of these machines; memory is that of one copy."


def _command(need: Need, best: Estimate) -> str:
    """Return the command that builds a gallery in a setup."""
    command, engine = "lookalike index build GALLERY IMAGES --model MODEL", best.setup.engine
    if engine == "embedded":
        usable = bytes_text(USABLE_MEMORY * need.memory).replace(" ", "")
        return f"{command} --recall {need.recall:g} --memory {usable}"
    if engine == "on disk":
        return f"{command} --recall {need.recall:g} --kind {best.setup.name}"
    address = find_driver(engine).form.partition(" or ")[0]
    return " ".join(filter(None, [command, best.setup.options, f"--store {address}"]))


def _no_setup(need: Need, estimates: Sequence[Estimate]) -> str:
    """Return what would serve a need that nothing serves."""
    if need.recall > HIGHEST:
        why = f"{need.recall:g} needs exact search, and with flat {estimates[0].problem}"
        return f"--recall: {why}; ask for {HIGHEST:g} or less"
    least = least_memory(need)
    works = f"--memory {bytes_text(least).replace(' ', '')} works" if least else ""
    return (
        f"--memory: nothing serves {need.images:,} images in machines of {bytes_text(need.memory)}; "
        f"{works or 'ask for less --qps or more --latency'}"
    )


def _wrapped(text: str, indent: str = "", first: str = "") -> list[str]:
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
