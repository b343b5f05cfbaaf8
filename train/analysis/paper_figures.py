"""Figures of the five papers and the commands that draw them.

docs/figures.md is `figures_page()`: `python -m train.analysis.paper_figures > docs/figures.md` writes it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from retrieval import text

_TITLES = {
    "LoOp": "LoOp: Looking for Optimal Hard Negative Embeddings for Deep Metric Learning",
    "SCT": "SCT: Hard negative examples are hard, but useful",
    "RAW": "RAW + VTHM: A Unified View of Deep Metric Learning via Gradient Analysis",
    "Symm": "Symm: Symmetrical Synthesis for Deep Metric Learning",
    "DCDL": "DCDL: Learning Deep Optimal Embeddings with Sinkhorn Divergences",
}


@dataclass(frozen=True)
class PaperFigure:
    """Figure of a paper.

    Attributes:
        paper: Short name of the paper.
        figure: Its number in the paper; "S1" for figure 1 of the supplement.
        shows: What the figure shows.
        commands: Commands that draw it, in their order. RUN is a training run, as of `lookalike train`.
        note: How the command's figure differs from the paper's, or why there is none.
    """

    paper: str
    figure: str
    shows: str
    commands: tuple[str, ...] = ()
    note: str = ""


FIGURES = (
    PaperFigure(
        "LoOp",
        "1",
        "two pairs, their arcs and the closest points",
        ("lookalike analyze arcs --case 1 --out arcs.svg",),
    ),
    PaperFigure(
        "LoOp",
        "2",
        "the nine cases of the closest points",
        ("lookalike analyze arcs --out cases.svg",),
        "`lookalike analyze arc-cases` counts them in a batch of a run",
    ),
    PaperFigure(
        "LoOp",
        "3a",
        "Recall@1 over the batch size",
        (
            "lookalike sweep --no-baselines --recipe loop/table2/loop-hphn-cars196@paper --data cars196:ROOT "
            "--variants docs/figures/loop-figure3a.yaml --baseline batch-32 --out figure-3a",
        ),
    ),
    PaperFigure(
        "LoOp",
        "3b",
        "Recall@1 over the margin",
        (
            "lookalike sweep --no-baselines --recipe loop/table2/loop-ls-cub200@paper --data cub200:ROOT "
            "--variants docs/figures/loop-figure3b.yaml --baseline margin-0.2 --out figure-3b",
        ),
    ),
    PaperFigure(
        "LoOp",
        "3c",
        "Recall@1 over epsilon",
        (
            "lookalike sweep --no-baselines --recipe loop/table2/loop-ms-cars196@paper --data cars196:ROOT "
            "--set batch.classes=2 --set batch.per_class=4 --set loss.threshold=0.5 "
            "--variants docs/figures/loop-figure3c.yaml --baseline epsilon-minus-0.02 --out figure-3c",
        ),
    ),
    PaperFigure(
        "LoOp",
        "3d",
        "Recall@1 over lambda",
        (
            "lookalike sweep --no-baselines --recipe loop/table2/loop-ms-cars196@paper --data cars196:ROOT "
            "--set batch.classes=2 --set batch.per_class=4 "
            "--set 'loss.mining={name: vthm, margin: -0.02}' "
            "--variants docs/figures/loop-figure3d.yaml --baseline lambda-0.5 --out figure-3d",
        ),
    ),
    PaperFigure(
        "LoOp",
        "4",
        "triplet loss with closest points on arcs, and on segments",
        ("lookalike recipes run loop/figure4 --data cars196:ROOT --out figure-4",),
    ),
    PaperFigure(
        "LoOp",
        "section 4.3",
        "time of a training step",
        (
            "lookalike sweep --no-baselines --recipe loop/table2/ms-cars196@paper --data cars196:ROOT "
            "--set epochs=1 --seeds 1 --variants docs/figures/loop-section4.3.yaml --out section-4.3",
        ),
        "column s/step",
    ),
    PaperFigure(
        "LoOp",
        "S1",
        "eigenvalues of four classes, after PCA per class",
        ("lookalike analyze spectrum RUN --data cub200:ROOT --out spectrum.svg",),
    ),
    PaperFigure(
        "LoOp",
        "S2",
        "the nine cases of the closest points",
        ("lookalike analyze arcs --out cases.svg",),
    ),
    PaperFigure(
        "LoOp",
        "S3",
        "updated positions of four samples: x1 and y1 are the hardest negatives",
        ("lookalike analyze arcs --case 5 --out arcs.svg",),
        "own coordinates, which the paper does not print",
    ),
    PaperFigure(
        "LoOp",
        "S4",
        "updated positions of four samples: x1 and the middle of y1 and y2 are the hardest negatives",
        ("lookalike analyze arcs --case 1 --out arcs.svg",),
        "own coordinates, which the paper does not print",
    ),
    PaperFigure(
        "LoOp",
        "S5",
        "t-SNE of the training images with LoOp's points",
        (
            "lookalike analyze tsne RUN --data cars196:ROOT --split train --synthetic optimal "
            "--every-checkpoint --out maps.svg",
        ),
        "RUN was trained with checkpoints.at or checkpoints.every",
    ),
    PaperFigure(
        "SCT",
        "1",
        "triplet diagram with the triplets of five mining strategies",
        ("lookalike analyze triplets RUN --data cars196:ROOT --strategies --out triplets.svg",),
    ),
    PaperFigure(
        "SCT",
        "2",
        "gradient field with 0, some and complete entanglement",
        ("lookalike analyze gradients --entanglement 0,0.5,1 --out gradients.svg",),
    ),
    PaperFigure(
        "SCT",
        "3",
        "example triplets at the start of training, with the negatives of SCT (hard) and SHN (semi-hard)",
        (
            "lookalike analyze examples RUN --which 0 --data cars196:ROOT --split train --positive random "
            "--negative hard --negative semi-hard --out examples.svg",
        ),
        "RUN was trained with checkpoints.at=[0]; negatives come from the whole split, in the paper from a "
        "batch",
    ),
    PaperFigure(
        "SCT",
        "4",
        "example triplets at the end of training under SHN and SCT",
        (
            "lookalike analyze examples RUN_SHN RUN_SCT --data cars196:ROOT --split train "
            "--positive random --negative hard --negative semi-hard --out examples.svg",
        ),
        "negatives come from the whole split, in the paper from a batch",
    ),
    PaperFigure(
        "SCT",
        "5",
        "hard negative triplets of a batch before and after steps 0, 4, 8 and 12 under HN, SHN and SCT",
        ("lookalike analyze step RUN --at 0,4,8,12 --out step.svg",),
        "trains the three networks itself, from the initial weights of RUN",
    ),
    PaperFigure(
        "SCT",
        "6",
        "left: share of hard triplets in a batch; right: Recall@1 of HN, SHN and SCT on five data sets",
        (
            "lookalike recipes run sct/figure6 --data cub200:ROOT --data cars196:ROOT --out figure-6",
            "lookalike analyze training RUN... --out training.svg",
        ),
        "left: anchors whose hardest negative in the batch is closer than their easiest positive, in every "
        "tenth batch; right: a table",
    ),
    PaperFigure(
        "SCT",
        "7",
        "triplet diagrams of training and test images under SHN and SCT",
        ("lookalike analyze triplets RUN_SHN RUN_SCT --data cars196:ROOT --out triplets.svg",),
    ),
    PaperFigure(
        "SCT",
        "8",
        "regions that make two images similar",
        ("lookalike analyze heatmap MODEL QUERY RESULT... --out heatmap.svg",),
        "once with the model of SHN and once with that of SCT; orange for similar, where the paper has blue",
    ),
    PaperFigure(
        "SCT",
        "9",
        "gradient fields of the NCA and the margin loss, without and with entanglement",
        ("lookalike analyze gradients --loss nca --loss margin --out gradients.svg",),
    ),
    PaperFigure(
        "RAW",
        "1",
        "weight of a pair as a function of its cosine",
        (
            "lookalike analyze weights --out weights.svg",
            "lookalike analyze weights --loss triplet-cosine --positives 0.5 --negatives 0.5 "
            "--out triplet.svg",
            "lookalike analyze weights RUN --data cub200:ROOT --per-class 5 --out batch.svg",
        ),
        "the second with a single triplet, as panel b; the third for the pairs of a batch",
    ),
    PaperFigure(
        "RAW",
        "2",
        "variable-threshold hard mining",
        ("lookalike analyze selection RUN --data cub200:ROOT --per-class 5 --out selection.svg",),
    ),
    PaperFigure("Symm", "1", "the method", note="a diagram of the method, not of data"),
    PaperFigure("Symm", "2", "how a point is mirrored", note="a diagram of the method, not of data"),
    PaperFigure(
        "Symm",
        "3",
        "the 16 pairs of two classes",
        note="a diagram of the method, not of data",
    ),
    PaperFigure(
        "Symm",
        "4",
        "Recall@1 over training for other angles and lengths of the mirrored point",
        (
            "lookalike sweep --no-baselines --data cars196:ROOT --recipe symm/table2/symm-n-pair-cars196 "
            "--variants docs/figures/symm-figure4.yaml --baseline n-pair "
            "--set 'watch={split: test, every: 500}' --out DIR",
        ),
        "DIR/curves.svg",
    ),
    PaperFigure(
        "Symm",
        "5",
        "Recall@1 over training with the k-th hardest pair of points",
        (
            "lookalike sweep --no-baselines --data cars196:ROOT --recipe symm/table2/symm-n-pair-cars196 "
            "--variants docs/figures/symm-figure5.yaml --baseline n-pair "
            "--set 'watch={split: test, every: 500}' --out DIR",
        ),
        "DIR/curves.svg; the paper does not print its values of k",
    ),
    PaperFigure(
        "Symm",
        "6",
        "Recall@1 of images and synthetic points, over training",
        (
            "lookalike analyze synthetic RUN --data cars196:ROOT --split both --every-checkpoint "
            "--out synthetic.svg",
        ),
        "RUN was trained with checkpoints.every",
    ),
    PaperFigure(
        "Symm",
        "7",
        "share of synthetic points among the hardest, over training",
        ("lookalike analyze training RUN --out training.svg",),
    ),
    PaperFigure(
        "Symm",
        "8",
        "t-SNE of images and synthetic points",
        (
            "lookalike analyze tsne RUN --data cars196:ROOT --split train --synthetic symmetric "
            "--every-checkpoint --out maps.svg",
        ),
        "RUN was trained with checkpoints.at or checkpoints.every",
    ),
    PaperFigure("DCDL", "1", "the method", note="a diagram of the method, not of data"),
    PaperFigure(
        "DCDL",
        "2",
        "transition matrices of label noise",
        (
            "lookalike analyze noise --data cifar10:ROOT --rate 0.3 --out symmetric.svg",
            "lookalike analyze noise --data cifar10:ROOT --kind asymmetric --rate 0.2 --out asymmetric.svg",
        ),
    ),
    PaperFigure(
        "DCDL",
        "3",
        "images of the data sets",
        note="photos of CUB-200-2011 and Cars196; `lookalike datasets` shows how to fetch the sets",
    ),
)


def figures_facts() -> list[dict[str, Any]]:
    """Return plain values, for JSON."""
    return [{**asdict(figure), "commands": list(figure.commands)} for figure in FIGURES]


def figures_table() -> str:
    """Return the figures with their commands as lines of text."""
    rows = [("paper", "figure", "shows", "command")]
    for one in FIGURES:
        lines = [*one.commands, *([f"({one.note})"] if one.note else [])]
        rows.append((one.paper, one.figure, one.shows, lines[0]))
        rows += [("", "", "", line) for line in lines[1:]]
    return "\n".join(text.align_columns(rows))


def figures_page() -> str:
    """Return docs/figures.md: a table of figures for each paper."""
    lines = [
        "# Figures of the papers",
        "",
        "Each figure of the five papers and the command that draws it; `lookalike analyze --list` prints the",
        "same list. RUN is a folder that `lookalike train` wrote, S1 is figure 1 of a supplement. Commands",
        "with --json print the numbers behind a figure.",
    ]
    for paper, figures in groupby(FIGURES, lambda figure: figure.paper):
        lines += ["", f"## {_TITLES[paper]}", "", "| figure | shows | command |", "|---|---|---|"]
        for one in figures:
            cell = [*(f"`{command}`" for command in one.commands), *([one.note] if one.note else [])]
            lines.append(f"| {one.figure} | {one.shows} | {'; '.join(cell)} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    print(figures_page(), end="")
