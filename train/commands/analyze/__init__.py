"""`lookalike analyze`: its sub-commands, each in a module that is imported when it is used."""

from __future__ import annotations

import click

from retrieval.cli import LazyGroup

_HERE = "train.commands.analyze"
_COMMANDS = {
    "embed": (f"{_HERE}.embed:embed", "Write the embeddings of images to a file."),
    "triplets": (
        f"{_HERE}.triplets:triplets",
        "Draw each image by how near its own class and another class are.",
    ),
    "spectrum": (
        f"{_HERE}.spectrum:spectrum",
        "Draw how far embeddings spread, inside classes and over all.",
    ),
    "tsne": (f"{_HERE}.tsne:tsne", "Draw a map of the images, and a page with their thumbnails."),
    "heatmap": (f"{_HERE}.heatmap:heatmap", "Draw where two pictures look alike, in the eyes of a model."),
    "gradients": (f"{_HERE}.gradients:gradients", "Draw where a triplet loss moves triplets."),
    "weights": (f"{_HERE}.weights:weights", "Draw how much weight losses give a pair."),
    "step": (f"{_HERE}.step:step", "Draw how one step of a loss moves images."),
    "training": (f"{_HERE}.training:training", "Draw what happened during training."),
    "synthetic": (f"{_HERE}.synthetic:synthetic", "Draw how synthetic points are retrieved."),
}


@click.group(cls=LazyGroup, lazy=_COMMANDS)
def analyze() -> None:
    """Draw the papers' figures from a run, a model or embeddings.

    \b
    Which figure answers which question?
      Are an image's own class or its lookalikes nearer?       triplets
      Is the embedding spread out, or has it collapsed?        spectrum
      Which images lie together, and what strays?              tsne
      What in two pictures makes them similar?                 heatmap
      Why does training with hard negatives go wrong?          gradients
      Which pairs does a loss learn from?                      weights
      Where does one step of a loss move the images?           step
      How did the share of hard triplets change in training?   training
      Are synthetic points as good as real ones?               synthetic

    Figures are SVG files; --png adds a PNG, and --json prints the numbers. The same input gives the same
    bytes. What embeddings are drawn from is a run, a model file, a gallery, or an .npz file with arrays
    `embeddings` [N, D] and `labels` [N], and perhaps `paths` [N] and `synthetic` [N] (true or false):
    `analyze embed` writes one.

    \b
      lookalike analyze triplets run --data folder:shop --baseline untrained --out triplets.svg
      lookalike analyze tsne shop.gallery --out map.svg
      lookalike analyze heatmap model.onnx query.jpg result.jpg --out heatmap.svg
    """
