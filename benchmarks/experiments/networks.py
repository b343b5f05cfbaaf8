"""Tables of networks that are trained from scratch, all at once on one device, within a limit of time.

Every finished run is one line of NAME.jsonl, so that a killed process loses only the runs under way, and the
same command goes on with the others. The divisions come one after the other: for each, the runs that the
learning rate of a method is chosen by, and then those on the test classes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.experiments.arrays import load_packed
from benchmarks.experiments.catalogue import Table, load_setups
from benchmarks.experiments.network_training import Engine, Images, Run
from benchmarks.experiments.runs import Job
from retrieval.errors import InputError

CHOOSING = 0.4  # of the steps of a run, for the runs that the learning rate is chosen by
MOST_STEPS, FEWEST_STEPS = 3000, 300
EAGER_STEPS = 400  # where speed is not measured: in several processes
EAGER_PROCESSES = 14
_RESERVE = 0.85  # of the time that is left, for the runs
_CHUNK, _EAGER_CHUNK = 20, 2  # steps queued at a time, by a graph and one by one
_AHEAD = 2  # parts of a run that are queued at once
_TRIED = 40  # steps by which speed is measured
_LIMIT_OF_PROBLEMS = 0.25  # share of losses that cannot be recorded, from which on there are more processes
_NOT_RECORDED = 3  # exit status of a worker
_FIRST_RESULT = 90.0  # seconds


@dataclass
class Lane:
    """One method on one setup, and how far it is.

    Attributes:
        job: The table on its setup.
        variant: Name of the method.
        engine: Trains its networks.
        course: Runs that are still to do; it looks at the results to choose a rate.
        run: Run under way.
        queued: Steps of it that are queued.
        events: Ends of queued parts.
        read: Returns the numbers of a queued measurement.
        began: When the run began.
        pace: Seconds of a step, in the last run.
    """

    job: Job
    variant: str
    engine: Engine
    course: Iterator[Run]
    run: Run | None = None
    queued: int = 0
    events: deque[torch.cuda.Event | None] = field(default_factory=deque)
    read: Callable[[], dict[str, float]] | None = None
    began: float = 0.0
    pace: float = 0.0


class Records:
    """The lines of a file of results, which several processes append to.

    Args:
        file: The file; created if needed.
    """

    def __init__(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self._file = file
        self.lines: list[dict[str, Any]] = read_records(file) if file.is_file() else []
        if file.is_file() and not file.read_bytes().endswith(b"\n"):  # a killed process's last line
            self._append(b"\n")

    @property
    def steps(self) -> int | None:
        """Steps of a run, if it is fixed already."""
        found = [int(line["steps"]) for line in self.lines if line["kind"] == "plan"]
        return found[0] if found else None

    def add(self, line: Mapping[str, Any]) -> None:
        """Append a line at once."""
        self.lines.append(dict(line))
        self._append(json.dumps(line).encode() + b"\n")

    def _append(self, text: bytes) -> None:
        with self._file.open("ab", buffering=0) as out:  # one write, which other processes do not cut
            out.write(text)

    def runs(self, job: Job, variant: str, division: int) -> list[dict[str, Any]]:
        """Return the finished runs of a method in a division."""
        key = {"kind": "run", "setup": job.setup.name, "variant": variant, "division": division}
        return [line for line in self.lines if key.items() <= line.items()]


def read_records(file: Path) -> list[dict[str, Any]]:
    """Return the lines of a file; one that a killed process did not finish is left out."""
    found = []
    for line in file.read_text().splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def train_table(
    table: Table, data: Path, out: Path, *, device: str, seconds: float, steps: int | None, processes: int
) -> int:
    """Train what is missing of a table in processes of its own; return how many runs there are.

    On a GPU one process trains all networks at the same time. If its losses cannot be recorded as CUDA
    graphs, or it fails before there is a result, several processes take the steps one by one.

    Args:
        table: A table of networks.
        data: Folder of the arrays.
        out: Folder of the results.
        device: "cuda" or "cpu".
        seconds: Time that the whole may take.
        steps: Steps of a run; `None` to measure the speed first.
        processes: Processes; 0 for one on a GPU, and 14 if that fails.
    """
    deadline = time.monotonic() + seconds
    file = out / f"{table.name}.jsonl"
    if processes == 0 and device == "cuda":
        status = _run_workers(table, data, out, device, deadline, steps, 1, graph=True)
        if status == 0 or time.monotonic() > deadline - 20:
            return len(read_records(file))
        print(f"the process with graphs ended with status {status}; going on without graphs", flush=True)
        processes = EAGER_PROCESSES
    known = Records(file)
    if known.steps is None:
        known.add({"kind": "plan", "steps": steps or EAGER_STEPS, "graph": False, **_machine(device)})
    _run_workers(table, data, out, device, deadline, None, max(1, processes), graph=False)
    return len(read_records(file))


def _run_workers(
    table: Table,
    data: Path,
    out: Path,
    device: str,
    deadline: float,
    steps: int | None,
    count: int,
    *,
    graph: bool,
) -> int:
    """Run worker processes until they end or the time is over; return the worst exit status."""
    file = out / f"{table.name}.jsonl"
    before = len(read_records(file)) if file.is_file() else 0
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_DEVICE_MAX_CONNECTIONS": "32"}
    command = [sys.executable, "-m", "benchmarks.experiments", "networks", table.name, "--data", str(data)]
    command += ["--out", str(out), "--device", device, *(["--steps", str(steps)] if steps else [])]
    command += ["--graph"] if graph else []
    started = time.monotonic()
    left = deadline - started
    workers = [
        subprocess.Popen(
            [*command, "--seconds", f"{left - 2:.1f}", "--worker", str(number), str(count)], env=environment
        )
        for number in range(count)
    ]
    try:
        while any(worker.poll() is None for worker in workers) and time.monotonic() < deadline:
            time.sleep(0.2)
            silent = graph and time.monotonic() - started > _FIRST_RESULT
            if silent and (not file.is_file() or len(read_records(file)) <= before):
                print("no result yet: stopped", flush=True)
                return _NOT_RECORDED
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    if time.monotonic() >= deadline:
        return 0
    return max(abs(int(worker.returncode)) for worker in workers)


def work(
    table: Table,
    data: Path,
    out: Path,
    *,
    device: str,
    seconds: float,
    steps: int | None,
    graph: bool,
    share: tuple[int, int] = (0, 1),
) -> int:
    """Train the share of one process until the time is over; return its exit status.

    Args:
        share: Number of this process, and how many there are.
    """
    deadline = time.monotonic() + seconds
    records = Records(out / f"{table.name}.jsonl")
    torch.backends.cudnn.benchmark = False
    lanes = list(_lanes(table, data, records, device, graph, share, records.steps or steps))
    problems = {f"{lane.job.setup.name} {lane.variant}": lane.engine.problem for lane in lanes}
    problems = {name: problem for name, problem in problems.items() if problem}
    for name, problem in problems.items():
        print(f"{name}: not recorded as a graph: {problem}", flush=True)
    if not lanes or len(problems) > _LIMIT_OF_PROBLEMS * len(lanes):
        return _NOT_RECORDED
    _synchronize(device)
    if records.steps is None:
        pace = 0.0 if steps else measure_pace(lanes, device)
        print(f"engines are ready with {deadline - time.monotonic():.0f} s left", flush=True)
        chosen = steps or _steps_for(table, pace, measure_scoring(lanes, device), deadline)
        plan = {"steps": chosen, "graph": graph, "pace": pace, "not_recorded": sorted(problems)}
        records.add({"kind": "plan", **plan, **_machine(device)})
        print(f"{chosen} steps a run; one step of all {len(lanes)} networks takes {pace:.4f} s", flush=True)
    _train(lanes, records, deadline)
    return 0


def _lanes(
    table: Table,
    data: Path,
    records: Records,
    device: str,
    graph: bool,
    share: tuple[int, int],
    steps: int | None,
) -> Iterator[Lane]:
    setups = load_setups()
    every = [(setup, variant) for variant in table.variants for setup in table.setups]
    own = every[share[0] :: share[1]]
    found: dict[str, tuple[Job, Images]] = {}
    for setup, variant in own:
        if setup not in found:
            job = Job(table, setups[setup], Path())
            found[setup] = (job, _images(job, data, device))
        job, images = found[setup]
        loss, model = table.variants[variant]["loss"], job.recipe()["model"]
        try:
            engine = Engine(loss, model, images, steps or MOST_STEPS, graph=graph)
        except RuntimeError as error:  # of CUDA: the others may still work
            print(f"{setup} {variant}: left out: {error}", flush=True)
            continue
        lane = Lane(job, variant, engine, iter(()))
        lane.course = _course(lane, records)
        yield lane


def _images(job: Job, data: Path, device: str) -> Images:
    recipe = job.recipe()
    name = recipe["data"].removeprefix("csv:").partition("-division")[0]
    size, augment, batch = recipe["preprocess"]["size"], recipe["augment"], recipe["batch"]
    packed = load_packed(name, data)
    if packed.images.shape[1] != size:
        raise InputError(f"{name}.npz: images are not of {size} pixels; pack them again")
    return Images(
        packed,
        torch.device(device),
        classes=batch["classes"],
        per_class=batch["per_class"],
        shift=round(augment["shift"] * size),
        flip=augment["flip"],
    )


def _course(lane: Lane, records: Records) -> Iterator[Run]:
    """Yield the missing runs of a method: in each division those of the rates, then those of the seeds."""
    table = lane.job.table
    rates = table.spaces["optimizer.lr"]["choices"]
    for division in range(table.divisions):
        steps = records.steps
        assert steps is not None, "the plan is written first"

        def done(run: Run) -> bool:
            wanted = {"choosing": run.choosing, "lr": run.lr, "seed": run.seed}
            lines = records.runs(lane.job, lane.variant if run.steps else table.untrained[0], run.division)
            return any(wanted.items() <= line.items() for line in lines)

        if lane.variant == table.baseline:
            untrained = (Run(division, seed, 0.0, 0, False) for seed in range(table.seeds))
            yield from (run for run in untrained if not done(run))
        tried = (Run(division, 0, lr, round(CHOOSING * steps), True) for lr in rates)
        yield from (run for run in tried if not done(run))
        best = best_rate(records.runs(lane.job, lane.variant, division))
        chosen = (Run(division, seed, best, steps, False) for seed in range(table.seeds))
        yield from (run for run in chosen if not done(run))


def best_rate(runs: Sequence[Mapping[str, Any]]) -> float:
    """Return the learning rate with the best MAP@R on held-out training classes."""
    tried = [run for run in runs if run["choosing"]]
    return float(max(tried, key=lambda run: run["map_at_r"])["lr"])


def _train(lanes: Sequence[Lane], records: Records, deadline: float) -> None:
    """Let all methods train at the same time until they are done or the time is over.

    Of those without a graph, whose steps keep the process busy, one trains at a time; they take turns.
    """
    waiting = list(lanes)
    while waiting and time.monotonic() < deadline:
        moved = False
        for lane in list(waiting):
            if lane.run is None:
                if not lane.engine.recorded and any(
                    other.run is not None and not other.engine.recorded for other in waiting
                ):
                    continue
                waiting.remove(lane)
                moved = True
                if not _begin(lane, deadline):
                    continue
                waiting.append(lane)
            while lane.events and _is_over(lane.events[0]):
                lane.events.popleft()
                moved = True
            if lane.read is not None and not lane.events:
                _finish(lane, records)
            elif lane.read is None and len(lane.events) < _AHEAD:
                _queue(lane)
                moved = True
        if not moved:
            time.sleep(0.0005)


def _begin(lane: Lane, deadline: float) -> bool:
    """Begin the next run; return False if there is none, or no time for it."""
    run = next(lane.course, None)
    now = time.monotonic()
    if run is None or now + lane.pace * run.steps > deadline:
        return False
    lane.run, lane.queued, lane.began = run, 0, now
    lane.engine.begin(run)
    return True


def _queue(lane: Lane) -> None:
    """Queue the next part of a run: some steps, or its measurement."""
    run = lane.run
    assert run is not None
    if lane.queued < run.steps:
        count = min(_CHUNK if lane.engine.recorded else _EAGER_CHUNK, run.steps - lane.queued)
        lane.engine.advance(count)
        lane.queued += count
    else:
        lane.read = lane.engine.measure(run)
    lane.events.append(lane.engine.mark())


def _finish(lane: Lane, records: Records) -> None:
    run = lane.run
    assert run is not None
    assert lane.read is not None
    values = {name: None if value != value else round(value, 5) for name, value in lane.read().items()}
    seconds = time.monotonic() - lane.began
    if run.steps:
        lane.pace = seconds / run.steps
    records.add(
        {
            "kind": "run",
            "setup": lane.job.setup.name,
            "variant": lane.variant if run.steps else lane.job.table.untrained[0],
            "division": run.division,
            "choosing": run.choosing,
            "lr": run.lr,
            "seed": run.seed,
            "steps": run.steps,
            **values,
            "seconds": round(seconds, 2),
        }
    )
    lane.run = lane.read = None


def _is_over(event: torch.cuda.Event | None) -> bool:
    return event is None or event.query()


def measure_pace(lanes: Sequence[Lane], device: str) -> float:
    """Return the seconds that one step of every network takes, all at the same time.

    Those that are not recorded are left out if others are: they get as far as they can.
    """
    engines = [lane.engine for lane in lanes if lane.engine.recorded] or [lane.engine for lane in lanes]
    for engine in engines:
        engine.begin(Run(0, 0, 1e-3, FEWEST_STEPS, False))
    _synchronize(device)
    began = time.monotonic()
    for _ in range(_TRIED):
        for engine in engines:
            engine.advance(1)
    _synchronize(device)
    return (time.monotonic() - began) / _TRIED


def measure_scoring(lanes: Sequence[Lane], device: str) -> float:
    """Return the seconds that the beginning and the measurement of one run of every network take."""
    _synchronize(device)
    began = time.monotonic()
    for lane in lanes:
        lane.engine.begin(Run(0, 0, 1e-3, FEWEST_STEPS, False))
        lane.engine.measure(Run(0, 0, 1e-3, FEWEST_STEPS, False))
    _synchronize(device)
    return time.monotonic() - began


def _steps_for(table: Table, pace: float, scoring: float, deadline: float) -> int:
    """Return the steps of a run with which all runs fit into the time."""
    rates = len(table.spaces["optimizer.lr"]["choices"])
    runs = table.divisions * (rates + table.seeds)
    whole = table.divisions * (CHOOSING * rates + table.seeds)  # in runs of all steps
    time_left = _RESERVE * (deadline - time.monotonic()) - runs * scoring
    return int(min(max(time_left / (whole * pace), FEWEST_STEPS), MOST_STEPS) // 50 * 50)


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _machine(device: str) -> dict[str, str]:
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    return {"device": name, "torch": torch.__version__}
