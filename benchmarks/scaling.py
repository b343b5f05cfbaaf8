"""The page docs/scaling.md: its tables are printed by `lookalike plan`, its figure shows the same numbers.

A comment `<!-- lookalike plan ... -->` is followed by the output of this command, `<!-- checks -->` by the
comparison of the plan with galleries and stores that were built, both up to `<!-- end -->`.

    python -m benchmarks.scaling               # compares the plan with what was built
    python -m benchmarks.scaling --page        # also writes the page and its figure
"""

from __future__ import annotations

import argparse
import json
import math
import re
import shlex
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from click.testing import CliRunner

from retrieval.commands.plan import plan
from retrieval.planning.constants import FACTS_MS
from retrieval.planning.plan import SETUPS
from retrieval.planning.sizes import bytes_text, count_text, hours_text
from retrieval.reports.figures import COLOURS, GREY, save_figure
from retrieval.text import align_columns

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "scaling.md"
FIGURE = PAGE.with_suffix(".svg")
BLOCK = re.compile(r"<!-- (lookalike plan [^\n]*|checks) -->\n.*?<!-- end -->", re.DOTALL)
DIM, MEMORY = 512, 64e9
BUILT = ("ivf-sq8", "ivf-pq", "hnsw")  # kinds whose smaller measurement is compared
# Setup -> colour and line style.
LINES = {
    "flat": (COLOURS[1], "-"),
    "postgres halfvec": (COLOURS[3], "-"),
    "qdrant int8": (COLOURS[2], "-"),
    "ivf-sq8": (COLOURS[0], "-"),
    "milvus hnsw": (COLOURS[4], "--"),
    "hnsw-rabitq": (COLOURS[5], "-"),
    "ivf-pq": (GREY, "-"),
    "ivf-disk": (COLOURS[0], "--"),
}


def page(text: str) -> str:
    """Return the page with what the commands in it print now."""

    def block(match: re.Match[str]) -> str:
        command = match[1]
        lines = checks() if command == "checks" else printed(command)
        shown = "" if command == "checks" else f"$ {command}\n"
        return f"<!-- {command} -->\n```\n{shown}{lines}```\n<!-- end -->"

    return BLOCK.sub(block, text)


def printed(command: str) -> str:
    """Return what a `lookalike plan` command prints."""
    result = CliRunner().invoke(plan, shlex.split(command)[2:], catch_exceptions=False)
    return result.output


# ---- the plan beside what was built


def checked() -> list[tuple[str, str, float, float]]:
    """Return size, quantity, planned and measured value of galleries and stores that exist."""
    rows, of = [], {setup.name: setup for setup in SETUPS}
    scale = json.loads((HERE / "gallery_scale.json").read_text())
    for size, found in scale["sizes"].items():
        count, dim = int(size), scale["dim"]
        where, setup = f"gallery, {count_text(count)} x {dim}", of[scale["kind"]]
        query = setup.search(count, dim, found["search"]["recall"])
        build = setup.build(count, dim)
        assert query is not None
        vectors = setup.vectors(count, dim)
        rows += [
            (
                where,
                "index, bytes",
                setup.index(count, dim),
                count * found["index"]["bytes_per_vector"],
            ),
            (where, "disk without index, bytes", vectors, found["import"]["disk_bytes"]),
            (where, "index, CPU hours", build / 3600, found["index"]["cpu_seconds"] / 3600),
            (where, "search, CPU ms", query.ms, found["search"]["cpu_ms"]),
        ]
    small = json.loads((HERE / "index_kinds_small.json").read_text())
    for size, kinds in small["dims"].items():
        count, dim = small["count"], int(size)
        for name in BUILT:
            where, found = f"{name}, {count:,} x {dim}", kinds[name]
            query, build = of[name].search(count, dim, 0.95), of[name].build(count, dim)
            assert query is not None
            seconds = found["train_seconds"] + found["add_seconds"] * count / 1e6
            bare = query.ms - FACTS_MS
            rows += [
                (where, "index, bytes", of[name].index(count, dim), count * found["disk_bytes"]),
                (where, "index, CPU hours", build / 3600, seconds / 3600),
                (where, "bare search, CPU ms", bare, found["search"]["0.95"]["ms"]),
            ]
    stores = json.loads((HERE / "stores.json").read_text())
    for name, sizes in stores.items():
        for size, found in sizes.items() if isinstance(sizes, dict) else ():
            count, dim = map(int, size.split(" x "))
            if "index_bytes" in found:
                planned = of[name].index(count, dim)
                rows.append((f"{name}, {count:,} x {dim}", "index, bytes", planned, found["index_bytes"]))
    return rows


def checks() -> str:
    """Return the comparison as a table."""
    rows = []
    for where, what, planned, found in checked():
        quantity, _, unit = what.partition(", ")
        text = {"bytes": bytes_text, "CPU hours": hours_text, "CPU ms": lambda ms: f"{ms:.3g} ms"}[unit]
        rows.append([where, quantity, text(planned), text(found), f"{planned / found:.2f}"])
    head = ["", "", "planned", "measured", "ratio"]
    return "\n".join([*align_columns([head, *rows], right=(2, 3, 4)), ""])


# ---- figure


def spread(places: dict[str, float], gap: float) -> dict[str, float]:
    """Return the places of labels, moved apart to a gap, around those that are too close to each other."""
    names, moved = sorted(places, key=lambda name: places[name]), dict(places)
    for _ in range(100):
        for below, above in pairwise(names):
            short = gap - (moved[above] - moved[below])
            if short > 0:
                moved[below] -= short / 2
                moved[above] += short / 2
    return moved


def draw(figure: Figure) -> None:
    """Draw the memory of each setup over the number of images."""
    axes = figure.add_subplot()
    known = {setup.name: setup for setup in SETUPS}
    counts = [10 ** (5 + step / 10) for step in range(51)]
    ends = {name: known[name].memory(int(counts[-1]), DIM) for name in LINES}
    places = spread({name: math.log10(size) for name, size in ends.items()}, 0.33)
    for name, (colour, style) in LINES.items():
        sizes = [known[name].memory(int(count), DIM) for count in counts]
        axes.loglog(counts, sizes, color=colour, linestyle=style, linewidth=2)
        axes.text(1.15e10, 10 ** places[name], name, color=colour, verticalalignment="center")
    for machines in (1, 10, 100):
        line = 0.9 * machines * MEMORY
        axes.axhline(line, color=GREY, linewidth=0.8, linestyle=":")
        label = f"{machines} machine{'s' if machines > 1 else ''} of {bytes_text(MEMORY)}"
        axes.text(1.2e5, line * 1.1, label, color=GREY, fontsize=9)
    axes.set_xlim(1e5, 1e10)
    axes.set_ylim(1e6, 1e14)
    ticks = [10.0**power for power in range(6, 15, 2)]
    axes.set_yticks(ticks, [bytes_text(tick) for tick in ticks])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.set_xlabel("images")
    axes.set_ylabel("memory for fast searches, all machines")
    axes.set_title(f"Memory at {DIM} dimensions")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--page", action="store_true", help="write the page and its figure")
    args: Any = parser.parse_args()
    print(checks(), end="")
    if args.page:
        PAGE.write_text(page(PAGE.read_text()))
        save_figure(draw, 8.5, 5.5, FIGURE)


if __name__ == "__main__":
    main()
