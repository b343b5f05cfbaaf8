"""A plan as lines of text, at most 100 columns wide."""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Iterator, Sequence

from retrieval.planning.constants import Number, cited
from retrieval.planning.estimates import Estimate, Need
from retrieval.planning.plan import Plan
from retrieval.planning.sizes import bytes_text, count_text, hours_text, rate_text
from retrieval.stores.address import FORMS
from retrieval.text import align_columns

WIDTH = 100
HEAD = ("setup", "memory", "B/vector", "disk", "build", "CPU ms", "q/s/core", "latency", "machines", "recall")
_PAGES = {
    "embedded": "docs/gallery_scale.md",
    "on disk": "docs/scaling.md",
    "postgres": "docs/stores.md",
    "qdrant": "docs/stores.md",
    "milvus": "docs/stores.md",
}


def plan_lines(plan: Plan, after: Plan | None) -> Iterator[str]:
    """Yield a plan as lines: what is asked for, indexing, the setups, the recommended one, the next step."""
    need, indexing = plan.need, plan.indexing
    yield from _wrapped(
        f"{count_text(need.images)} images x {need.dim} dimensions, recall {need.recall:g}, "
        f"{need.qps:g} searches a second, machines of {bytes_text(need.memory)} and {need.cores} cores"
    )
    yield ""
    yield from align_columns(indexing_rows(plan))
    yield ""
    yield from setup_table(plan)
    yield ""
    if plan.recommended is not None:
        yield from _wrapped(f"Recommended: {plan.recommended.setup}: {plan.reason}.")
        yield f"  {build_command(plan.need, plan.recommended)}"
        yield from _wrapped(plan.recommended.advice, "    ", "  ")
        for driver in plan.drivers:
            yield from _wrapped(f"- {driver}", "  ")
        if after is not None:
            yield from _wrapped(f"Next: {step_text(plan, after)}")
    yield from _wrapped(
        "build and CPU ms, of a search, are times of one core; latency is without the network. Bytes follow "
        "from file formats and published formulas, times from measurements at other sizes; --verbose names "
        f"the source of each number. The GPU's speed is {indexing.gpu_rate.basis}, not measured here."
    )


def summary_lines(plans: Sequence[Plan]) -> Iterator[str]:
    """Yield the recommended setups of several sizes, one line each."""
    need = plans[0].need
    yield from _wrapped(
        f"{need.dim} dimensions, recall {need.recall:g}, {need.qps:g} searches a second of at most "
        f"{hours_text(need.latency / 3.6e6)}, machines of {bytes_text(need.memory)} and {need.cores} cores"
    )
    yield ""
    head = ["images", "setup", "machines", "for", "memory", "disk", "embedding", "index", "latency"]
    rows = [head, *(_summary_row(plan) for plan in plans)]
    yield from align_columns(rows, right=(0, 2, 4, 5, 6, 7, 8))
    yield ""
    yield "embedding and index are hours of one of these machines; memory is that of one copy."


def _summary_row(plan: Plan) -> list[str]:
    best, images = plan.recommended, count_text(plan.need.images)
    if best is None or best.machines is None:
        return [images, "none", *["-"] * 7]
    return [
        images,
        best.setup,
        f"{best.machines.value:,.0f}",
        best.bound,
        bytes_text(best.memory.value),
        bytes_text(best.disk),
        hours_text(plan.indexing.machine_hours.value),
        "?" if best.build is None else hours_text(best.build.value / plan.need.cores),
        "?" if best.latency is None else hours_text(best.latency.value / 3.6e6),
    ]


def indexing_rows(plan: Plan) -> list[list[str]]:
    """Return the rows about decoding and embedding."""
    need, indexing = plan.need, plan.indexing
    ms = f"{indexing.decode_ms.value:.3g} + {indexing.embed_ms.value:.3g} ms an image"
    return [
        ["decode + embed", hours_text(indexing.core_hours.value), f"of one core ({ms})"],
        ["", hours_text(indexing.machine_hours.value), f"of one machine of {need.cores} cores"],
        [
            "",
            hours_text(indexing.gpu_hours.value),
            f"of one GPU ({rate_text(indexing.gpu_rate.value)} images/s; "
            f"{indexing.decoding_cores.value:.2g} cores decode for it)",
        ],
        [
            "query images",
            f"{indexing.query_cores.value:.2g} cores",
            f"decode and embed {need.qps:g} query images a second",
        ],
    ]


def setup_table(plan: Plan) -> Iterator[str]:
    """Yield the setups that fit as a table, and the others as one line for each reason."""
    fitting = [each for each in plan.estimates if each.fits]
    if fitting:
        rows = [list(HEAD), *(estimate_row(each) for each in fitting)]
        yield from align_columns(rows, right=range(1, len(HEAD)))
    if not all(each.is_built for each in fitting):
        yield "* for comparison: `index build` does not build it"
    yield from problem_lines(plan.estimates)


def estimate_row(each: Estimate) -> list[str]:
    """Return the cells of a setup."""
    return [
        each.setup if each.is_built else f"{each.setup}*",
        bytes_text(each.memory.value),
        f"{each.bytes_per_vector.value:,.{0 if each.bytes_per_vector.value >= 10 else 2}f}",
        bytes_text(each.disk),
        "?" if each.build is None else hours_text(each.build.value),
        _optional(each.search_ms),
        _optional(each.searches_per_core),
        "?" if each.latency is None else hours_text(each.latency.value / 3.6e6),
        "-" if each.machines is None else f"{each.machines.value:,.0f}",
        "-" if each.recall is None else f"{each.recall.value:.4g}",
    ]


def problem_lines(estimates: Sequence[Estimate]) -> Iterator[str]:
    """Yield why the other setups do not fit, those of the same engine together."""
    large: defaultdict[str, list[str]] = defaultdict(list)
    for each in estimates:
        if each.problem:
            what, found, size = each.problem.partition("needs one machine of ")
            large["needs one machine of" if found else what].append(f"{each.setup} {size}".strip())
    for reason, names in large.items():
        colon = f"{reason}: " if not reason.endswith("of") else f"{reason} more memory: "
        yield from _wrapped(f"not possible, {colon}{', '.join(names)}", "  ")


def build_command(need: Need, best: Estimate) -> str:
    """Return the command that builds a gallery in a setup."""
    command = "lookalike index build GALLERY IMAGES --model MODEL"
    if best.engine == "embedded":
        usable = cited("usable_memory").value * need.memory
        return f"{command} --recall {need.recall:g} --memory {bytes_text(usable).replace(' ', '')}"
    if best.engine == "on disk":
        return f"{command} --recall {need.recall:g} --kind {best.setup}"
    store = "postgresql" if best.engine == "postgres" else best.engine
    address = FORMS[store].partition(" or ")[0]
    return " ".join(filter(None, [command, best.options, f"--store {address}"]))


def step_text(plan: Plan, after: Plan) -> str:
    """Return what to change for ten times the images."""
    size = count_text(after.need.images)
    here, there = plan.recommended, after.recommended
    if there is None or here is None:
        return f"at {size} images nothing fits into such machines; take larger ones."
    machines = f"{there.machines.value:,.0f}" if there.machines else "?"
    machines += " machine" if machines == "1" else " machines"
    if here.setup == there.setup:
        return f"at {size} images, the same setup on {machines}."
    page = "" if here.engine == there.engine else f"; see {_PAGES[there.engine]}"
    return f"at {size} images, {there.setup} on {machines}, for {there.bound}{page}."


def source_lines(plan: Plan) -> Iterator[str]:
    """Yield where each number comes from: its basis, and the number of a source in the list below."""
    sources: list[str] = []

    def origin(number: Number | None) -> str:
        if number is None:
            return "not known"
        if number.source not in sources:
            sources.append(number.source)
        return f"{number.basis} {sources.index(number.source) + 1}"

    indexing = plan.indexing
    yield ""
    rows = [["", "decoding", "embedding", "GPU"]]
    numbers = (indexing.decode_ms, indexing.embed_ms, indexing.gpu_rate)
    rows.append(["an image", *map(origin, numbers)])
    yield from align_columns(rows)
    yield ""
    rows = [["setup", "memory", "disk: vectors", "disk: index", "build", "search"]]
    for each in plan.estimates:
        found = (each.memory, each.disk_vectors, each.disk_index, each.build, each.search_ms)
        rows.append([each.setup, *map(origin, found)])
    yield from align_columns(rows)
    yield ""
    yield from _wrapped(
        "Latency adds reads from disk to the search; machines follow from memory, cores and disk reads; the "
        "recall is the one asked for, which is measured when an index is built.",
    )
    for number, source in enumerate(sources, start=1):
        yield from _wrapped(f"{number}. {source}", "    ")


def _optional(number: Number | None) -> str:
    return "?" if number is None else rate_text(number.value)


def _wrapped(text: str, indent: str = "", first: str = "") -> list[str]:
    """Return text as lines of at most `WIDTH` columns, if its words allow it."""
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
