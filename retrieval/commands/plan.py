"""`lookalike plan`: what a gallery of any size takes, before it is built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from retrieval.cli import json_option, print_result
from retrieval.commands.device_options import runtime_options
from retrieval.commands.options import parse_size
from retrieval.errors import InputError
from retrieval.model.embedder import Embedder
from retrieval.model.runtime import Runtime
from retrieval.planning.constants import Number, measured
from retrieval.planning.costs import HIGHEST
from retrieval.planning.estimates import Estimate, Need
from retrieval.planning.plan import Plan, least_memory, make_plan, next_step
from retrieval.planning.sizes import bytes_text, parse_count
from retrieval.planning.tables import plan_lines, source_lines, summary_lines
from retrieval.planning.timing import measure_images


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
    "--gpu-images-per-second",
    "gpu_rate",
    type=click.FloatRange(0, min_open=True),
    metavar="N",
    help="Images per second that your GPU embeds, from `lookalike model info MODEL --device cuda`.  "
    "[default: a published number for ResNet-50 on an A100]",
)
@click.option(
    "--model",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Model file: take the dimension from it.",
)
@click.option(
    "--measure",
    "folder",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="FOLDER",
    help="Measure decoding and embedding here, with --model and images of FOLDER, for a few seconds.",
)
@click.option("--verbose", is_flag=True, help="Name the source of each number.")
@runtime_options
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
    gpu_rate: float | None,
    model: Path | None,
    folder: Path | None,
    verbose: bool,
    runtime: Runtime,
    as_json: bool,
) -> None:
    """Plan a gallery of up to 10^11 images: memory, disk, time and machines of each index kind and store.

    The numbers come from the benchmarks of this project and from what the stores publish; for other sizes
    from formulas. --verbose and --json name the source of each. Search times hold for clustered vectors, as
    trained embeddings are; vectors without clusters take many times as long.

    \b
      lookalike plan --images 1e6
      lookalike plan --images 1e9 --dim 512 --recall 0.95 --memory 64GB --qps 200
      lookalike plan --images 1e6 --images 1e7 --images 1e8
      lookalike plan --images 30M --model model.onnx --measure shop --json

    docs/scaling.md goes through the sizes from 10^5 to 10^10.
    """
    if folder is not None and model is None:
        raise InputError("--measure: needs a model to run; add --model model.onnx")
    decode = embed = None
    if model is not None:
        embedder = Embedder.open(model, runtime)
        if dim is not None and dim != embedder.dim:
            raise InputError(f"--dim: {dim} is not {embedder.dim}, the dimension of {model}; leave it out")
        dim = embedder.dim
        if folder is not None:
            decode, embed = measure_images(embedder, folder)
    constants = measured()
    plans = [
        make_plan(
            Need(
                images=count,
                dim=512 if dim is None else dim,
                recall=recall,
                memory=memory,
                cores=cores,
                qps=qps,
                latency=latency,
                disk_speed=disk_speed,
                decode_ms=decode,
                embed_ms=embed,
                gpu_rate=gpu_rate,
            ),
            constants,
        )
        for count in images
    ]
    if len(plans) > 1:
        print_result([plan_facts(each, None) for each in plans], as_json, list(summary_lines(plans)))
        return
    (found,) = plans
    if found.recommended is None:
        raise InputError(_no_setup(found))
    after = next_step(found, constants)
    lines = [*plan_lines(found, after), *(source_lines(found) if verbose else ())]
    print_result(plan_facts(found, after), as_json, lines)


def plan_facts(found: Plan, after: Plan | None) -> dict[str, Any]:
    """Return a plan as JSON values; every number has its unit, basis and source."""
    need = {name: value for name, value in asdict(found.need).items() if not name.endswith(("_ms", "_rate"))}
    return {
        "need": need,
        "indexing": asdict(found.indexing),
        "setups": [_estimate_facts(each) for each in found.estimates],
        "recommended": found.recommended and found.recommended.setup,
        "reason": found.reason,
        "drivers": list(found.drivers),
        "next": after
        and {
            "images": after.need.images,
            "recommended": after.recommended and after.recommended.setup,
            "machines": after.recommended and after.recommended.machines and after.recommended.machines.value,
            "reason": after.reason,
        },
    }


def _estimate_facts(each: Estimate) -> dict[str, Any]:
    facts = asdict(each)
    disk = each.disk_vectors, each.disk_index
    basis = max(disk, key=lambda number: number.basis)
    facts["disk"] = asdict(Number(each.disk, "bytes", basis.basis, basis.source))
    return facts


def _no_setup(found: Plan) -> str:
    """Return what would serve a need that nothing serves."""
    need, exact = found.need, next(each for each in found.estimates if each.setup == "flat")
    if need.recall > HIGHEST:
        why = f"{need.recall:g} needs exact search, and with flat {exact.problem}"
        return f"--recall: {why}; ask for {HIGHEST:g} or less"
    least = least_memory(need, measured())
    advice = (
        f"--memory {bytes_text(least).replace(' ', '')} works"
        if least
        else "ask for less --qps or more --latency"
    )
    return (
        f"--memory: nothing serves {need.images:,} images in machines of {bytes_text(need.memory)}; {advice}"
    )
