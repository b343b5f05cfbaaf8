"""Check everything that needs a GPU, and print one table; under 10 minutes, without a network.

Each check runs in a process of its own: after an error on a GPU, nothing else works in the same process.

    make gpu-check
    python -m benchmarks.gpu_check --only losses steps
    python -m benchmarks.gpu_check --write            # also writes the results into docs/gpu.md
    python -m benchmarks.gpu_check --device cpu       # a trial of this program with small work, no GPU needed
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks.gpu_check import losses, page, runtime, training, vectors
from benchmarks.gpu_check.results import Row, to_text
from benchmarks.gpu_check.workload import Workload
from retrieval.errors import InputError
from train.loop.process_group import find_device

CHECKS: dict[str, Callable[[Workload], Iterator[Row]]] = {
    "losses": lambda work: losses.compare(work.device),
    "steps": training.steps,
    "precision": training.precision,
    "resume": training.resume,
    "rates": training.rates,
    "inference": runtime.inference,
    "indexing": runtime.indexing,
    "galleries": runtime.galleries,
    "vectors": vectors.compare,
}
LIMIT = 240  # seconds of one check


def in_own_process(name: str, work: Workload) -> list[Row]:
    """Run a check in a process of its own and return its rows; a failure is a row as well."""
    command = [sys.executable, "-m", "benchmarks.gpu_check", "--device", str(work.device)]
    try:
        process = subprocess.run(
            [*command, "--check", name, "--folder", str(work.folder)],
            capture_output=True,
            text=True,
            timeout=LIMIT,
        )
    except subprocess.TimeoutExpired:
        return [Row("stopped", f"not done after {LIMIT} s", "FAILED")]
    rows = [Row(**json.loads(line)) for line in process.stdout.splitlines() if line.startswith("{")]
    if process.returncode:
        reason = (process.stderr.strip().splitlines() or ["no message"])[-1]
        rows.append(Row("ended with an error", reason[:300], "FAILED"))
    return rows


def run_all(names: list[str], work: Workload) -> tuple[dict[str, list[Row]], dict[str, float]]:
    """Return the rows and the seconds of each check."""
    found, seconds = {}, {}
    for number, name in enumerate(names, 1):
        print(f"{number}/{len(names)} {name}", file=sys.stderr, flush=True)
        start = time.monotonic()
        found[name] = in_own_process(name, work)
        seconds[name] = time.monotonic() - start
    return found, seconds


def usable_device(name: str) -> torch.device:
    """Return a device; end the program where it does not work."""
    try:
        return find_device(name)
    except InputError as error:
        reason = str(error.__cause__).splitlines()[0].rstrip(".")
        raise SystemExit(
            f"{name} does not work here ({reason}); `lookalike doctor` shows why, and "
            "`python -m benchmarks.gpu_check --device cpu` tries this program without a GPU"
        ) from error


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N or cpu")
    parser.add_argument("--only", nargs="+", choices=CHECKS, default=[*CHECKS], metavar="CHECK")
    parser.add_argument("--json", type=Path, help="output file")
    parser.add_argument("--write", action="store_true", help="write the results into docs/gpu.md")
    parser.add_argument("--check", choices=CHECKS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    device = usable_device(args.device)
    if args.check:
        for row in CHECKS[args.check](Workload.on(device, args.folder)):
            print(json.dumps(asdict(row)), flush=True)
        return
    with tempfile.TemporaryDirectory() as folder:
        found, seconds = run_all(args.only, Workload.on(device, Path(folder)))
    print(to_text(found, seconds))
    results = page.results(device, found, seconds)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))
    if args.write:
        page.write(results)
    sys.exit(any(row.verdict == "FAILED" for rows in found.values() for row in rows))


if __name__ == "__main__":
    main()
