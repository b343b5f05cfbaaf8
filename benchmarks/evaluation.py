"""Time and memory of evaluation, compared with the matrix product that it needs and with peers.

The product is that of all queries with the whole gallery, in blocks. Every contender runs in its own process,
interleaved with the product; ratios are of medians, memory is the peak of the process beyond the embeddings.
Embeddings are clustered at random, with 5.3 images a class as on Stanford Online Products.

    python -m benchmarks.evaluation
    python -m benchmarks.evaluation --sop                      # 60,502 x 512: half an hour on two cores
    python -m benchmarks.evaluation --only neighbours --json evaluation.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from retrieval import metrics
from retrieval.evaluation.score import evaluate
from retrieval.metrics import per_query
from retrieval.metrics.statistics import bootstrap_intervals

BLOCK = 1024
KS = (1, 10, 100, 1000)
Work = Callable[[], Any]  # a returned text is printed next to the time


@dataclass(frozen=True)
class Data:
    """Return unit embeddings, float32 [N, D], and their classes."""

    points: np.ndarray
    labels: np.ndarray


def clustered(count: int, dim: int) -> Data:
    random = np.random.default_rng(0)
    classes = round(count / 5.346)
    labels = np.sort(random.integers(0, classes, count))
    points = random.standard_normal((classes, dim), np.float32)[labels]
    for start in range(0, count, BLOCK):
        block = points[start : start + BLOCK]
        block += 1.5 * random.standard_normal(block.shape, np.float32)
        block /= np.linalg.norm(block, axis=1, keepdims=True)
    return Data(points, labels)


def product(data: Data) -> None:
    """Return the matrix product alone, the limit."""
    cosines = np.empty((BLOCK, len(data.points)), np.float32)
    for start in range(0, len(data.points), BLOCK):
        block = data.points[start : start + BLOCK]
        np.matmul(block, data.points.T, out=cosines[: len(block)])


# ---- contenders: each prepares its input and returns the work to time


def our_neighbours(data: Data) -> Work:
    return lambda: metrics.rank(data.points, data.labels, k=8)


def our_thousand_neighbours(data: Data) -> Work:
    return lambda: metrics.rank(data.points, data.labels, k=1000)


def our_neighbours_in_torch(data: Data) -> Work:
    import torch

    from train.loop import knn

    return lambda: knn.device_neighbours(data.points, data.points, 10, device=torch.device("cpu"))


def bare_faiss(data: Data) -> Work:
    return lambda: faiss.knn(data.points, data.points, 9, faiss.METRIC_INNER_PRODUCT)


def pml_neighbours(data: Data) -> Work:
    import torch
    from pytorch_metric_learning.utils.inference import FaissKNN

    points, search = torch.from_numpy(data.points), FaissKNN()
    return lambda: search(points, 8, points, ref_includes_query=True)


def our_metrics(data: Data) -> Work:
    """All metrics of all queries, given as many neighbours as the largest class needs."""
    ranking = metrics.rank(data.points, data.labels, k=16)

    def work() -> str:
        values = [
            metrics.mean(per_query.recall(ranking, (1, 2, 4, 8))),
            metrics.mean(per_query.precision(ranking, (1, 2, 4, 8))),
            metrics.mean(per_query.r_precision(ranking)),
            metrics.mean(per_query.map_at_r(ranking)),
        ]
        return f"MAP@R {values[-1]:.6f}"

    return work


def our_metrics_of_a_thousand(data: Data) -> Work:
    """Recall and precision at 1, 10, 100 and 1000, given 1,000 neighbours."""
    ranking = metrics.rank(data.points, data.labels, k=1000)
    return lambda: (per_query.recall(ranking, KS), per_query.precision(ranking, KS))


def pml_metrics(data: Data) -> Work:
    """The same metrics from the same neighbours."""
    import torch
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

    ranking = metrics.rank(data.points, data.labels, k=16)
    found = torch.from_numpy(2 - 2 * ranking.scores), torch.from_numpy(ranking.rows.astype(np.int64))
    include = ("precision_at_1", "r_precision", "mean_average_precision_at_r")
    calculator = AccuracyCalculator(
        include=include, k=16, device=torch.device("cpu"), knn_func=lambda *_: found
    )
    points, labels = torch.from_numpy(data.points), torch.from_numpy(data.labels)
    return lambda: f"MAP@R {calculator.get_accuracy(points, labels)['mean_average_precision_at_r']:.6f}"


def our_similarities(data: Data) -> Work:
    return lambda: metrics.similarities(data.points, data.labels)


def our_intervals(data: Data) -> Work:
    values = np.random.default_rng(0).random((len(data.points), 11))
    return lambda: bootstrap_intervals(values)


def our_clusters(data: Data) -> Work:
    def work() -> str:
        clusters = metrics.kmeans(data.points, len(np.unique(data.labels)))
        return f"NMI {metrics.nmi(data.labels, clusters):.4f}"

    return work


def faiss_clusters(data: Data) -> Work:
    """FAISS k-means with its default of 25 iterations."""

    def work() -> str:
        size = data.points.shape[1], len(np.unique(data.labels))
        model = faiss.Kmeans(*size, min_points_per_centroid=1)  # silences a warning
        model.train(data.points)
        clusters = model.index.search(data.points, 1)[1][:, 0]
        return f"NMI {metrics.nmi(data.labels, clusters):.4f}"

    return work


def everything(data: Data) -> Work:
    def work() -> str:
        values = evaluate("the model", data.points, data.labels, ks=KS).result.values
        return f"R@1 {values['recall_at_1']:.3f}, MAP@R {values['map_at_r']:.3f}, NMI {values['nmi']:.3f}"

    return work


@dataclass(frozen=True)
class Contender:
    """Print a line of the table; the goal is a ratio to the product, or seconds."""

    prepare: Callable[[Data], Work]
    goal: str = ""


CONTENDERS = {
    "neighbours, ours": Contender(our_neighbours, "1.5x"),
    "neighbours, ours in torch": Contender(our_neighbours_in_torch),
    "neighbours, bare FAISS": Contender(bare_faiss),
    "neighbours, PML": Contender(pml_neighbours),
    "1000 neighbours, ours": Contender(our_thousand_neighbours),
    "metrics, ours": Contender(our_metrics, "0.2 s"),
    "metrics, PML": Contender(pml_metrics),
    "metrics of 1000, ours": Contender(our_metrics_of_a_thousand),
    "all similarities, ours": Contender(our_similarities, "2.5x"),
    "intervals, ours": Contender(our_intervals, "3 s"),
    "k-means, ours": Contender(our_clusters),
    "k-means, FAISS": Contender(faiss_clusters),
    "complete evaluation, ours": Contender(everything),
}


# ---- child process


def measure(contender: Contender, data: Data, rounds: int) -> dict[str, Any]:
    work = contender.prepare(data)
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak of the preparation
    before = memory("VmRSS")
    taken, limit = [], []
    for number in range(rounds):
        start = time.perf_counter()
        said = work()
        taken.append(time.perf_counter() - start)
        if number == 0:
            peak = memory("VmHWM") - before
        start = time.perf_counter()
        product(data)
        limit.append(time.perf_counter() - start)
    return {
        "seconds": statistics.median(taken),
        "limit": statistics.median(limit),
        "to_limit": statistics.median(taken) / statistics.median(limit),
        "peak_mib": peak,
        "note": said if isinstance(said, str) else "",
    }


def memory(what: str) -> float:
    """Return the memory of this process in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(what))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--images", type=int, default=12_000)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--sop", action="store_true", help="60,502 images, 512 dimensions, one round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="only contenders whose name contains this")
    parser.add_argument("--child", choices=CONTENDERS, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, help="output file")
    args = parser.parse_args()
    if args.sop:
        args.images, args.dim, args.rounds = 60_502, 512, 1
    if args.child:
        row = measure(CONTENDERS[args.child], clustered(args.images, args.dim), args.rounds)
        print(json.dumps(row))
        return
    print(f"{args.images:,} x {args.dim}, {faiss.omp_get_max_threads()} threads")
    print(f"{'':28}{'s':>9}{'to product':>12}{'goal':>8}{'peak MiB':>10}")
    rows = {}
    for name, contender in CONTENDERS.items():
        if args.only not in name:
            continue
        words = [f"--{option}={getattr(args, option)}" for option in ("images", "dim", "rounds")]
        command = [sys.executable, "-m", "benchmarks.evaluation", f"--child={name}", *words]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        row = rows[name] = json.loads(done.stdout.splitlines()[-1])
        numbers = f"{row['seconds']:9.2f}{row['to_limit']:11.2f}x{contender.goal:>8}{row['peak_mib']:10.0f}"
        print(f"{name:28}{numbers}  {row['note']}", flush=True)
    if args.json:
        args.json.write_text(json.dumps({"images": args.images, "dim": args.dim, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
