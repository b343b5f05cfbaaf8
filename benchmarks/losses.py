"""CPU time, kernels and memory of every loss, as ratios to its limit and to pytorch-metric-learning.

The limit of a loss on [B, D] embeddings is X Xᵀ forward and the two matrix products of its backward pass. All
contenders of a line run interleaved for several rounds on one thread, and the medians of their CPU time are
compared: on a busy machine these ratios are reliable, wall time is not (on a GPU it is wall time). `kernels`
are the operations of forward and backward pass that are not views, with the branches that accelerators take;
eager execution launches about as many.

    python benchmarks/losses.py --quick
    python benchmarks/losses.py --sizes 128x512 512x512 --only triplet --json losses.json
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # silences the profiler, which measures memory

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from train import losses
from train.losses.class_groups import class_groups
from train.losses.transport import solve_transport

Step = Callable[[], None]


@dataclass(frozen=True)
class Contender:
    """One line of the table: our specification, and a function that builds the same loss from PML."""

    label: str
    spec: dict[str, Any]
    peer: Callable[[Any], Callable[[Tensor, Tensor], Tensor]] | None = None
    peer_limit: int = 2048  # largest batch for the peer: some take minutes


def _triplet(pml: Any, miner: Any = None, **margin: Any) -> Callable[[Tensor, Tensor], Tensor]:
    loss = pml.losses.TripletMarginLoss(**margin)
    return lambda x, y: loss(x, y, None if miner is None else miner(x, y))


def _multi_similarity(pml: Any) -> Callable[[Tensor, Tensor], Tensor]:
    loss, miner = pml.losses.MultiSimilarityLoss(2, 50, 0.5), pml.miners.MultiSimilarityMiner(0.1)
    return lambda x, y: loss(x, y, miner(x, y))


def _margin(pml: Any) -> Callable[[Tensor, Tensor], Tensor]:
    loss, miner = pml.losses.MarginLoss(), pml.miners.DistanceWeightedMiner()
    return lambda x, y: loss(x, y, miner(x, y))


def _all_mining(positive: str, negative: str) -> dict[str, str]:
    return {"positive": positive, "negative": negative}


CONTENDERS = [
    Contender("triplet", {"name": "triplet"}),
    Contender("triplet optimal", {"name": "triplet", "negatives": "optimal"}),
    Contender("triplet optimal-segment", {"name": "triplet", "negatives": "optimal-segment"}),
    Contender(
        "triplet optimal-segment chord",
        {"name": "triplet", "negatives": "optimal-segment", "normalize": True},
    ),
    Contender(
        "triplet optimal min", {"name": "triplet", "negatives": "optimal", "negative_reduction": "min"}
    ),
    Contender("triplet symmetric", {"name": "triplet", "negatives": "symmetric"}),
    Contender("triplet interpolated", {"name": "triplet", "negatives": "interpolated"}),
    Contender(
        "triplet all",
        {"name": "triplet", "mining": _all_mining("all", "all")},
        lambda pml: _triplet(pml, margin=0.2),
        512,
    ),
    Contender(
        "triplet semi-hard",
        {"name": "triplet", "mining": _all_mining("all", "semi-hard")},
        lambda pml: _triplet(
            pml, pml.miners.TripletMarginMiner(0.2, type_of_triplets="semihard"), margin=0.2
        ),
        512,
    ),
    Contender(
        "triplet hard",
        {"name": "triplet", "mining": _all_mining("hard", "hard")},
        lambda pml: _triplet(pml, pml.miners.BatchHardMiner(), margin=0.2),
    ),
    Contender("triplet rand-disjoint", {"name": "triplet", "mining": {"name": "rand-disjoint"}}),
    Contender("triplet-cosine", {"name": "triplet-cosine"}),
    Contender("triplet-nca", {"name": "triplet-nca"}),
    Contender("sct", {"name": "sct"}),
    Contender("hphn-triplet", {"name": "hphn-triplet"}),
    Contender("hphn-triplet optimal", {"name": "hphn-triplet", "negatives": "optimal"}),
    Contender("lifted-hard", {"name": "lifted-hard"}),
    Contender("lifted-hard optimal", {"name": "lifted-hard", "negatives": "optimal"}),
    Contender("lifted", {"name": "lifted"}, lambda pml: pml.losses.LiftedStructureLoss(), 128),
    Contender(
        "lifted-generalized",
        {"name": "lifted-generalized"},
        lambda pml: pml.losses.GeneralizedLiftedStructureLoss(),
    ),
    Contender("contrastive", {"name": "contrastive"}, lambda pml: pml.losses.ContrastiveLoss()),
    Contender("binomial-deviance", {"name": "binomial-deviance"}),
    Contender("multi-similarity", {"name": "multi-similarity"}, _multi_similarity),
    Contender("multi-similarity optimal", {"name": "multi-similarity", "negatives": "optimal"}),
    Contender("raw semi-hard", {"name": "raw", "mining": _all_mining("all", "semi-hard")}),
    Contender("raw distance-weighted", {"name": "raw", "mining": _all_mining("all", "distance-weighted")}),
    Contender("equal-weight", {"name": "equal-weight"}),
    Contender("supcon", {"name": "supcon"}, lambda pml: pml.losses.SupConLoss()),
    Contender("supcon guarded", {"name": "supcon", "guard": 0.1}),
    Contender("info-nce", {"name": "info-nce"}, lambda pml: pml.losses.NTXentLoss(0.1), 128),
    Contender("circle", {"name": "circle"}, lambda pml: pml.losses.CircleLoss()),
    Contender("siglip", {"name": "siglip"}),
    Contender("cosent", {"name": "cosent"}),
    Contender("margin", {"name": "margin"}, _margin, 512),
    Contender("n-pair", {"name": "n-pair"}, lambda pml: pml.losses.NPairsLoss()),
    Contender("n-pair symmetric", {"name": "n-pair", "negatives": "symmetric"}),
    Contender("angular", {"name": "angular"}, lambda pml: pml.losses.AngularLoss(), 128),
    Contender("angular symmetric", {"name": "angular", "negatives": "symmetric"}),
    Contender("angular-n-pair", {"name": "angular-n-pair"}),
    Contender("histogram", {"name": "histogram"}, lambda pml: pml.losses.HistogramLoss(n_bins=100), 512),
    Contender("fast-ap", {"name": "fast-ap"}, lambda pml: pml.losses.FastAPLoss(), 512),
    Contender("recall-at-k", {"name": "recall-at-k"}),
    Contender("recall-at-k mixup", {"name": "recall-at-k", "mixup": True}),
    Contender("smooth-ap", {"name": "smooth-ap"}, lambda pml: pml.losses.SmoothAPLoss(), 128),
    Contender("proxy-nca", {"name": "proxy-nca"}),
    Contender("proxy-anchor", {"name": "proxy-anchor"}),
    Contender("soft-triple", {"name": "soft-triple"}),
    Contender("normalized-softmax", {"name": "normalized-softmax"}),
    Contender("spread-out", {"regularizers": [{"name": "spread-out"}]}),
    Contender("cross-entropy", {"regularizers": [{"name": "cross-entropy"}]}),
    Contender("energy", {"regularizers": [{"name": "energy"}]}),
    Contender("mmd-gaussian", {"regularizers": [{"name": "mmd-gaussian"}]}),
    Contender("mmd-laplacian", {"regularizers": [{"name": "mmd-laplacian"}]}),
    Contender("wasserstein", {"regularizers": [{"name": "wasserstein"}]}),
]


def goal(spec: dict[str, Any], size: int, dim: int) -> float | None:
    """Return the goal, as a ratio to the limit, for 512 dimensions and batches of 128 and more.

    For smaller ones, launching an operation takes longer than the products. Soft-triple's 10 proxies for each
    class of 4 samples are 2.5 times the batch: its goal is a ratio to the products with these (`own_limit`).
    Similarity mixup makes tables 2.5 times as wide and as high, and has none.
    """
    if size < 128 or dim < 512 or spec.get("name") == "soft-triple" or spec.get("mixup"):
        return None
    transports = spec.get("regularizers") == [{"name": "wasserstein"}]
    if spec.get("negatives", "batch") == "batch" and not transports:
        return 4.0 if size == 128 else 2.0
    return 10.0 if size == 128 else 4.0


def batch(size: int, dim: int, device: str) -> tuple[Tensor, Tensor]:
    """Return clustered embeddings of size / 4 classes with 4 samples each, and their labels."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(size // 4).repeat_interleave(4)
    centers = torch.randn(size // 4, dim, generator=generator)
    x = F.normalize(centers[labels] + torch.randn(size, dim, generator=generator), dim=1)
    return x.to(device).requires_grad_(), labels.to(device)


def training_step(loss: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor) -> Step:
    """Return a step: forward and backward pass of a loss."""

    def step() -> None:
        x.grad = None
        loss(x, y).backward()

    return step


def limit_step(x: Tensor, others: Tensor | None = None) -> Step:
    """Return a step with only the matrix products that every loss over all pairs needs.

    The pairs are those in the batch, or those with `others`, as proxies, which receive a gradient, too.
    """
    others = x if others is None else others
    grad = torch.randn(len(x), len(others), device=x.device)

    def step() -> None:
        x.grad = others.grad = None
        (x @ others.T).backward(grad)

    return step


def own_limit(module: torch.nn.Module, x: Tensor) -> Step:
    """Return a step with only the matrix products of the batch with the proxies of a loss."""
    (proxies,) = module.parameters()
    return limit_step(x, proxies.detach().clone().requires_grad_())


class _Kernels(TorchDispatchMode):
    """Count operations that are not views."""

    count = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


def kernels(step: Step) -> int:
    """Return the number of kernels of a step on an accelerator, whose branches compiled code takes, too."""
    with mock.patch.object(torch.compiler, "is_compiling", return_value=True), _Kernels() as found:
        step()
    return found.count


def seconds(step: Step, device: str) -> tuple[float, float]:
    """Return the CPU time and the wall time of a step; on a GPU both are wall time."""
    if device == "cuda":
        torch.cuda.synchronize()
    start, cpu = time.perf_counter(), time.process_time()
    step()
    if device == "cuda":
        torch.cuda.synchronize()
    wall = time.perf_counter() - start
    return (wall if device == "cuda" else time.process_time() - cpu), wall


def compare(steps: Sequence[Step], device: str, budget: float) -> list[tuple[float, float]]:
    """Return the median CPU and wall seconds of each step.

    The steps run interleaved for `budget` seconds, at least three times.
    """
    for step in steps:
        seconds(step, device)
    times: list[list[tuple[float, float]]] = [[] for _ in steps]
    end = time.perf_counter() + budget
    while len(times[0]) < 3 or (time.perf_counter() < end and len(times[0]) < 200):
        for step, taken in zip(steps, times, strict=True):
            taken.append(seconds(step, device))
    return [tuple(map(statistics.median, zip(*taken, strict=True))) for taken in times]  # type: ignore[misc]


def peak_bytes(step: Step, device: str) -> int:
    """Return the peak memory of a step beyond the memory held before it."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        return torch.cuda.max_memory_allocated() - before
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        step()
    held = peak = 0
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


def run(
    size: int, dim: int, device: str, chosen: list[Contender], budget: float, compiled: bool
) -> list[dict[str, Any]]:
    """Return one row of results per contender."""
    try:
        import pytorch_metric_learning as pml
        from pytorch_metric_learning import distances, losses, miners  # noqa: F401
    except ImportError:
        pml = None
    x, y = batch(size, dim, device)
    rows = []
    for contender in chosen:
        module = build(contender.spec, size // 4, dim).to(device)
        steps = [limit_step(x), training_step(torch.compile(module) if compiled else module, x, y)]
        if contender.peer is not None and pml is not None and size <= contender.peer_limit:
            steps.append(training_step(contender.peer(pml), x, y))
        times = compare(steps, device, budget)
        memory = [peak_bytes(step, device) for step in steps]
        row = {"loss": contender.label, "batch": size, "dim": dim, "device": device}
        (limit, _), (cpu, wall) = times[:2]
        row |= {"ms": 1e3 * cpu, "wall_ms": 1e3 * wall, "limit_ms": 1e3 * limit, "to_limit": cpu / limit}
        row["kernels"] = kernels(training_step(module, x, y))
        row["goal"] = goal(contender.spec, size, dim)
        row |= {"mib": memory[1] / 2**20, "memory_to_limit": memory[1] / memory[0]}
        if len(steps) > 2:
            row |= {"peer_ms": 1e3 * times[2][0], "to_peer": cpu / times[2][0]}
            row["peer_mib"] = memory[2] / 2**20
        rows.append(row)
        print_row(row)
    return rows


def build(spec: dict[str, Any], classes: int, dim: int) -> torch.nn.Module:
    return losses.build(spec, num_classes=classes, embedding_dim=dim, per_class=4)


def print_row(row: dict[str, Any]) -> None:
    peer = f"{row['to_peer']:8.3f}x {row['peer_mib']:8.1f}" if "to_peer" in row else ""
    aim = f"{row['goal']:5.1f}x{'   ' if row['to_limit'] <= row['goal'] else ' no'}" if row["goal"] else ""
    ours = f"{row['loss']:30}{row['ms']:10.2f}{row['wall_ms']:10.2f}{row['to_limit']:9.2f}x{aim:9}"
    print(f"{ours}{row['kernels']:6}{row['mib']:9.1f}{row['memory_to_limit']:9.2f}x  {peer}", flush=True)


class Transport:
    """Class-wise transport of 50 classes of 4: ours, and POT's batched log-domain solver."""

    def __init__(self) -> None:
        x, y = batch(200, 64, "cpu")
        self.points = x.detach()
        self.cost = 1 - self.points @ self.points.T
        self.groups = class_groups(y, self.cost.dtype)
        self.exact = solve_transport(
            self.cost.double(), class_groups(y, torch.float64), 2.5e-3, 1e-12, 60
        ).plan
        others = torch.stack([(y != k).nonzero()[:, 0] for k in range(50)])  # [50, 196]
        self.others = others[:, None, :].expand(50, 4, 196)
        self.per_class = self.cost.view(50, 4, 200).gather(2, self.others)
        self.masses = torch.full((50, 4), 1 / 4), torch.full((50, 196), 1 / 196)

    def ours(self) -> Tensor:
        """Return the plan, [200, 200]."""
        return solve_transport(self.cost, self.groups, 2.5e-3, 1e-5, 30).plan

    def peer(self) -> Tensor:
        """Return POT's plan, [200, 200]."""
        import ot

        plan = ot.solve_batch(
            self.per_class, 2.5e-3, *self.masses, method="log_sinkhorn", max_iter=2000, tol=1e-4
        ).plan
        return torch.zeros(50, 4, 200).scatter(2, self.others, plan).view(200, 200)

    def error(self, plan: Tensor) -> float:
        """Return the relative error of the gradient with respect to the class samples."""
        reached, wanted = (one.double() @ self.points.double() for one in (plan, self.exact))
        return float((reached - wanted).norm() / wanted.norm())


def transport(budget: float) -> dict[str, Any] | None:
    """Compare class-wise transport with POT, if it is installed."""
    if importlib.util.find_spec("ot") is None:
        return None
    problem = Transport()
    times = compare([lambda: _discard(problem.ours()), lambda: _discard(problem.peer())], "cpu", budget)
    return {
        "ms": 1e3 * times[0][0],
        "pot_ms": 1e3 * times[1][0],
        "faster": times[1][0] / times[0][0],
        "error": problem.error(problem.ours()),
        "pot_error": problem.error(problem.peer()),
    }


def _discard(_: Tensor) -> None:
    return None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="only 512x512 and 2048x512, for a short time each"
    )
    parser.add_argument(
        "--sizes", nargs="+", metavar="BxD", help="batch size and dimension, for example 512x512"
    )
    parser.add_argument("--only", help="only losses whose label contains this")
    parser.add_argument("--compile", action="store_true", help="use torch.compile")
    parser.add_argument("--seconds", type=float, help="seconds per line")
    parser.add_argument("--json", help="output file")
    parser.add_argument("--threads", type=int, default=1, help="threads on the CPU (default: 1)")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    sizes = [(b, d) for b in (32, 128, 512, 2048) for d in (128, 512)]
    if args.quick:
        sizes = [(512, 512), (2048, 512)]
    if args.sizes:
        sizes = [tuple(map(int, size.split("x"))) for size in args.sizes]
    chosen = [c for c in CONTENDERS if not args.only or args.only in c.label]
    devices = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
    rows = []
    for device in devices:
        for size, dim in sizes:
            print(f"\n{device}, batch {size}, dimension {dim}, {torch.get_num_threads()} threads")
            head = f"{'CPU ms' if device == 'cpu' else 'ms':>10}{'wall ms':>10}{'to limit':>10}{'goal':>6}"
            print(f"{'':30}{head}{'':3}{'kernels':>6}", end="")
            print(f"{'MiB':>9}{'to limit':>10}  {'to PML':>9} {'PML MiB':>8}")
            rows += run(size, dim, device, chosen, args.seconds or (0.5 if args.quick else 2.0), args.compile)
    solver = transport(1.0 if args.quick else 5.0)
    if solver is not None:
        print("\ntransport, batch 200, 50 classes: " + ", ".join(f"{k} {v:.3g}" for k, v in solver.items()))
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"rows": rows, "transport": solver}, file, indent=1)


if __name__ == "__main__":
    main()
