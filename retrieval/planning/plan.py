"""A plan: what every setup takes for a gallery, which one is recommended, what changes at the next size."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from retrieval.planning.constants import Measured
from retrieval.planning.estimates import MOST_IMAGES, Estimate, Indexing, Need, estimate, estimate_indexing
from retrieval.planning.setups import ENGINES, setups
from retrieval.planning.sizes import bytes_text, hours_text

_WORTH = 2  # times the fewest machines that a simpler engine may need
_ABOUT_EQUAL = 1.25  # ratio of times below which the smaller index is preferred, as `index build` does


@dataclass(frozen=True)
class Plan:
    """Estimates for a need.

    Attributes:
        need: What is asked for.
        indexing: Decoding and embedding.
        estimates: One per setup, from the simplest engine.
        recommended: The setup to use; `None` if none can serve the need.
        reason: Why.
        drivers: What dominates time and machines, the largest first.
    """

    need: Need
    indexing: Indexing
    estimates: Sequence[Estimate]
    recommended: Estimate | None
    reason: str
    drivers: Sequence[str]


def make_plan(need: Need, constants: Measured) -> Plan:
    """Return the plan for a need."""
    indexing = estimate_indexing(need, constants)
    estimates = [estimate(setup, need, constants) for setup in setups(constants)]
    best = recommend(estimates)
    drivers = list(cost_drivers(need, indexing, best)) if best else []
    return Plan(need, indexing, estimates, best, _reason(best, estimates) if best else "", drivers)


def next_step(plan: Plan, constants: Measured) -> Plan | None:
    """Return the plan for ten times the images; `None` beyond the largest."""
    images = 10 * plan.need.images
    return make_plan(replace(plan.need, images=images), constants) if images <= MOST_IMAGES else None


def least_memory(need: Need, constants: Measured) -> int | None:
    """Return a memory of machines, a power of two in GB, with which some setup serves the need."""
    sizes = [2**power * 10**9 for power in range(15)]
    larger = (size for size in sizes if size > need.memory)
    return next(
        (size for size in larger if make_plan(replace(need, memory=size), constants).recommended), None
    )


def recommend(estimates: Sequence[Estimate]) -> Estimate | None:
    """Return the setup to use.

    It is of the simplest engine that needs at most twice the machines of the best one. Among the setups of
    this engine with the fewest machines, the fastest wins; of times within a quarter, the smaller one.
    """
    fitting = [each for each in estimates if each.fits and each.machines and each.is_built]
    if not fitting:
        return None
    fewest = min(_machines(each) for each in fitting)
    for engine in ENGINES:
        of_engine = [each for each in fitting if each.engine == engine]
        least = min(map(_machines, of_engine), default=math.inf)
        if least <= _WORTH * fewest:
            best = [each for each in of_engine if _machines(each) == least]
            fastest = min(map(_search_ms, best))
            return min(best, key=lambda each: _order(each, fastest))
    raise AssertionError("an engine has the fewest machines")


def _machines(each: Estimate) -> float:
    return each.machines.value if each.machines else math.inf


def _search_ms(each: Estimate) -> float:
    assert each.search_ms is not None, f"{each.setup} is recommended without a time"
    return each.search_ms.value


def _order(each: Estimate, fastest: float) -> tuple[float, float]:
    return int(math.log(_search_ms(each) / fastest, _ABOUT_EQUAL)), each.memory.value


def _reason(best: Estimate, estimates: Sequence[Estimate]) -> str:
    """Return why a setup is recommended."""
    machines = int(_machines(best))
    where = "one machine" if machines == 1 else f"{machines:,} machines"
    if machines > 1 and best.engine in ("embedded", "on disk"):
        where += ", each with all vectors"
    simpler = [each for each in estimates if ENGINES.index(each.engine) < ENGINES.index(best.engine)]
    if best.engine == "embedded":
        fastest = "the fastest that fits" if machines == 1 else "the fewest machines"
        return f"{fastest} into {where}; one process and its files, nothing else to run"
    fitting = [each for each in simpler if each.fits]
    if not fitting:
        return f"{where}; no simpler engine holds so many vectors and is as fast"
    other = min(fitting, key=_machines)
    others = f"{int(_machines(other)):,} with {other.setup}, which needs them for {other.bound}"
    return f"{where} instead of {others}"


def cost_drivers(need: Need, indexing: Indexing, best: Estimate) -> Iterator[str]:
    """Yield what dominates time and machines, for the recommended setup."""
    embed, build = indexing.core_hours.value, best.build.value if best.build else 0.0
    share = 100 * embed / (embed + build)
    part = "decoding and embedding" if share >= 50 else "building the index"
    share = max(share, 100 - share)
    yield f"before the first search: {part}, {share:.0f} % of {hours_text(embed + build)} of one core"
    search, query = need.qps * _search_ms(best) / 1000, indexing.query_cores.value
    larger = "embedding the query images" if query > search else "searching the index"
    most, both = max(query, search), query + search
    yield f"each second: {larger}, {most:.3g} of {both:.3g} cores for {need.qps:g} searches"
    if _machines(best) > 1:
        yield f"machines: {best.bound}"
    elif best.disk > 10 * best.memory.value:
        yield f"storage: {bytes_text(best.disk)} on disk, {bytes_text(best.memory.value)} in memory"
