"""The `lookalike analyze` group: figures of embeddings, losses and training."""

from __future__ import annotations

import click

from retrieval.cli import LazyGroup, json_option, print_result

_EMBEDDINGS, _LOSSES = "train.papers.analyze.embedding_figures", "train.papers.analyze.losses"
_ARCS, _WEIGHTS = "train.papers.analyze.arcs", "train.papers.analyze.weights"
_COMMANDS = {
    "embed": (f"{_EMBEDDINGS}:embed", "Write the embeddings of images to a file."),
    "triplets": (
        f"{_EMBEDDINGS}:triplets",
        "Draw each image by its similarity to its own class and to other classes.",
    ),
    "examples": (f"{_EMBEDDINGS}:examples", "Draw example triplets as images."),
    "spectrum": (
        f"{_EMBEDDINGS}:spectrum",
        "Draw how far embeddings spread, within classes and overall.",
    ),
    "tsne": (f"{_EMBEDDINGS}:tsne", "Draw a t-SNE map of the images, with a page of thumbnails."),
    "heatmap": (f"{_EMBEDDINGS}:heatmap", "Draw which regions make two images similar to a model."),
    "gradients": (
        f"{_LOSSES}:gradients",
        "Draw where one gradient step of a triplet loss moves triplets.",
    ),
    "weights": (f"{_WEIGHTS}:weights", "Draw the weights that losses give to pairs."),
    "selection": (f"{_WEIGHTS}:selection", "Draw which pairs of a batch a loss selects."),
    "arcs": (f"{_ARCS}:arcs", "Draw the closest points of two arcs, and how a step moves their ends."),
    "arc-cases": (
        f"{_ARCS}:arc_cases",
        "Draw which of LoOp's nine cases has the closest points in a batch.",
    ),
    "step": (f"{_LOSSES}:step", "Draw how one training step of a loss moves images."),
    "rates": (f"{_LOSSES}:rates", "Draw the loss while the learning rate grows, and suggest a rate."),
    "training": (f"{_LOSSES}:training", "Draw the metrics recorded during training."),
    "synthetic": (f"{_LOSSES}:synthetic", "Draw the Recall@K of synthetic points."),
    "noise": (
        "train.papers.analyze.noise:noise",
        "Draw how often each true label is given as another.",
    ),
}


@click.group(cls=LazyGroup, lazy=_COMMANDS, invoke_without_command=True, no_args_is_help=True)
@click.option("--list", "listed", is_flag=True, help="List the figures of the papers and their commands.")
@json_option
@click.pass_context
def analyze(ctx: click.Context, listed: bool, as_json: bool) -> None:
    """Draw the papers' figures from a run, a model or embeddings.

    \b
    Which figure answers which question?
      Are images closer to their own class or to lookalikes?   triplets
      Which lookalikes does a model confuse?                   examples
      Are the embeddings spread out, or have they collapsed?   spectrum
      Which images form groups, and which are outliers?        tsne
      Which regions make two images similar?                   heatmap
      Why does training with hard negatives collapse?          gradients
      Which pairs does a loss learn from?                      weights
      Which pairs does a miner leave out?                      selection
      What does LoOp generate from two pairs?                  arcs
      How often are LoOp's negatives synthetic?                arc-cases
      Where does one training step move the images?            step
      Which learning rate suits my data and settings?          rates
      How did loss and hard triplets change in training?       training
      Are synthetic points as good as real images?             synthetic
      Which labels does label noise confuse?                   noise

    `lookalike analyze --list` prints every figure of the five papers with the command that draws it.

    Figures are SVG files; --png also writes a PNG, and --json prints the numbers. The same input gives the
    same bytes. Embeddings come from a run, a model file, a gallery, or an .npz file with the arrays
    `embeddings` [N, D] and `labels` [N], and optionally `paths` [N] and `synthetic` [N] (true or false);
    `analyze embed` writes such a file.

    \b
      lookalike analyze triplets run --data folder:shop --baseline untrained --out triplets.svg
      lookalike analyze tsne shop.gallery --out map.svg
      lookalike analyze heatmap model.onnx query.jpg result.jpg --out heatmap.svg
    """
    if ctx.invoked_subcommand is None and listed:
        from train.papers.figures import figures_facts, figures_table

        print_result(figures_facts(), as_json, figures_table())
    elif listed:
        raise click.UsageError("--list takes no command")
    elif as_json:
        raise click.UsageError("--json before the command is for --list; put it after the command")
