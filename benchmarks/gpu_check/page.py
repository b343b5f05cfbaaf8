"""Results of the checks in docs/gpu.md, between two marks."""

from __future__ import annotations

import json
import platform
import subprocess
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_check.results import Row
from retrieval.machine.devices import driver_cuda, gpus
from retrieval.machine.installation import NAMES, versions

PAGE = Path(__file__).parents[2] / "docs" / "gpu.md"
COMMITTED = Path(__file__).parent / "results.json"
BEGIN, END = "<!-- results: written by `make gpu-check WRITE=1` -->", "<!-- end of the results -->"
NO_CARD = (
    "**No GPU was at hand when this was written: nothing on this page was measured on one.** "
    "`make gpu-check WRITE=1` on a machine with a GPU puts its results here."
)


def results(device: torch.device, checks: dict[str, list[Row]], seconds: dict[str, float]) -> dict[str, Any]:
    """Return the results with the machine that they are from, as JSON values."""
    cards = gpus()
    name = cards[device.index or 0].name if device.type == "cuda" and cards else platform.processor() or "CPU"
    cuda = driver_cuda()
    return {
        "device": name,
        "driver_cuda": f"{cuda[0]}.{cuda[1]}" if cuda else None,
        "versions": versions(NAMES),
        "date": date.today().isoformat(),
        "commit": _commit(),
        "seconds": {check: round(taken, 1) for check, taken in seconds.items()},
        "checks": {check: [asdict(row) for row in rows] for check, rows in checks.items()},
    }


def merge(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return one set of results from several, of one device; of a check that is in two, the later one counts.

    The day and the commit of each check are kept; the commit is that of the working tree where a part has
    none, as on a machine without git.
    """
    devices = {part["device"] for part in parts}
    if len(devices) > 1:
        raise SystemExit(f"results of several devices cannot be merged: {', '.join(sorted(devices))}")
    merged = dict(parts[-1], checks={}, seconds={}, versions={}, origins={})
    for part in parts:
        for key in ("checks", "seconds", "versions"):
            merged[key] |= part[key]
        merged["origins"] |= origins(part)
    return merged


def origins(found: dict[str, Any]) -> dict[str, str]:
    """Return the day and the commit of each check of results."""
    own = f"{found['date']}, commit {found['commit'] or _commit()}"
    return dict.fromkeys(found["checks"], own) | found.get("origins", {})


def rows(found: dict[str, Any]) -> tuple[dict[str, list[Row]], dict[str, float]]:
    """Return the rows and the seconds of each check of results."""
    return {check: [Row(**row) for row in each] for check, each in found["checks"].items()}, found["seconds"]


def _commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, cwd=PAGE.parent).stdout.strip()
    except FileNotFoundError:
        return ""


def write(found: dict[str, Any]) -> None:
    """Keep results and put them into the page."""
    COMMITTED.write_text(json.dumps(found, indent=1) + "\n")
    PAGE.write_text(with_results(PAGE.read_text(), found))


def committed() -> dict[str, Any] | None:
    """Return the results that are kept; `None` if no GPU was at hand yet."""
    return json.loads(COMMITTED.read_text()) if COMMITTED.exists() else None


def with_results(text: str, found: dict[str, Any] | None) -> str:
    """Return the page with other results between the marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{to_markdown(found)}\n{END}{after}"


def to_markdown(found: dict[str, Any] | None) -> str:
    """Return the results as a table."""
    if found is None:
        return NO_CARD
    installed = ", ".join(f"{package} {number}" for package, number in found["versions"].items())
    days: dict[str, list[str]] = {}
    for check, day in origins(found).items():
        days.setdefault(day, []).append(check)
    lines = [
        f"Measured on one **{found['device']}** (driver for CUDA {found['driver_cuda']}; {installed}), "
        f"{sum(found['seconds'].values()):.0f} s.",
        "",
        *(f"- {day}: {', '.join(checks)}" for day, checks in days.items()),
        "",
        "| check | measured | |",
        "|---|---|---|",
    ]
    for check, rows in found["checks"].items():
        lines += [f"| {check}: {row['what']} | {row['measured']} | {row['verdict']} |" for row in rows]
    return "\n".join(lines)
