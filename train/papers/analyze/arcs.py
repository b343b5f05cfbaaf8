"""Figures of LoOp's closest points of two arcs: arcs, arc-cases."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import click

from retrieval import text
from retrieval.errors import InputError
from train.papers.analyze.figure_options import Drawing, batch_options, figure_command

if TYPE_CHECKING:
    from train.papers.analyze.sources import EmbeddingSource


@figure_command("arcs")
@click.option(
    "--case", type=click.IntRange(0, 8), help="Problem whose closest points are of this case, as in table 1."
)
@click.option("--seed", type=click.IntRange(min=0), help="Random problem with this seed, in place of --case.")
@click.option("--steps", type=click.IntRange(min=1), help="Number of gradient steps, by default 3.")
@click.option("--step", "size", type=float, help="Learning rate of the steps, by default 0.02.")
def arcs(case: int | None, seed: int | None, steps: int | None, size: float | None) -> Drawing:
    """Draw the closest points of two arcs, and how a step moves their ends.

    LoOp replaces the negatives of two pairs by the closest points p1 and p2 of their arcs on the sphere. Each
    point is an end of its arc or between the ends, which makes nine cases, numbered as in table 1 of the
    paper. Without --case and --seed the figure has one problem of each case (LoOp, figures 1 and 2). Case 0
    has crossing arcs, because in three dimensions no others have closest points between the ends.

    With --case or --seed it shows one problem, and where gradient descent moves its four samples for each of
    the nine choices of p1 and p2 (supplement, figures 3 and 4: --case 5 and --case 1; the paper prints no
    coordinates). A point between the ends is the middle of the arc, except for the closest points themselves,
    in bold. The loss is |x1 - x2|² - |p1 - p2|² + margin, where it is above 0. Good choices bring x1 and x2
    together, and do not move y1 and y2 apart. Positions after the last step are hollow.

    \b
      lookalike analyze arcs --out cases.svg
      lookalike analyze arcs --case 5 --out x1-y1.svg
      lookalike analyze arcs --seed 7 --steps 10 --out random.svg
    """
    from train.papers import arc_problems as analysis

    if case is not None and seed is not None:
        raise InputError("--case and --seed name two problems; give one of them")
    if case is None and seed is None:
        if steps is not None or size is not None:
            raise InputError("--steps and --step move the samples of one problem; also give --case or --seed")
        problems = [analysis.problem_of_case(number) for number in range(9)]
        rows = [["case", "distance of p1 and p2"], *([str(p.case), f"{p.distance:.3f}"] for p in problems)]
        return Drawing(
            plot=partial(analysis.draw_cases, problems),
            size=(10, 9),
            facts=[problem.to_dict() for problem in problems],
            text="\n".join(text.align_columns(rows, right={0, 1})),
        )
    problem = analysis.problem_of_case(case) if case is not None else analysis.random_problem(seed or 0)
    updates = analysis.arc_updates(
        problem, steps=steps or analysis.STEPS, size=analysis.STEP if size is None else size
    )
    rows = [["case", "p1 to p2", "x1 to x2", "y1 to y2", "arc to arc", ""]]
    for one in updates:
        changes = (one.positive_change, one.negative_change, one.arcs_change)
        cells = [f"{one.distance:.3f}", *(f"{change:+z.3f}" for change in changes)]
        rows.append([str(one.case), *cells, "closest points" if one.case == problem.case else ""])
    lines = [
        f"{problem.name}: the closest points are case {problem.case}, at distance {problem.distance:.3f}",
        "choice of p1 and p2, their distance, and the changes of three distances:",
        *text.align_columns(rows, right=range(5)),
    ]
    return Drawing(
        plot=partial(analysis.draw_updates, problem, updates),
        size=(10, 9.6),
        facts={"problem": problem.to_dict(), "choices": [update.to_dict() for update in updates]},
        text="\n".join(lines),
    )


@figure_command("arc-cases", sources="several", baseline=True)
@batch_options
def arc_cases(sources: list[EmbeddingSource], classes: int, per_class: int, seed: int) -> Drawing:
    """Draw which of LoOp's nine cases has the closest points in a batch.

    A batch is sampled, and its images form alternate pairs: the first and the second image of a class, the
    third and the fourth, and so on. For every two pairs of different classes the closest points of their arcs
    are found, as by the losses with `negatives: optimal`. Bars show the share of each case, in the numbering
    of table 1 of the paper: left over all combinations of pairs, right over the nearest pair of another class
    for each pair (algorithm 1). In cases 5 to 8 both points are images: LoOp then only selects a negative. In
    the others it generates a synthetic one.

    Several sources are drawn side by side. `analyze arcs` shows the cases.

    \b
      lookalike analyze arc-cases run --data folder:shop --baseline untrained --out arc-cases.svg
      lookalike analyze arc-cases shop.npz --classes 8 --per-class 4 --out arc-cases.svg
    """
    from train.papers import arc_cases as analysis

    batches = [
        source.embed(split).sample_batch(classes=classes, per_class=per_class, seed=seed)
        for source in sources
        for split in source.splits
    ]
    found = [analysis.case_shares(batch) for batch in batches]
    rows = [["embeddings", "pairs", "of", *map(str, range(9)), *found[0].by_kind()]]
    for one in found:
        for title, shares, place in (("combinations", one.every, 0), ("nearest", one.nearest, 1)):
            kinds = [f"{100 * shares_of[place]:.1f}%" for shares_of in one.by_kind().values()]
            rows.append([one.name, f"{one.pairs:,}", title, *(f"{100 * x:.1f}" for x in shares), *kinds])
    return Drawing(
        plot=partial(analysis.draw_case_shares, found),
        size=(11, 4.6 + 0.2 * len(found)),
        facts=[one.to_dict() for one in found],
        text="\n".join(text.align_columns(rows, right={1, *range(3, 15)})),
    )
