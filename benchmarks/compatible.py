"""Backward-compatible training against a bridge: is a new model better trained to suit the old vectors?

A head on a new network is trained on half of the classes, with terms that keep it compatible with the old
network's vectors of these images, and tested on the other half: new queries among new vectors, and new
queries among old ones, each image among the others. The rival is a plain head, whose gallery is mapped from
the old vectors as `index rebuild --bridge` does, by maps that have not seen the class of the image, but four
fifths of the gallery's images.

Written down before it was run: compatible training is worth an option if, on each set, new queries among old
vectors certainly find more than the plain head's among mapped ones (Recall@1, 95% interval over classes), and
the mean of new ones among new is at most one point below. Rate, weight and start, half-whitened or a map to
the old vectors, are chosen on a quarter of the training classes, by the mean of both.

- distil: the cosine with the old vector of the same image, as in feature distillation.
- proxies: softmax over the old means of the classes, as in BCT (Shen et al., CVPR 2020).
- pairs: multi-positive softmax over the old vectors of the batch.
- halves: pairs, on half of twice the dimensions, which searches the old vectors; the other half is free.
- wide: plain, with as many dimensions as `halves`.

    python -m benchmarks.compatible birds=old.gallery:new.gallery --json benchmarks/compatible.json

docs/bridge.md has the results.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import normalize

from benchmarks.interleaving import vectors_of
from lookalike import losses
from retrieval.metrics.statistics import bootstrap_intervals
from retrieval.upkeep.bridge import fit_map
from train.layers.components import fit_starts

FORMS = ("plain", "wide", "distil", "proxies", "pairs", "halves")
DIVISIONS = 5
STEPS, CLASSES, IMAGES = 200, 24, 4
RATES, WEIGHTS, STARTS = (1e-4, 1e-3), (0.3, 3.0), ("whitened", "mapped")
TEMPERATURE = 0.1


def outputs(form: str, head: torch.nn.Linear, inputs: torch.Tensor, width: int) -> tuple[torch.Tensor, ...]:
    """Return the vectors that search new ones, and those that search old ones, unit length."""
    made = head(inputs)
    if form != "halves":
        whole = normalize(made)
        return whole, whole[:, :width]
    free, suited = normalize(made[:, :width]), normalize(made[:, width:])
    return torch.cat([free, suited], 1) / 2**0.5, suited


def trained(
    form: str, old: np.ndarray, new: np.ndarray, classes: np.ndarray, how: tuple[float, float, str], seed: int
) -> torch.nn.Linear:
    """Return a linear head on new vectors, [n, F], trained on all given images with their old vectors.

    `how` has the rate, the weight of the term, and the start of what searches old vectors.
    """
    torch.manual_seed(seed)
    rate, weight, begins = how
    random, width = np.random.default_rng(seed), old.shape[1]
    dim = 2 * width if form in ("halves", "wide") else width
    start = fit_starts(new, (0.5,), dim)[0].layer
    first = start.weight[:dim].astype(np.float32)
    head = torch.nn.Linear(new.shape[1], dim)
    with torch.no_grad():
        head.weight[:] = torch.from_numpy(first)
        head.bias[:] = torch.from_numpy(-first @ start.mean.astype(np.float32))
        if begins == "mapped":
            gram = new.T @ new + 0.01 * len(new) / new.shape[1] * np.eye(new.shape[1], dtype=np.float32)
            suited = np.linalg.solve(gram, new.T @ old).T.astype(np.float32)
            head.weight[-width:], head.bias[-width:] = torch.from_numpy(suited), 0
    inputs, targets = torch.from_numpy(new), torch.from_numpy(old)
    _, names = np.unique(classes, return_inverse=True)
    means = normalize(torch.stack([targets[names == one].mean(0) for one in range(names.max() + 1)]))
    loss = losses.build({"name": "multi-similarity", "alpha": 2, "beta": 50, "threshold": 0.5})
    optimizer = torch.optim.Adam(head.parameters(), rate)
    of_class = [np.flatnonzero(names == one) for one in range(names.max() + 1)]
    for _ in range(STEPS):
        drawn = random.choice(len(of_class), min(CLASSES, len(of_class)), replace=False)
        rows = np.concatenate([random.choice(of_class[one], IMAGES) for one in drawn])
        batch = torch.from_numpy(names[rows])
        whole, part = outputs(form, head, inputs[rows], width)
        value = loss(whole, batch)
        if form not in ("plain", "wide"):
            value = value + weight * compatibility(form, part, targets[rows], means, batch)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    return head


def compatibility(
    form: str, made: torch.Tensor, old: torch.Tensor, means: torch.Tensor, names: torch.Tensor
) -> torch.Tensor:
    """Return the term that keeps new vectors compatible with the old ones of a batch, [b, D] each."""
    if form == "distil":
        return (1 - (made * old).sum(1)).mean()
    if form == "proxies":
        return torch.nn.functional.cross_entropy(made @ means.T / TEMPERATURE, names)
    logits = (made @ old.T / TEMPERATURE).log_softmax(1)
    same = (names[:, None] == names).float()
    return -((logits * same).sum(1) / same.sum(1)).mean()


def first_is_right(queries: np.ndarray, gallery: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Return whether the nearest other image of each has its class: float [n]."""
    scores = queries @ gallery.T
    np.fill_diagonal(scores, -np.inf)
    return (classes[scores.argmax(1)] == classes).astype(float)


def measured(
    form: str, head: torch.nn.Linear, old: np.ndarray, new: np.ndarray, classes: np.ndarray, folds: np.ndarray
) -> dict[str, np.ndarray]:
    """Return whether each image is found: among new vectors, among old ones, and among mapped ones."""
    with torch.no_grad():
        found = outputs(form, head, torch.from_numpy(new), old.shape[1])
    whole, part = (one.numpy() for one in found)
    return {
        "new": first_is_right(whole, whole, classes),
        "on_old": first_is_right(part, old, classes),
        "on_mapped": first_is_right(whole, fit_map(old, whole, folds)[0], classes),
    }


def division(old: np.ndarray, new: np.ndarray, classes: np.ndarray, seed: int) -> dict[str, Any]:
    """Return what each form finds on classes that it has not seen, in one division, and what was chosen."""
    order = np.random.default_rng(seed).permutation(classes.max() + 1)
    half, learning = len(order) // 2, len(order) * 3 // 8
    parts = order[:learning], order[learning:half], order[half:]
    learnt, chosen, tested = (np.isin(classes, some) for some in parts)
    folds = np.random.default_rng(0).permutation(len(order))[classes] % 5
    found: dict[str, Any] = {"chosen": {}}
    for form in FORMS:
        is_plain = form in ("plain", "wide")
        ways = itertools.product(RATES, (0.0,) if is_plain else WEIGHTS, STARTS[:1] if is_plain else STARTS)
        scores = dict[tuple[float, float, str], float]()
        for how in ways:
            head = trained(form, old[learnt], new[learnt], classes[learnt], how, seed)
            got = measured(form, head, old[chosen], new[chosen], classes[chosen], folds[chosen])
            scores[how] = float(got["new"].mean() + got["on_mapped" if is_plain else "on_old"].mean())
        best = max(scores, key=scores.__getitem__)
        both = learnt | chosen
        head = trained(form, old[both], new[both], classes[both], best, seed)
        found[form] = measured(form, head, old[tested], new[tested], classes[tested], folds[tested])
        found["chosen"][form] = best
    found["old"] = {"new": first_is_right(old[tested], old[tested], classes[tested])}
    found["classes"] = {"classes": classes[tested]}
    return found


def summary(divisions: list[dict[str, Any]]) -> dict[str, Any]:
    """Return means in percent, and differences to the plain head with intervals over classes.

    The differences are of new queries among new vectors; of those among old ones to the plain head's among
    mapped ones; and of those among mapped ones.
    """

    def joined(form: str, key: str) -> np.ndarray:
        return np.concatenate([one[form][key] for one in divisions])

    classes = joined("classes", "classes")
    rows: dict[str, Any] = {"old": 100 * joined("old", "new").mean()}
    for form in FORMS:
        row: dict[str, Any] = {key: 100 * joined(form, key).mean() for key in ("new", "on_old", "on_mapped")}
        pairs = ("new", "new"), ("on_old", "on_mapped"), ("on_mapped", "on_mapped")
        gains = np.stack([joined(form, ours) - joined("plain", theirs) for ours, theirs in pairs], 1)
        row["gains"] = (100 * gains.mean(0)).round(2).tolist()
        row["intervals"] = (100 * bootstrap_intervals(gains, classes)).round(2).tolist()
        row["chosen"] = [one["chosen"][form] for one in divisions]
        rows[form] = row
    return rows


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pairs", nargs="+", metavar="NAME=OLD:NEW")
    parser.add_argument("--json", type=Path, help="output file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    results = {}
    for pair in args.pairs:
        name, _, folders = pair.partition("=")
        old, new, classes = vectors_of(*map(Path, folders.split(":")))
        results[name] = summary([division(old, new, classes, seed) for seed in range(DIVISIONS)])
        print(name, json.dumps(results[name], indent=1), flush=True)
    if args.json:
        args.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
