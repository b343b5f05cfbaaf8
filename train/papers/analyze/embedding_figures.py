"""Figures of embeddings: embed, triplets, spectrum, tsne, heatmap."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from retrieval import text
from retrieval.commands.device_options import runtime_options
from retrieval.errors import InputError
from retrieval.reports.figures import caption
from train.papers.analyze.figure_options import (
    Drawing,
    figure_command,
    finish,
    out_option,
    source_parameters,
)

if TYPE_CHECKING:
    from retrieval.analysis.embeddings import Embeddings
    from retrieval.analysis.tsne import TsneMap
    from retrieval.model.runtime import Runtime
    from train.papers.analyze.sources import EmbeddingSource
    from train.papers.synthetic import PointSource

_MOST_COLUMNS = 4
_MOST_MAPS = 12
_MOST_RESULTS = 5


@click.command("embed", params=source_parameters("one", "test", baseline=False))
@click.option("--untrained", is_flag=True, help="Embed with the network before training.")
@runtime_options
@out_option("The embeddings", ".npz")
@click.pass_context
def embed(
    ctx: click.Context,
    target: Path,
    data: str | None,
    split: str | None,
    which: str | None,
    untrained: bool,
    runtime: Runtime,
    out: Path,
) -> None:
    """Write the embeddings of images to a file.

    The .npz file has the arrays `embeddings`, float32 [N, D] of unit length; `labels` and `paths`, strings
    [N]; and `synthetic`, bool [N] (here always false). NumPy reads it, and the other commands take it in
    place of a run or a model.

    \b
      lookalike analyze embed run --data folder:shop --out shop.npz
      lookalike analyze tsne shop.npz --out map.svg
    """
    from train.papers.analyze.sources import open_sources

    if untrained and which:
        raise click.UsageError("--untrained is the network before training; leave out --which")
    chosen = [which] if which else []
    source = open_sources([target], data, split, untrained=untrained, which=chosen, runtime=runtime)[0]
    source.embed(source.splits[0]).save(out)
    finish(ctx, [source], [out])


@figure_command("triplets", sources="several", split="both", baseline=True)
@click.option("--moves", is_flag=True, help="Draw two sources as before and after, in one panel.")
@click.option("--strategies", is_flag=True, help="Draw the triplets of five mining strategies.")
@click.option("--seed", default=0, show_default=True, help="Seed of the random images of --strategies.")
def triplets(sources: list[EmbeddingSource], moves: bool, strategies: bool, seed: int) -> Drawing:
    """Draw each image by its similarity to its own class and to other classes.

    SCT, figs. 1 and 7. Every image is a point. x: cosine with its easiest positive, the most similar image of
    its class. y: cosine with its hardest negative, the most similar image of another class. Above the
    diagonal are the hard triplets: their nearest image has the wrong class. Their share is 1 - Recall@1.
    Training and test images have a panel each, which shows how well the embedding generalizes to new classes.
    Several sources, such as runs with different losses, are drawn side by side with the same axes.

    --baseline untrained shows each run before and after training, and --moves does so with two sources of the
    same images. Arrows show how up to 120 images move.

    --strategies shows the triplets that mining chooses for 150 random anchors: a random or the easy (most
    similar) positive, with a random negative, the hard (most similar) one, or the semi-hard one (most similar
    of those less similar than the positive).

    \b
      lookalike analyze triplets shn sct --data folder:shop --out fig7.svg
      lookalike analyze triplets run --data folder:shop --strategies --out fig1.svg
      lookalike analyze triplets run --data folder:shop --baseline untrained --out triplets.svg
      lookalike analyze triplets before.npz after.npz --moves --out step.svg
    """
    from retrieval.analysis import triplets as diagram

    columns = _columns(sources, moves=moves)
    if strategies and any(len(states) > 1 for states in columns):
        raise InputError("--strategies: leave out --baseline and --moves; a panel shows one source")
    panels: dict[str, list[diagram.Panel]] = {}
    facts: dict[str, list[dict[str, object]]] = {}
    for states in columns:
        for split in states[-1].splits:
            embedded = [source.embed(split) for source in states]
            if not diagram.same_images(embedded[0], embedded[-1]):
                both = f"{embedded[0].name} and {embedded[-1].name}"
                raise InputError(f"{both} are not of the same images in the same order; embed the same data")
            found = (
                diagram.strategy_triplets(embedded[0], seed=seed)
                if strategies
                else [diagram.triplets(one, show_progress=True) for one in embedded]
            )
            name = f"{caption(states[-1].name)}, " if len(columns) > 1 else ""
            panels.setdefault(split, []).append(diagram.Panel(f"{name}{split} images", found))
            one = [state.to_dict() for state in found]
            facts.setdefault(split, []).extend(
                [{"name": states[0].name, "strategies": one}] if strategies else one
            )
    rows = list(panels.values())
    if len(columns) == 1:  # the splits side by side
        rows = [[panel for row in rows for panel in row]]
    table = [["images", "triplets", "hard", "count", "cosine with positive", "with negative"]]
    table += [
        [
            panel.title,
            state.name,
            f"{state.hard_share:.1%}",
            f"{len(state.positive):,}",
            f"{state.positive.mean():.3f} ± {state.positive.std():.3f}",
            f"{state.negative.mean():.3f}",
        ]
        for row in rows
        for panel in row
        for state in panel.states
    ]
    return Drawing(
        plot=partial(diagram.draw_strategies if strategies else diagram.draw_triplet_diagram, rows),
        size=diagram.diagram_size(rows),
        facts=facts,
        text="\n".join(text.align_columns(table, right={2, 3, 5})),
    )


def _columns(sources: list[EmbeddingSource], *, moves: bool) -> list[list[EmbeddingSource]]:
    """Group the sources by column of the figure: one, or two as before and after."""
    if moves:
        if len(sources) != 2 or sources[0].is_baseline:
            raise InputError("--moves: give two sources, before and after, without --baseline")
        return [sources]
    columns: list[list[EmbeddingSource]] = []
    for source in sources:
        if columns and columns[-1][-1].is_baseline:
            columns[-1].append(source)
        else:
            columns.append([source])
    if len(columns) > _MOST_COLUMNS:
        raise InputError(f"{len(columns)} sources are too many side by side; give at most {_MOST_COLUMNS}")
    if len({source.splits for source in sources}) > 1:
        raise InputError("only some of the sources have splits; embed the same data, or draw one at a time")
    return columns


@figure_command("examples", sources="several", baseline=True)
@click.option(
    "--anchor", "files", multiple=True, type=click.Path(path_type=Path), help="Image to use. Repeatable."
)
@click.option(
    "--anchors",
    "choice",
    type=click.Choice(["hardest", "random"]),
    default="hardest",
    show_default=True,
    help="Anchors without --anchor: of the hardest triplets of the first source, or random.",
)
@click.option("--count", type=click.IntRange(1, 12), default=4, show_default=True, help="Number of anchors.")
@click.option(
    "--positive",
    type=click.Choice(["easy", "random"]),
    default="easy",
    show_default=True,
    help="Positive: the most similar image of the class, or a random one.",
)
@click.option(
    "--negative",
    "negatives",
    type=click.Choice(["hard", "semi-hard"]),
    multiple=True,
    default=["hard"],
    show_default=True,
    help="Negative: the most similar image of another class, or the most similar one below the positive. "
    "Repeatable.",
)
@click.option("--seed", default=0, show_default=True, help="Seed of random anchors and positives.")
def examples(
    sources: list[EmbeddingSource],
    files: tuple[Path, ...],
    choice: Any,
    count: int,
    positive: Any,
    negatives: tuple[Any, ...],
    seed: int,
) -> Drawing:
    """Draw example triplets as images.

    SCT, figs. 3 and 4. Each row is an anchor, with the positive and the negatives that each source selects
    among all images of the split, and their cosines with the anchor. An orange frame marks a hard triplet,
    whose negative is more similar than the positive. Several sources, such as runs with different losses,
    are side by side, on the same anchors; --baseline untrained adds the network before training.

    The paper draws random positives, with the hard negative for SCT and the semi-hard one for SHN:

    \b
      lookalike analyze examples run --data folder:shop --baseline untrained --out examples.svg
      lookalike analyze examples shn sct --data folder:shop --split train --positive random \\
          --negative hard --negative semi-hard --out fig4.svg
      lookalike analyze examples run --data folder:shop --anchor shop/cup/3.jpg --out cup.svg
    """
    from train.papers import examples as analysis

    models: list[Embeddings] = []
    for source in sources:
        if len(source.splits) > 1:
            raise InputError("--split both: example triplets are of one split; choose train or test")
        embeddings = source.embed(source.splits[0])
        if not source.is_baseline or all((embeddings.vectors != m.vectors).any() for m in models):
            models.append(embeddings)  # runs of one configuration have the same untrained network
    if len(models) > _MOST_COLUMNS:
        raise InputError(f"{len(models)} sources are too many side by side; give at most {_MOST_COLUMNS}")
    anchors = (
        analysis.rows_of(models[0], dict.fromkeys(files))
        if files
        else analysis.choose_anchors(models[0], count, choice, positive=positive, seed=seed)
    )
    found = analysis.example_triplets(models, anchors, positive, list(dict.fromkeys(negatives)), seed=seed)
    table = [["anchor", "source", "image", "cosine", "file"]]
    facts = found.to_dict()
    table += [
        [one["path"], image["model"], image["role"], f"{image['cosine']:.3f}", image["path"]]
        for one in facts
        for image in one["selected"]
    ]
    return Drawing(
        plot=partial(analysis.draw_examples, found),
        size=analysis.examples_size(found),
        facts=facts,
        text="\n".join(text.align_columns(table, right={3})),
    )


@figure_command("spectrum", sources="several", baseline=True)
@click.option(
    "--pca",
    type=click.Choice(["class", "global"]),
    default="class",
    show_default=True,
    help="Project on the principal components of each class, as LoOp does, or on those of all images.",
)
@click.option("--seed", default=0, show_default=True, help="Seed of the four classes that are drawn.")
def spectrum(sources: list[EmbeddingSource], pca: Any, seed: int) -> Drawing:
    """Draw how far embeddings spread, within classes and overall.

    Top: the three eigenvalues of the covariance of four random classes, after projecting each class on its
    first three principal components (LoOp, supplement, figure 1). Classes of the same shape have the same
    eigenvalues. Bottom left: mean and standard deviation over all classes. The table has them times 100, as
    the paper does: 7.02 ± 1.84, 4.84 ± 1.05 and 3.84 ± 0.84 for CUB-200-2011. Classes with fewer than four
    images are left out.

    Bottom right: the share of variance that the first components of all images explain, and the effective
    rank, exp of the entropy of these shares. If the embeddings collapse, the variance (0 to 1, at unit
    length) or the effective rank is near its minimum.

    With --pca global the components are those of all images. They separate the classes rather than the images
    of a class, so the eigenvalues are smaller and cannot be compared with the paper's.

    Several sources are drawn side by side, such as runs with different losses.

    \b
      lookalike analyze spectrum run --data folder:shop --baseline untrained --out spectrum.svg
      lookalike analyze spectrum triplet optimal --data folder:shop --out spectrum.svg
    """
    from train.papers import spectrum as analysis

    spectra = [
        analysis.spectrum(source.embed(split), pca=pca) for source in sources for split in source.splits
    ]
    within = f"eigenvalues × 100, {'PCA per class' if pca == 'class' else 'global PCA'}: mean ± deviation"
    rows = [("embeddings", "variance", "effective rank", "of", "classes", "left out", within)]
    for found in spectra:
        pairs = zip(100 * found.mean, 100 * found.deviation, strict=True)
        values = "  ".join(f"{mean:.2f} ± {deviation:.2f}" for mean, deviation in pairs)
        variance, rank = f"{found.variance.sum():.3g}", f"{found.effective_rank:.1f}"
        counts = (str(len(found.variance)), f"{len(found.classes):,}", f"{found.left_out:,}")
        rows.append((found.name, variance, rank, *counts, values))
    lines = text.align_columns(rows, right={1, 2, 3, 4, 5})
    if any(found.left_out for found in spectra):
        lines.append("left out: classes with fewer than 4 images, which have fewer than 3 eigenvalues")
    return Drawing(
        plot=partial(analysis.draw_spectra, spectra, seed=seed),
        size=analysis.spectra_size(spectra),
        facts=[found.to_dict() for found in spectra],
        text="\n".join(lines),
    )


@figure_command("tsne", sources="several")
@click.option(
    "--class", "shown", multiple=True, help="Color this class, in place of the 8 largest. Repeatable."
)
@click.option(
    "--synthetic",
    type=click.Choice(["symmetric", "optimal", "interpolated"]),
    help="Add the synthetic points of random pairs of each class, as `analyze synthetic` does.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=4),
    default=2000,
    show_default=True,
    help="Largest number of images; a random sample of them is drawn if there are more.",
)
@click.option(
    "--perplexity", type=float, help="Effective number of neighbours; 30 by default, fewer for few images."
)
@click.option("--seed", default=0, show_default=True, help="Seed of the sample, the pairs and t-SNE.")
def tsne(
    sources: list[EmbeddingSource],
    shown: tuple[str, ...],
    synthetic: Any,
    limit: int,
    perplexity: float | None,
    seed: int,
) -> Drawing:
    """Draw a t-SNE map of the images, with a page of thumbnails.

    t-SNE places images with similar embeddings near each other. The page, an .html file beside the figure,
    shows the thumbnail of the point under the pointer or selected with the arrow keys, and highlights its
    class. It is one file and works offline. Synthetic points are drawn hollow; with --synthetic and without
    --class, images are blue and synthetic points red, as in the papers (Symm figure 8, LoOp supplement 6).

    Several sources, such as checkpoints of a run, are drawn side by side in the same colors, without a page.

    \b
      lookalike analyze tsne run --data folder:shop --out map.svg
      lookalike analyze tsne shop.gallery --class red --class blue --out map.svg
      lookalike analyze tsne run --data folder:shop --split train --synthetic symmetric \\
          --every-checkpoint --out points.svg
    """
    from retrieval.analysis import tsne as analysis
    from retrieval.analysis.map_page import map_page

    parts = [(source, split) for source in sources for split in source.splits]
    if len(parts) > _MOST_MAPS:
        raise InputError(f"{len(parts)} maps are too many for one figure; give at most {_MOST_MAPS}")
    by_kind = bool(synthetic) and not shown
    found: list[TsneMap] = []
    for source, split in parts:
        embeddings, most = source.embed(split), limit
        if synthetic:
            embeddings = _with_synthetic_points(embeddings.sample(limit, seed), synthetic, seed)
            most = len(embeddings)
        if len(source.splits) > 1:
            embeddings = replace(embeddings, name=f"{embeddings.name}, {split}")
        if found and not by_kind and not set(shown or found[0].shown) <= set(embeddings.labels):
            raise InputError(
                f"{embeddings.name}: has other classes than {found[0].embeddings.name}, and maps side by "
                "side share their colors; draw them separately"
            )
        colours = shown or (found[0].shown if found and not by_kind else ())
        found.append(
            analysis.tsne_map(embeddings, limit=most, seed=seed, perplexity=perplexity, shown=colours)
        )
    title = [f"{one.embeddings.name}: " if len(found) > 1 else "" for one in found]
    lines = [f"{t}{one.title}; perplexity {one.perplexity:g}" for t, one in zip(title, found, strict=True)]
    if len(found) == 1:
        return Drawing(
            plot=partial(analysis.draw_map, found[0], by_kind=by_kind),
            size=(10, 7),
            facts=found[0].to_dict(),
            text=lines[0],
            page=map_page(found[0]),
        )
    columns = analysis.map_columns(len(found))
    return Drawing(
        plot=partial(analysis.draw_maps, found, by_kind=by_kind),
        size=(4 * columns, 4 * -(-len(found) // columns) + 0.8),
        facts=[one.to_dict() for one in found],
        text="\n".join(lines),
    )


def _with_synthetic_points(embeddings: Embeddings, kind: PointSource, seed: int) -> Embeddings:
    from train.papers.synthetic import synthesize_points, with_points

    images = embeddings.take(~embeddings.synthetic)
    return with_points(images, synthesize_points(images, kind, seed=seed))


@figure_command("heatmap")
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("query", type=click.Path(path_type=Path))
@click.argument("results", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RESULT...")
@runtime_options
def heatmap(model: Path, query: Path, results: tuple[Path, ...], runtime: Runtime) -> Drawing:
    """Draw which regions make two images similar to a model.

    SCT, fig. 8. The embedding of an image is the mean over its locations, so the cosine of two images is a
    sum over the locations of either. Orange locations raise it, blue ones lower it; all images use the same
    scale. Each of up to 5 results, such as the first ones of a search, has a column: the result, the
    locations of the query and those of the result. The effective number of locations that raise the cosine
    (the exponential of the entropy of their shares) is above each: low if the similarity is of a few details.

    \b
      lookalike analyze heatmap model.onnx query.jpg result.jpg --out heatmap.svg
      lookalike analyze heatmap sct.onnx query.jpg first.jpg second.jpg third.jpg --out sct.svg
    """
    from retrieval.analysis import heatmaps
    from retrieval.model.embedder import Embedder

    if len(results) > _MOST_RESULTS:
        raise InputError(f"{len(results)} results are too many for one figure; give at most {_MOST_RESULTS}")
    embedder = Embedder.open(model, runtime)
    found = [heatmaps.heatmaps(embedder, query, result) for result in results]
    names = [f"{caption(path.name, 26)}\n{caption(path.absolute().parent.name, 26)}" for path in results]
    facts = [
        {
            "cosine": pair.cosine,
            "query": {
                "path": str(query),
                "contributions": pair.contributions_a.tolist(),
                "effective_locations": pair.spread[0],
            },
            "result": {
                "path": str(result),
                "contributions": pair.contributions_b.tolist(),
                "effective_locations": pair.spread[1],
            },
        }
        for pair, result in zip(found, results, strict=True)
    ]
    table = [["result", "cosine similarity", "effective locations: query", "result", "of"]]
    table += [
        [
            str(result),
            f"{pair.cosine:.4f}",
            *(f"{number:.1f}" for number in pair.spread),
            str(pair.contributions_a.size),
        ]
        for pair, result in zip(found, results, strict=True)
    ]
    query_name = f"query: {caption(query.name, 26)}\n{caption(query.absolute().parent.name, 26)}"
    return Drawing(
        plot=partial(heatmaps.draw_heatmaps, found, query_name, names),
        size=heatmaps.heatmaps_size(len(found)),
        facts=facts,
        text="\n".join(text.align_columns(table, right={1, 2, 3, 4})),
    )
