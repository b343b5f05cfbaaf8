"""Training on the device: steps without host reads, bf16 against fp32, resumed runs, and rates."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file

from benchmarks.gpu_check.losses import forbidden_reads, seconds, shares, wait
from benchmarks.gpu_check.results import Row, Verdict, limited
from benchmarks.gpu_check.workload import Workload, lookalike, module, settings
from retrieval import Preprocess
from train.config import Config, ModelConfig
from train.experiments.memory import PeakMemory
from train.loop.optimization import build_optimizer
from train.loop.process_group import join_process_group
from train.loop.run_folder import initial_loss, initial_model
from train.loop.step import Step

LOSS = {"name": "multi-similarity"}
RECALL_TOLERANCE = 0.05  # of Recall@1 between precisions, on about 300 queries
WHOLE = 0.95  # of the speed of the slower half
EXACT = 0.0  # difference of weights after a resumed run, with `deterministic`


def steps(work: Workload) -> Iterator[Row]:
    """Take training steps of each family of backbones while host reads are errors, and time the losses."""
    for batch in work.batches:
        taken = {}
        for backbone in work.backbones:
            row, taken[backbone] = time_step(work, backbone, batch, ())
            yield row
        yield from shares(work.device, taken, batch)


def networks(work: Workload) -> Iterator[Row]:
    """Time steps with a loss that is compiled, or recorded as well, and with a compiled network."""
    if work.device.type == "cuda":
        for parts in (("loss",), ("loss", "graph"), ("network", "loss")):  # the longest compilation is last
            for backbone in work.backbones:
                yield time_step(work, backbone, work.batch, parts)[0]
            torch._dynamo.reset()
    else:
        yield Row("compiled networks", "only for a GPU", "skipped")


def time_step(work: Workload, backbone: str, batch: int, compiled: tuple[str, ...]) -> tuple[Row, float]:
    """Return the row of a training step, and its seconds."""
    side, device = work.backbones[backbone], work.device
    config = Config(
        data="digits",
        model=ModelConfig(backbone=backbone, embedding_dim=512),
        preprocess=Preprocess(size=side, resize=side),
        loss=LOSS,
        precision="bf16" if device.type == "cuda" else "fp32",
        device=str(device),
    )
    group = join_process_group(config.device)
    model = initial_model(config).to(device).train()
    loss = initial_loss(config, batch // 4).to(device)
    optimizer = build_optimizer(model, loss, config.optimizer, fused=device.type == "cuda")
    step = Step(model, loss, optimizer, group, precision=config.precision, compiled=compiled)
    labels = torch.arange(batch // 4, device=device).repeat_interleave(4)
    pixels = torch.randint(0, 256, (batch, side, side, 3), dtype=torch.uint8, device=device)
    peak = PeakMemory(device)
    start = time.perf_counter()
    step(pixels, labels, 1)
    wait(device)
    first = time.perf_counter() - start
    taken = seconds(lambda: step(pixels, labels, 1), 10, device)
    try:
        with forbidden_reads(device):
            step(pixels, labels, 1)
        problem = ""
    except RuntimeError as error:
        problem = f"; waits for the device: {str(error).splitlines()[0]}"
    used = (peak.read() or 0) / 2**30
    what = f"step of {backbone.removeprefix('timm:')} at {side} px, {batch} images"
    row = Row(
        what + (f", compiled {' and '.join(compiled)}" if compiled else ""),
        f"{1000 * taken:.1f} ms, {batch / taken:.0f} images/s, {used:.1f} GiB, first {first:.1f} s{problem}",
        "FAILED" if problem else "ok" if device.type == "cuda" else "",
        {"seconds": taken, "batch": batch, "gib": used, "first": first, "precision": config.precision},
    )
    return row, taken


def precision(work: Workload) -> Iterator[Row]:
    """Compare training in bf16 with fp32 on the digits: Recall@1 on held-out classes."""
    recalls = {}
    # A CPU computes bf16 slowly: this check is a trial there.
    size = {"epochs": 2} if work.device.type == "cuda" else {"epochs": 1, "batch__per_epoch": 3}
    for name in ("fp32", "bf16"):
        run = work.folder / name
        train(run, work, precision=name, split__validation=0.4, **size)
        recalls[name] = last_recall(run)
    difference = abs(recalls["bf16"] - recalls["fp32"])
    note = f"; fp32 {recalls['fp32']:.3f}, bf16 {recalls['bf16']:.3f}"
    yield limited("Recall@1 of bf16 against fp32, digits", difference, RECALL_TOLERANCE, note=note)


def resume(work: Workload) -> Iterator[Row]:
    """Kill a run twice and resume it; the weights must be those of the uninterrupted run."""
    options = {"epochs": 2, "batch__per_epoch": 20, "save_every": 5, "deterministic": "true"}
    whole, killed = work.folder / "whole", work.folder / "killed"
    train(whole, work, **options)
    total = records(whole)[-1]["step"]
    for share in (0.3, 0.7):
        process = start_training(killed, work, resume=killed.exists(), **options)
        while process.poll() is None and not reached(killed, share * total):
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
    train(killed, work, resume=True, **options)
    name = Path("checkpoints", "last", "state.safetensors")
    ours, theirs = load_file(killed / name), load_file(whole / name)
    difference = max(float((ours[key].double() - theirs[key].double()).abs().max()) for key in theirs)
    yield limited("weights of a run killed twice and resumed", difference, EXACT)


def rates(work: Workload) -> Iterator[Row]:
    """Compare `lookalike train` on JPEG files with its halves: the network alone and the loader alone."""
    backbone, side = work.main_backbone
    file = work.folder / "rates.json"
    arguments = {
        "device": work.device,
        "backbone": backbone,
        "size": side,
        "batch": work.batch,
        "steps": 60 if work.device.type == "cuda" else 20,
        "rounds": 1,
        "precision": "bf16" if work.device.type == "cuda" else "fp32",
        "json": file,
    }
    options = [f"--{name}={value}" for name, value in arguments.items()]
    module("benchmarks.training", *options)
    (row,) = json.loads(file.read_text())["rows"]
    note = ", ".join(f"{name} {row[name]:.0f}" for name in ("model", "loader", "whole", "worker"))
    verdict: Verdict = "ok" if row["ratio"] >= WHOLE else "FAILED"
    yield Row(
        "training from JPEG files, of the slower half",
        f"{row['ratio']:.2f} (goal {WHOLE}); images/s: {note}",
        verdict if work.device.type == "cuda" else "",  # on a CPU both halves share the cores
        row,
    )


def start_training(
    run: Path, work: Workload, *, resume: bool = False, **options: object
) -> subprocess.Popen[str]:
    arguments = ["train", "--out", str(run)]
    if resume:
        return lookalike(*arguments, "--resume", check=False)
    given = settings(device=work.device, **options)
    return lookalike(*arguments, "--data", "digits", *given, check=False)


def train(run: Path, work: Workload, *, resume: bool = False, **options: object) -> None:
    """Train on the digits to the end."""
    process = start_training(run, work, resume=resume, **options)
    output, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(f"training failed: {' '.join(output.splitlines()[-2:])}")


def records(run: Path) -> list[dict[str, float]]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines if line.endswith("}")]


def last_recall(run: Path) -> float:
    return next(record["recall_at_1"] for record in reversed(records(run)) if "recall_at_1" in record)


def reached(run: Path, step: float) -> bool:
    return (run / "metrics.jsonl").exists() and any(record["step"] >= step for record in records(run))
