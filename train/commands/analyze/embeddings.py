"""Figures of embeddings: embed, triplets, spectrum, tsne, heatmap."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from retrieval import text
from retrieval.errors import InputError
from retrieval.reports.figures import caption
from train.commands.analyze.options import (
    Drawing,
    figure_command,
    finish,
    out_option,
    source_parameters,
)

if TYPE_CHECKING:
    from train.commands.analyze.sources import EmbeddingSource


@click.command("embed", params=source_parameters("one", "test", baseline=False))
@click.option("--untrained", is_flag=True, help="Embed with the network before training.")
@out_option("The embeddings", ".npz")
@click.pass_context
def embed(
    ctx: click.Context,
    target: Path,
    data: str | None,
    split: str | None,
    which: str | None,
    untrained: bool,
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
    from train.commands.analyze.sources import open_sources

    if untrained and which:
        raise click.UsageError("--untrained is the network before training; leave out --which")
    chosen = [which] if which else []
    source = open_sources([target], data, split, untrained=untrained, which=chosen)[0]
    source.embed(source.splits[0]).save(out)
    finish(ctx, [source], [out])


@figure_command("triplets", sources="several", split="both", baseline=True)
def triplets(sources: list[EmbeddingSource]) -> Drawing:
    """Draw each image by its similarity to its own class and to other classes.

    Every image is a point. x: cosine with its easiest positive, the most similar image of its class.
    y: cosine with its hardest negative, the most similar image of another class. Above the diagonal are the
    hard triplets: their nearest image has the wrong class. Their share is 1 - Recall@1. Training and test
    images have a panel each, which shows how well the embedding generalizes to new classes.

    Two sources are drawn as before and after, on the same images. Arrows show how up to 120 images move.

    \b
      lookalike analyze triplets run --data folder:shop --baseline untrained --out triplets.svg
      lookalike analyze triplets shop.gallery --out triplets.svg
      lookalike analyze triplets before.npz after.npz --out step.svg
    """
    from retrieval.analysis import triplets as diagram

    if len(sources) > 2:
        raise InputError("a triplet diagram shows one source, or two: before and after")
    panels = {}
    for split in sources[-1].splits:
        states = [source.embed(split) for source in sources]
        if not diagram.same_images(states[0], states[-1]):
            both = f"{states[0].name} and {states[-1].name}"
            raise InputError(f"{both} are not of the same images in the same order; embed the same data")
        panels[split] = [diagram.triplets(state, show_progress=True) for state in states]
    lines = [
        f"{split}: {s.name}: {100 * s.hard_share:.1f}% hard triplets of {len(s.positive):,} images"
        for split, states in panels.items()
        for s in states
    ]
    return Drawing(
        plot=partial(diagram.draw_triplet_diagram, panels),
        size=diagram.diagram_size(len(panels)),
        facts={split: [state.to_dict() for state in states] for split, states in panels.items()},
        text="\n".join(lines),
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
    from retrieval.analysis import spectrum as analysis

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


@figure_command("tsne", sources="one")
@click.option(
    "--class", "shown", multiple=True, help="Color this class, in place of the 8 largest. Repeatable."
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
@click.option("--seed", default=0, show_default=True, help="Seed of the sample and of t-SNE.")
def tsne(
    source: EmbeddingSource, shown: tuple[str, ...], limit: int, perplexity: float | None, seed: int
) -> Drawing:
    """Draw a t-SNE map of the images, with a page of thumbnails.

    t-SNE places images with similar embeddings near each other. The page, an .html file beside the figure,
    shows the thumbnail of the point under the pointer or selected with the arrow keys, and highlights its
    class. It is one file and works offline. Synthetic points of an .npz file are drawn hollow.

    \b
      lookalike analyze tsne run --data folder:shop --out map.svg
      lookalike analyze tsne shop.gallery --class red --class blue --out map.svg
    """
    from retrieval.analysis import tsne as analysis
    from retrieval.analysis.map_page import map_page

    embeddings = source.embed(source.splits[0])
    found = analysis.tsne_map(embeddings, limit=limit, seed=seed, perplexity=perplexity, shown=shown)
    return Drawing(
        plot=partial(analysis.draw_map, found),
        size=(10, 7),
        facts=found.to_dict(),
        text=f"{found.title}; perplexity {found.perplexity:g}",
        page=map_page(found),
    )


@figure_command("heatmap")
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("query", type=click.Path(path_type=Path))
@click.argument("result", type=click.Path(path_type=Path))
def heatmap(model: Path, query: Path, result: Path) -> Drawing:
    """Draw which regions make two images similar to a model.

    The embedding of an image is the mean over its locations, so the cosine of two images is a sum over the
    locations of either. Orange locations raise it, blue ones lower it; both images use the same scale.

    \b
      lookalike analyze heatmap model.onnx query.jpg result.jpg --out heatmap.svg
    """
    from retrieval.analysis import heatmaps
    from retrieval.embedder import Embedder

    found = heatmaps.heatmaps(Embedder(model), query, result)
    first, second = (
        f"{role}: {caption(path.name)}\n{caption(path.absolute().parent.name, 40)}"
        for role, path in (("query", query), ("result", result))
    )
    return Drawing(
        plot=partial(heatmaps.draw_heatmaps, found, (first, second)),
        size=(7, 8.2),
        facts={
            "cosine": found.cosine,
            "query": {"path": str(query), "contributions": found.contributions_a.tolist()},
            "result": {"path": str(result), "contributions": found.contributions_b.tolist()},
        },
        text=f"cosine similarity: {found.cosine:.4f}",
    )
