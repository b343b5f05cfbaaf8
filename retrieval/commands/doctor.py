"""`lookalike doctor`: GPUs, installed builds, what each command runs on, problems and their repairs."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click

from retrieval.cli import json_option, print_result
from retrieval.devices import Gpu, driver_cuda, gpus, nvidia_cards
from retrieval.extras import needs
from retrieval.inference.runtime import ORT_NAMES
from retrieval.installation import NAMES, Build, Problem, builds, find_problems, install_command
from retrieval.resources import cores, physical_memory
from retrieval.text import align_columns, pluralize

_ROOT = Path(__file__).resolve().parents[2]
_SECONDS = 60  # for a library to be loaded
# ONNX model that negates one number: Neg of opset 13, float32 [1] -> [1].
_NEGATION = (
    b'\x08\x08:2\n\x0b\n\x01x\x12\x01y"\x03Neg\x12\x01gZ\x0f\n\x01x\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01'
    b"b\x0f\n\x01y\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01B\x04\n\x00\x10\r"
)
_CUDA, _CPU = ORT_NAMES["cuda"], ORT_NAMES["cpu"]
_ACCELERATORS = [name for name in ORT_NAMES.values() if name != _CPU]
_TRAINING = "train, evaluate of a run, sweep, tune, analyze"
_EMBEDDING = "index, search, serve, export, evaluate of a model"
_COMPARING = "evaluate (neighbours, clusters), index build, duplicates"


@dataclass(frozen=True)
class Trial:
    """What happened when a library was loaded in a process of its own.

    Attributes:
        values: What the library reported.
        error: Why it could not be loaded; "" if it could.
        log: What it wrote on stderr.
    """

    values: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    log: str = ""


@click.command()
@json_option
def doctor(as_json: bool) -> int:
    """Show GPUs and installed builds, what each command runs on, problems and their repairs.

    The libraries are loaded, FAISS searches one vector on each GPU, and ONNX Runtime runs a model of one
    operator on each device that it offers: in processes of their own, so that a crash is reported as well.

    \b
      lookalike doctor
      lookalike doctor --json

    Exit codes: 0 nothing is wrong; 1 something is wrong, and its repair is printed.
    """
    found, cards, driver = builds(), gpus(), driver_cuda()
    trials = {module: Trial() for module in ("faiss", "onnxruntime")}
    present = [module for module in trials if found[module]]
    with ThreadPoolExecutor() as threads:
        trials |= zip(present, threads.map(_try, present), strict=True)
    problems = [
        *_driver_problems(cards),
        *find_problems(found, cards, driver),
        *_load_problems(found, trials, cards),
    ]
    problems = list({problem.module: problem for problem in reversed(problems)}.values())[::-1]
    uses = _uses(found, trials, cards, driver)
    facts = {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "cores": cores(),
        "memory": physical_memory(),
        "driver_cuda": _dotted(driver),
        "gpus": [asdict(card) for card in cards],
        "libraries": {
            module: asdict(build) | {"cuda": _dotted(build.cuda)} if build else None
            for module, build in found.items()
        },
        "faiss_gpus": trials["faiss"].values.get("gpus", 0),
        "providers": {
            name: name in trials["onnxruntime"].values.get("working", ())
            for name in trials["onnxruntime"].values.get("offered", ())
        },
        "uses": uses,
        "problems": [asdict(problem) for problem in problems],
        "notes": list(_notes(found, cards)),
    }
    print_result(facts, as_json, list(_lines(facts)))
    return 1 if problems else 0


# ---- trials


def try_faiss() -> dict[str, Any]:
    """Load FAISS, and search on each GPU that it sees; return their number."""
    import faiss
    import numpy as np

    count = faiss.get_num_gpus() if hasattr(faiss, "StandardGpuResources") else 0
    point = np.ones((1, 4), np.float32)
    for number in range(count):
        faiss.knn_gpu(faiss.StandardGpuResources(), point, point, 1, device=number)
    return {"gpus": count}


def try_onnxruntime() -> dict[str, Any]:
    """Load ONNX Runtime; return the providers that it offers, and the accelerators that run a model."""
    import numpy as np
    import onnxruntime

    offered = onnxruntime.get_available_providers()
    if _CUDA in offered:
        onnxruntime.preload_dlls()
    working = [_CPU]
    for provider in _ACCELERATORS:
        if provider in offered:
            try:
                session = onnxruntime.InferenceSession(_NEGATION, providers=[provider], enable_fallback=0)
                session.run(None, {"x": np.ones(1, np.float32)})
            except Exception as error:  # ONNX Runtime raises its own classes, which differ between versions
                print(error, file=sys.stderr)
            else:
                working += [name for name in session.get_providers() if name == provider]
    return {"offered": offered, "working": working}


def _try(module: str) -> Trial:
    """Call `try_MODULE` in a process of its own."""
    program = (
        f"import json; from retrieval.commands import doctor; found = doctor.try_{module}()\n"
        "print('\\n' + json.dumps(found))"
    )
    path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH", "")]))
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", program],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            env={**os.environ, "PYTHONPATH": path},
        )
    except subprocess.TimeoutExpired:
        return Trial(error=f"it is not loaded within {_SECONDS} seconds")
    if done.returncode < 0:
        return Trial(error=f"the process ended by signal {-done.returncode}", log=done.stderr)
    if done.returncode:
        return Trial(error=(done.stderr.strip().splitlines() or ["unknown"])[-1], log=done.stderr)
    return Trial(json.loads(done.stdout.splitlines()[-1]), log=done.stderr)


# ---- conclusions


def _driver_problems(cards: Sequence[Gpu]) -> Iterator[Problem]:
    present = nvidia_cards()
    if present and not cards and "CUDA_VISIBLE_DEVICES" not in os.environ:
        text = f"{pluralize(present, 'NVIDIA GPU')} in this machine, but the driver gives no access"
        repair = "install the NVIDIA driver, 580 or newer; in a container, pass the GPU to it (--gpus all)"
        yield Problem("", text, repair)


def _load_problems(
    found: dict[str, Build | None], trials: dict[str, Trial], cards: Sequence[Gpu]
) -> Iterator[Problem]:
    """Yield problems that only show when the libraries are loaded."""
    extra = "gpu" if any(build and not build.for_cpus for build in map(found.get, trials)) else "cpu"
    for module, trial in trials.items():
        build = found[module]
        if trial.error:
            yield Problem(module, f"cannot be loaded: {trial.error}", install_command(extra, found))
        elif cards and build and not build.for_cpus:
            used = trial.values.get("gpus") or _accelerator(trial)
            if not used:
                reason = _reason(trial.log) or "it does not say why"
                text = f"{build.distribution} {build.version} does not work on the GPU: {reason}"
                yield Problem(module, text, install_command("gpu", found))


def _notes(found: dict[str, Build | None], cards: Sequence[Gpu]) -> Iterator[str]:
    versions = {
        f"{build.distribution} CUDA {build.cuda[0]}": build.cuda[0]
        for build in found.values()
        if build and build.cuda
    }
    if len(set(versions.values())) > 1:
        yield f"two versions of CUDA are loaded into one process: {', '.join(versions)}"
    large = [build.distribution for module, build in found.items() if build and "-gpu" in build.distribution]
    if large and not cards:
        yield f"there is no GPU for {' and '.join(large)}; on the CPU they work like the smaller builds"
    if not cards and os.environ.get("CUDA_VISIBLE_DEVICES") is not None:
        yield f"CUDA_VISIBLE_DEVICES={os.environ['CUDA_VISIBLE_DEVICES']!r} may hide GPUs"


def _uses(
    found: dict[str, Build | None],
    trials: dict[str, Trial],
    cards: Sequence[Gpu],
    driver: tuple[int, int] | None,
) -> dict[str, str]:
    """Return what commands run on, with `--device auto`."""
    card = f"GPU 0 ({cards[0].name})" if cards else "CPU"
    torch = found["torch"]
    if torch is None:
        training = f"nothing: {needs('torch')}"
    else:
        works = torch.cuda is not None and driver is not None and torch.cuda[0] <= driver[0]
        training = f"{card if works else 'CPU'}, torch"
    embedding = "nothing: ONNX Runtime is missing or broken"
    if trials["onnxruntime"].values:
        accelerator = _accelerator(trials["onnxruntime"])
        at = card if accelerator == _CUDA else "accelerator" if accelerator else "CPU"
        embedding = f"{at}, {accelerator or _CPU}"
    comparing, searching = ("nothing: FAISS is missing or broken",) * 2
    if trials["faiss"].values:
        comparing = f"{card if trials['faiss'].values['gpus'] else 'CPU'}, FAISS"
        searching = "CPU, FAISS on mapped files"
    return {
        _TRAINING: training,
        _EMBEDDING: embedding,
        _COMPARING: comparing,
        "search, serve (the index)": searching,
    }


def _accelerator(trial: Trial) -> str:
    working = trial.values.get("working", ())
    return next((name for name in _ACCELERATORS if name in working), "")


def _reason(log: str) -> str:
    """Return why ONNX Runtime could not load a provider, from its log."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", log)
    match = re.search(r"with error: (.+)", plain) or re.search(r"(CUDA failure [^;\n]+)", plain)
    return match[1].strip() if match else ""


# ---- output


def _lines(facts: dict[str, Any]) -> Iterator[str]:
    machine = f"{pluralize(facts['cores'], 'core')}, {facts['memory'] / 2**30:.1f} GiB of memory"
    rows = [["Python", f"{facts['python']}, {facts['platform']}, {machine}"]]
    driver = (
        f"the driver supports CUDA {facts['driver_cuda']}" if facts["driver_cuda"] else "no NVIDIA driver"
    )
    for card in facts["gpus"]:
        capability = ".".join(map(str, card["capability"]))
        what = f"{card['name']}, {card['memory'] / 2**30:.1f} GiB, compute capability {capability}; {driver}"
        rows.append([f"GPU {card['index']}", what])
    if not facts["gpus"]:
        rows.append(["GPU", f"none; {driver}"])
    rows += [[NAMES[module], _library_text(build)] for module, build in facts["libraries"].items()]
    states = {True: "works", False: "does not work"}
    providers = [
        name if name not in _ACCELERATORS else f"{name} ({states[works]})"
        for name, works in facts["providers"].items()
    ]
    rows.append(["Providers", ", ".join(providers) or "none"])
    yield from align_columns(rows)
    yield ""
    yield from align_columns([["command", "runs on"], *map(list, facts["uses"].items())])
    yield ""
    yield from (f"Note: {note}" for note in facts["notes"])
    if not facts["problems"]:
        yield "Nothing is wrong."
    for problem in facts["problems"]:
        yield f"Wrong: {NAMES.get(problem['module'], 'driver')}: {problem['text']}"
        yield f"  repair: {problem['repair']}"


def _library_text(build: dict[str, Any] | None) -> str:
    if build is None:
        return "not installed"
    for_what = "for CPUs" if build["for_cpus"] else f"for CUDA {build['cuda'] or '(unknown version)'}"
    others = f"; also installed: {', '.join(build['others'])}" if build["others"] else ""
    return f"{build['version']} ({build['distribution']}), {for_what}{others}"


def _dotted(version: tuple[int, int] | None) -> str | None:
    return f"{version[0]}.{version[1]}" if version else None
