"""Check everything that needs a GPU, and print one table, without a network.

Each check runs in a process of its own: after an error on a GPU, nothing else works in the same process.
Nothing is installed; a check whose packages are missing says so. `--seconds` bounds the whole, and what a
check has found when its time is up is kept. `--json` is written after every check, so that pieces can be run
one by one and merged.

    make gpu-check
    python -m benchmarks.gpu_check --only losses steps --json first.json
    python -m benchmarks.gpu_check --merge first.json second.json --write     # into docs/gpu.md; needs no GPU
    python -m benchmarks.gpu_check --device cpu       # a trial of this program with small work, no GPU needed
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_check import page
from benchmarks.gpu_check.results import Row, to_text
from benchmarks.gpu_check.workload import Workload
from retrieval.errors import InputError
from train.loop.process_group import find_device


@dataclass(frozen=True)
class Check:
    """A check: a function of the workload that yields rows.

    Attributes:
        function: Module in this package and function.
        needs: Packages that must be installed.
        limit: Most seconds.
    """

    function: str
    needs: tuple[str, ...] = ()
    limit: float = 120

    def run(self, work: Workload) -> Iterator[Row]:
        missing = [package for package in self.needs if importlib.util.find_spec(package) is None]
        if missing:
            yield Row("not run", f"not installed: {', '.join(missing)}", "skipped")
            return
        module, _, name = self.function.partition(":")
        function: Callable[[Workload], Iterator[Row]] = getattr(
            importlib.import_module(f"benchmarks.gpu_check.{module}"), name
        )
        yield from function(work)


SETTINGS = ("pydantic", "safetensors")  # of losses, and of a training
CHECKS = {
    "ceilings": Check("ceilings:ceilings", limit=60),
    "losses": Check("losses:compare", SETTINGS[:1]),
    "compiled": Check("compiled:compiled", SETTINGS[:1], 300),
    "graphs": Check("graphs:graphs", SETTINGS[:1], 180),
    "steps": Check("training:steps", SETTINGS, 300),
    "networks": Check("training:networks", SETTINGS, 180),
    "precision": Check("training:precision", SETTINGS, 180),
    "resume": Check("training:resume", SETTINGS, 180),
    "rates": Check("training:rates", SETTINGS),
    "crossover": Check("vectors:crossover", ("faiss",), 60),
    "vectors": Check("vectors:compare", ("faiss",)),
    "inference": Check("runtime:inference", ("onnxruntime", "onnxscript"), 180),
    "drift": Check("drift:drift", ("onnxruntime", "onnxscript", "faiss")),
    "indexing": Check("runtime:indexing", ("onnxruntime", "onnxscript", "faiss")),
    "galleries": Check("runtime:galleries", ("onnxruntime", "onnxscript", "faiss")),
}
SECONDS = 900  # of all checks
LEAST = 10  # seconds that a check is worth starting for


def in_own_process(name: str, work: Workload, seconds: float) -> list[Row]:
    """Run a check in a process of its own and return its rows; a failure is a row as well."""
    command = [sys.executable, "-m", "benchmarks.gpu_check", "--device", str(work.device)]
    command += ["--check", name, "--folder", str(work.folder)]
    command += ["--models", *map(str, work.models)] if work.models else []
    command += ["--images", str(work.given_images)] if work.given_images else []
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=errors,
            start_new_session=True,  # so that commands which the check started end with it
        )
        try:
            code: int | None = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for file in (output, errors):
            file.seek(0)
        rows = [Row(**json.loads(line)) for line in output if line.startswith("{") and line.endswith("\n")]
        if code is None:
            rows.append(Row("stopped", f"not done after {seconds:.0f} s", "FAILED"))
        elif code:
            reason = (errors.read().strip().splitlines() or ["no message"])[-1]
            rows.append(Row("ended with an error", reason[:300], "FAILED"))
    return rows


def run_all(
    names: list[str],
    work: Workload,
    seconds: float,
    keep: Callable[[dict[str, list[Row]], dict[str, float]], object] = lambda *_: None,
) -> tuple[dict[str, list[Row]], dict[str, float]]:
    """Return the rows and the seconds of each check; call `keep` with both after each."""
    found: dict[str, list[Row]] = {}
    taken: dict[str, float] = {}
    end = time.monotonic() + seconds
    for number, name in enumerate(names, 1):
        print(f"{number}/{len(names)} {name}", file=sys.stderr, flush=True)
        start = time.monotonic()
        if end - start < LEAST:
            found[name] = [Row("not run", f"no time left of {seconds:.0f} s", "skipped")]
        else:
            found[name] = in_own_process(name, work, min(CHECKS[name].limit, end - start))
        taken[name] = time.monotonic() - start
        keep(found, taken)
    return found, taken


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
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of all checks [%(default)s]")
    parser.add_argument("--json", type=Path, help="output file, written after each check")
    parser.add_argument(
        "--merge", nargs="+", type=Path, metavar="FILE", help="merge files of --json; run nothing"
    )
    parser.add_argument("--write", action="store_true", help="write the results into docs/gpu.md")
    parser.add_argument(
        "--models", nargs="+", type=Path, default=[], help="model files for the check `drift`"
    )
    parser.add_argument("--images", type=Path, help="folder of images for the check `drift`")
    parser.add_argument("--check", choices=CHECKS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, default=Path(), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.merge:
        results = page.merge([json.loads(file.read_text()) for file in args.merge])
    else:
        work = Workload.on(usable_device(args.device), args.folder, tuple(args.models), args.images)
        if args.check:
            for row in CHECKS[args.check].run(work):
                print(json.dumps(asdict(row)), flush=True)
            return
        results = measure(work, args.only, args.seconds, args.json)
    print(to_text(*page.rows(results)))
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))
    if args.write:
        page.write(results)
    sys.exit(any(row["verdict"] == "FAILED" for rows in results["checks"].values() for row in rows))


def measure(work: Workload, names: list[str], seconds: float, file: Path | None) -> dict[str, Any]:
    """Run checks and return the results; write them into a file after each check."""

    def keep(found: dict[str, list[Row]], taken: dict[str, float]) -> None:
        if file:
            file.write_text(json.dumps(page.results(work.device, found, taken), indent=1))

    with tempfile.TemporaryDirectory() as folder:
        found, taken = run_all(names, replace(work, folder=Path(folder)), seconds, keep)
    return page.results(work.device, found, taken)


if __name__ == "__main__":
    main()
