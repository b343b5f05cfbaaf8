"""Training step of two processes with Gloo, compared with one process: communication and efficiency.

The batch is the same: each of the two takes half of it, with one thread each. Reported are the bytes that a
process sends for the gradients and for the embeddings, the time of these two operations alone, and the CPU
time of a step: of the whole batch by one process, of half of it by one process, and of half of it by each of
two. The efficiency is the speed of two processes as a share of twice the speed of one, with the communication
not overlapped, from the formula of docs/distributed.md. Steps are measured in CPU time and operations by
their shortest time, because other programs may run.

The processes use one machine, so the bandwidth is that of the loopback interface. NCCL is not measured.

    python -m benchmarks.distributed
    python -m benchmarks.distributed --backbone resnet50 --size 128 --batch 32
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from retrieval import Preprocess
from train.config import Config, ModelConfig
from train.loop.process_group import ProcessGroup
from train.loop.processes import Processes
from train.loop.run_folder import initial_loss, initial_model
from train.loop.step import Step
from train.losses import gather

CASES = [("conv4", 64, 64), ("resnet18", 64, 64), ("resnet50", 64, 32)]  # backbone, size, batch
PER_CLASS = 4


class Case:
    """A step on pixels in memory, and its two collective operations alone.

    Args:
        backbone: Backbone.
        size: Side of the images.
        batch: Images of the global batch.
        processes: Processes that share it.
    """

    def __init__(self, backbone: str, size: int, batch: int, processes: Processes) -> None:
        config = Config(
            data="",
            model=ModelConfig(backbone=backbone, weights=None, embedding_dim=512),
            preprocess=Preprocess(size=size),
            loss={"name": "triplet", "negatives": "optimal", "margin": 0.2},
        )
        classes = batch // PER_CLASS
        self.model, loss = initial_model(config, pretrained=False), initial_loss(config, classes)
        optimizer = torch.optim.SGD([*self.model.parameters(), *loss.parameters()], lr=1e-4)
        self._step = Step(self.model, loss, optimizer, ProcessGroup(torch.device("cpu"), processes))
        share = batch // processes.size
        random = torch.Generator().manual_seed(processes.rank)
        self._pixels = torch.randint(256, (share, size, size, 3), dtype=torch.uint8, generator=random)
        self._labels = torch.arange(batch)[processes.rank * share :][:share] // PER_CLASS
        self._embeddings = torch.randn(share, 512, generator=random)
        self._gradient = torch.zeros(sum(weight.numel() for weight in self.model.parameters()))
        everyone = torch.randn(batch, 512, generator=random).requires_grad_()
        self._loss = lambda: loss(everyone, torch.arange(batch) // PER_CLASS).backward()

    def step(self) -> None:
        self._step(self._pixels, self._labels, 0)

    def loss(self) -> None:
        self._loss()

    def all_reduce(self) -> None:
        dist.all_reduce(self._gradient)

    def gather(self) -> None:
        gather(self._embeddings, self._labels)


def shortest(work: Callable[[], None], repeats: int, clock: Callable[[], float]) -> float:
    """Return the shortest time of a call in seconds, after one call to warm up."""
    work()
    times = []
    for _ in range(repeats):
        began = clock()
        work()
        times.append(clock() - began)
    return min(times)


def two(rank: int, folder: str, case: tuple[str, int, int], repeats: int) -> None:
    """Write the times of two processes to a file."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/store", world_size=2, rank=rank)
    ours = Case(*case, Processes(rank, 2, rank, 2))
    found = [shortest(ours.step, repeats, time.process_time)]
    found += [shortest(work, 20 * repeats, time.perf_counter) for work in (ours.all_reduce, ours.gather)]
    if rank == 0:
        torch.save(found, f"{folder}/times")
    dist.barrier()
    dist.destroy_process_group()


def measure(case: tuple[str, int, int], repeats: int) -> str:
    """Return a line of the table."""
    backbone, size, batch = case
    whole, half = Case(*case, Processes()), Case(backbone, size, batch // 2, Processes())
    alone, share, loss, half_loss = (
        shortest(work, repeats, time.process_time) for work in (whole.step, half.step, whole.loss, half.loss)
    )
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(two, (folder, case, repeats), nprocs=2)
        together, reduce, gathering = torch.load(f"{folder}/times")
    sent = 4 * sum(weight.numel() for weight in whole.model.parameters())  # 2 (n - 1) / n, with n = 2
    gathered = batch // 2 * (4 * 512 + 8)
    step = share + loss - half_loss + reduce + gathering
    numbers = (
        sent / 1e6,
        gathered / 1e3,
        *(1e3 * t for t in (reduce, gathering, alone, share, together, loss)),
    )
    cells = "".join(f"{number:10.1f}" for number in numbers)
    return f"{backbone:9}{batch:6}{cells}{sent / reduce / 1e9:10.2f}{alone / (2 * step):10.0%}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backbone")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    cases = [(args.backbone, args.size, args.batch)] if args.backbone else CASES
    titles = (
        "sent MB",
        "sent kB",
        "reduce ms",
        "gather ms",
        "one ms",
        "half ms",
        "of two ms",
        "loss ms",
        "GB/s",
    )
    print(f"{'network':9}{'batch':>6}{''.join(f'{title:>10}' for title in titles)}{'efficient':>10}")
    for case in cases:
        print(measure(case, args.repeats), flush=True)


if __name__ == "__main__":
    main()
