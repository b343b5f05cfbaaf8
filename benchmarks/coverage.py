"""What `lookalike coverage` finds in logs whose truth is known: missing classes, and labels that help.

Of a labelled gallery, some classes are taken out as if it did not have them, and some images of the others.
Both search what remains, in a random order; nothing is opened. Or the missing class is one of the gallery
that is named next. Measured over many draws: whether the first group of searches is certain and of a missing
class, and how many certain groups are of none. Then all labels of the gallery are forgotten but one in ten;
100 images are labelled as the list says, or at random among the first hits of the searches, or at random in
the gallery; and the classes of further images are guessed by their nearest labelled one.

    python -m benchmarks.coverage birds=birds.gallery:1 cars=cars.gallery:4 --json benchmarks/coverage.json

The number after a colon is that of the images of each class that search.

docs/coverage.md has the results.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from retrieval import Gallery
from retrieval.evaluation.calibration_fit import calibrate
from retrieval.evaluation.coverage import Coverage, measure_coverage
from retrieval.search.calibration import write_calibration
from retrieval.storage.manifest import Manifest
from retrieval.storage.query_log import LoggedSearch, QueryLog, new_id
from retrieval.storage.records import FileStamp, NewItem
from retrieval.storage.store import Store

MODEL = "m" * 64
LABELLED = 0.1  # of the gallery, before the list
LABELS = 100  # that are added


def filled(folder: Path, vectors: np.ndarray, labels: list[str | None]) -> Gallery:
    """Return a new gallery of vectors and labels; ids are positions from 1."""
    Store.create(folder, Manifest(MODEL, vectors.shape[1], embedding="benchmark"))
    gallery = Gallery(folder)
    stamps = [FileStamp("/", f"{n}.jpg", 1, 1, label) for n, label in enumerate(labels)]
    with gallery.store.writing():
        gallery.store.commit(vectors, [NewItem(one, f"{n}", 1, 1, {}) for n, one in enumerate(stamps)])
    gallery.refresh()
    return gallery


def searched(gallery: Gallery, vectors: np.ndarray, limit: int = 50) -> tuple[Coverage, list[str]]:
    """Return the coverage by searches, and their ids."""
    with tempfile.TemporaryDirectory() as folder:
        ids = [new_id() for _ in vectors]
        both = zip(ids, vectors, strict=True)
        searches = [LoggedSearch(id, "vector", vector, (), None, [(1, 0.5, None)]) for id, vector in both]
        QueryLog(Path(folder)).append(gallery.folder.name, MODEL, searches)
        return measure_coverage(gallery, Path(folder), limit=limit), ids


def draw(
    vectors: np.ndarray,
    classes: np.ndarray,
    missing: int | np.ndarray,
    searches: int,
    calibrated: bool,
    seed: int,
) -> dict[str, Any]:
    """Return what one draw finds.

    Args:
        vectors: float32 [N, D].
        classes: Class of each, int [N].
        missing: Classes that the gallery lacks, all images of which search; or how many, at random.
        searches: Images of each other class that search.
        calibrated: Whether the gallery is calibrated by its labels.
        seed: Seed of the draw.
    """
    random = np.random.default_rng(seed)
    lacking = random.permutation(classes.max() + 1)[:missing] if isinstance(missing, int) else missing
    order = random.permutation(len(classes))
    rank = np.empty(len(classes), int)  # of each image in its class
    for number in range(classes.max() + 1):
        members = order[classes[order] == number]
        rank[members] = np.arange(len(members))
    is_lacking = np.isin(classes, lacking)
    is_query = is_lacking | (rank < searches)
    queries = order[is_query[order]]
    with tempfile.TemporaryDirectory() as folder:
        gallery = filled(Path(folder) / "g", vectors[~is_query], [f"{one}" for one in classes[~is_query]])
        if calibrated:
            write_calibration(gallery.folder, calibrate(gallery, None)[0])
        found, ids = searched(gallery, vectors[queries])
    class_of = dict(zip(ids, classes[queries].tolist(), strict=True))
    groups = []
    for group in found.groups:
        ((most, count),) = Counter(class_of[id] for id in group.searches).most_common(1)
        of_missing = sum(class_of[id] in lacking for id in group.searches) / len(group.searches)
        groups.append((group.certain, most in lacking, most, of_missing, count))
    certain = [one for one in groups if one[0]]
    return {
        "searches": found.searches,
        "of_missing": int(is_lacking.sum()),
        "lost": found.lost / found.searches,
        "lost_by_chance": found.lost_by_chance,
        "first_is_missing": bool(certain) and certain[0][1],
        "certain": len(certain),
        "certain_of_others": sum(not one[1] for one in certain),
        "share_of_missing": float(np.mean([one[3] for one in certain])) if certain else None,
        "drift": None if found.drift is None else [found.drift.auc, found.drift.low, found.drift.high],
        "never": found.never / found.images,
        "never_by_chance": found.never_by_chance / found.images,
    }


def labelling(vectors: np.ndarray, classes: np.ndarray, searches: int, seed: int) -> dict[str, float]:
    """Return the share of further images whose nearest labelled one has their class, by what was labelled."""
    random = np.random.default_rng(seed)
    order = random.permutation(len(classes))
    asked, tested, stored = order[:searches], order[searches : 2 * searches], order[2 * searches :]
    known = random.random(len(stored)) < LABELLED
    labels = [f"{one}" if is_known else None for one, is_known in zip(classes[stored], known, strict=True)]
    with tempfile.TemporaryDirectory() as folder:
        gallery = filled(Path(folder) / "g", vectors[stored], labels)
        found, _ = searched(gallery, vectors[asked], LABELS)
    first = np.argsort(-(vectors[asked] @ vectors[stored].T), axis=1)[:, :5]
    among_hits = np.setdiff1d(first, np.flatnonzero(known))
    chosen = {
        "none": np.empty(0, int),
        "at random": random.permutation(np.flatnonzero(~known))[:LABELS],
        "random first hits": random.permutation(among_hits)[:LABELS],
        "the list": np.array([one.item - 1 for one in found.wanted]),
    }
    scores = vectors[tested] @ vectors[stored].T
    result = {}
    for name, extra in chosen.items():
        is_labelled = known.copy()
        is_labelled[extra] = True
        nearest = np.where(is_labelled, scores, -2).argmax(1)
        result[name] = float((classes[stored][nearest] == classes[tested]).mean())
    return result


def read(named: str) -> tuple[str, int, np.ndarray, np.ndarray]:
    """Return name, searches of each class, vectors and classes of a labelled gallery."""
    name, _, rest = named.partition("=")
    folder, _, searches = rest.rpartition(":")
    stored = Gallery(Path(folder)).embeddings(labelled=True)
    return name, int(searches), stored.vectors, np.unique(np.array(stored.labels), return_inverse=True)[1]


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("galleries", nargs="+", metavar="NAME=FOLDER:SEARCHES")
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    given = [read(named) for named in arguments.galleries]
    results: dict[str, Any] = {}
    for position, (name, searches, vectors, classes) in enumerate(given):
        other, _, others, of_others = given[(position + 1) % len(given)]
        cases: dict[str, list[dict[str, Any]]] = {}
        for calibrated in (False, True):
            for missing in (0, 3, other):
                draws = []
                for seed in range(arguments.draws):
                    some, labels, lacking = vectors, classes, missing
                    if isinstance(lacking, str):
                        chosen = of_others == np.random.default_rng(seed).integers(of_others.max() + 1)
                        number = classes.max() + 1
                        some = np.concatenate([vectors, others[chosen]])
                        labels = np.append(classes, np.full(chosen.sum(), number))
                        lacking = np.array([number])
                    draws.append(draw(some, labels, lacking, searches, calibrated, seed))
                case = f"{missing} missing, by {'probability' if calibrated else 'similarity'}"
                cases[case] = draws
                print(name, case, summarized(draws), flush=True)
        count = min(400, len(classes) // 4)
        cases["labels"] = [labelling(vectors, classes, count, seed) for seed in range(arguments.draws)]
        print(name, "labels", summarized(cases["labels"]), flush=True)
        results[name] = cases
    if arguments.json:
        lines = [f'"{name}": {json.dumps(cases)}' for name, cases in results.items()]
        arguments.json.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def summarized(draws: list[dict[str, Any]]) -> dict[str, float]:
    """Return the means of draws, where they are known."""
    known = {key: [one[key] for one in draws if isinstance(one[key], int | float)] for key in draws[0]}
    return {key: round(float(np.mean(values)), 4) for key, values in known.items() if values}


if __name__ == "__main__":
    main()
