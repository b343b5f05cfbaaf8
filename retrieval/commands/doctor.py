"""`lookalike doctor`: GPUs, installed builds, what each command runs on, problems and their repairs."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import click

from retrieval.cli import json_option, print_result
from retrieval.machine.devices import Gpu, driver_cuda, gpus, nvidia_cards
from retrieval.machine.extras import needs
from retrieval.machine.gpu_trials import ORT_NAMES, Trial, run_trial, try_once
from retrieval.machine.installation import (
    NAMES,
    Build,
    Problem,
    builds,
    dotted,
    find_problems,
    install_command,
    module_problems,
    name_problems,
    unused_cuda,
)
from retrieval.machine.resources import cores
from retrieval.system import physical_memory
from retrieval.text import align_columns, pluralize

_COMMANDS = {  # what runs on each library
    "torch": "train, evaluate of a run, sweep, tune, analyze",
    "onnxruntime": "index, search, serve, export, evaluate of a model",
    "faiss": "evaluate (neighbours, clusters), index build, duplicates",
}


@dataclass(frozen=True)
class Tried:
    """A trial of a build on a GPU; on none, it was only loaded."""

    build: Build
    card: Gpu | None
    trial: Trial


@click.command()
@json_option
def doctor(as_json: bool) -> int:
    """Show GPUs and installed builds, what each command runs on, problems and their repairs.

    FAISS and ONNX Runtime are loaded. On each GPU, FAISS searches eight vectors, ONNX Runtime runs a model of
    one operator, and torch compiles a loss: in processes of their own, so that a crash is reported as well.
    Commands trust what these trials show, and make them if nothing is known yet.

    \b
      lookalike doctor
      lookalike doctor --json

    What works but is larger than it need be, as a torch for CUDA without a GPU, is advice and not wrong.

    Exit codes: 0 nothing is wrong; 1 something is wrong, and its repair is printed.
    """
    found, cards, driver = builds(), gpus(), driver_cuda()
    with ThreadPoolExecutor(max_workers=4) as threads:
        trials = list(threads.map(lambda task: _try(*task), _tasks(found, cards, driver)))
    problems = [
        *name_problems(),
        *_driver_problems(cards),
        *find_problems(found, cards, driver),
        *_trial_problems(found, trials),
    ]
    problems = list({problem.module: problem for problem in reversed(problems)}.values())[::-1]
    loaded = {tried.build.module: tried.trial.values for tried in reversed(trials)}
    providers = loaded.get("onnxruntime", {}).get("providers", {})
    facts = {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "cores": cores(),
        "memory": physical_memory(),
        "driver_cuda": driver and dotted(driver),
        "gpus": [asdict(card) for card in cards],
        "libraries": {
            module: asdict(build) | {"cuda": build.cuda and dotted(build.cuda), "folder": str(build.folder)}
            if build
            else None
            for module, build in found.items()
        },
        "providers": providers,
        "trials": [
            {"module": tried.build.module, "gpu": tried.card.index, "error": tried.trial.error}
            for tried in trials
            if tried.card
        ],
        "uses": {use: _place(module, found, trials, loaded) for module, use in _COMMANDS.items()},
        "problems": [asdict(problem) for problem in problems],
        "advice": [asdict(advice) for advice in ([] if problems else _advice(found, cards, driver))],
    }
    print_result(facts, as_json, list(_lines(facts)))
    return 1 if problems else 0


# ---- trials and conclusions


def _tasks(
    found: dict[str, Build | None], cards: Sequence[Gpu], driver: tuple[int, int] | None
) -> Iterator[tuple[Build, Gpu | None]]:
    """Yield each build with each GPU that its files do not exclude; without a GPU, what is to be loaded."""
    for module, build in found.items():
        if build is not None:
            usable = [card for card in cards if not any(module_problems(module, found, [card], driver))]
            yield from ((build, card) for card in usable)
            if not usable and module != "torch":
                yield build, None


def _try(build: Build, card: Gpu | None) -> Tried:
    trial = run_trial(build.module) if card is None else try_once(build, card, again=True)
    return Tried(build, card, trial)


def _driver_problems(cards: Sequence[Gpu]) -> Iterator[Problem]:
    present, hidden = nvidia_cards(), "CUDA_VISIBLE_DEVICES" in os.environ
    if present and not cards and not hidden:
        text = f"{pluralize(present, 'NVIDIA GPU')} in this machine, but the driver gives no access"
        repair = "install the NVIDIA driver, 580 or newer; in a container, pass the GPU to it (--gpus all)"
        yield Problem("", text, repair)


def _advice(
    found: dict[str, Build | None], cards: Sequence[Gpu], driver: tuple[int, int] | None
) -> Iterator[Problem]:
    """Yield what works and could be better."""
    others = [build for module, build in found.items() if build and module != "torch"]
    for_cpus = not cards and driver is None and not nvidia_cards() and all(one.for_cpus for one in others)
    if for_cpus and (unused := unused_cuda(found)):
        yield unused


def _trial_problems(found: dict[str, Build | None], trials: Sequence[Tried]) -> Iterator[Problem]:
    """Yield problems that only show when the libraries are used."""
    extra = "gpu" if any("-gpu" in build.distribution for build in found.values() if build) else "cpu"
    for tried in trials:
        if tried.trial.error:
            text = f"cannot be loaded: {tried.trial.error}"
            if tried.card is not None and tried.trial.values:
                text = f"{tried.build} fails on {tried.card.name}: {tried.trial.error}"
            repair = install_command(extra, found)
            if tried.build.module == "torch":
                repair = "install a C compiler, which Triton needs; without it, losses are not compiled"
            yield Problem(tried.build.module, text, repair)


def _place(
    module: str,
    found: dict[str, Build | None],
    trials: Sequence[Tried],
    loaded: dict[str, dict[str, Any]],
) -> str:
    """Return where a library runs with `--device auto`."""
    if not found[module]:
        return f"nothing: {needs(module)}"
    if module != "torch" and not loaded.get(module):
        return f"nothing: {NAMES[module]} is broken"
    used_on = [
        tried.card.name
        for tried in trials
        if tried.build.module == module and tried.card and tried.card.index == 0
        if module == "torch" or not tried.trial.error
    ]
    place = f"GPU 0 ({used_on[0]})" if used_on else "CPU"
    if module != "onnxruntime":
        return f"{place}, {NAMES[module]}"
    providers = loaded[module]["providers"]
    used = next(name for name in ORT_NAMES.values() if providers.get(name))
    accelerated = used not in (ORT_NAMES["cpu"], ORT_NAMES["cuda"])
    precision = ", fp32, or TF32 if a gallery has measured it" if used == ORT_NAMES["cuda"] else ", fp32"
    return f"{'accelerator' if accelerated else place}, {used}{'' if accelerated else precision}"


# ---- output


def _lines(facts: dict[str, Any]) -> Iterator[str]:
    machine = f"{pluralize(facts['cores'], 'core')}, {facts['memory'] / 2**30:.1f} GiB of memory"
    rows = [["Python", f"{facts['python']}, {facts['platform']}, {machine}"]]
    cuda = facts["driver_cuda"]
    driver = f"the driver supports CUDA {cuda}" if cuda else "no NVIDIA driver"
    for card in facts["gpus"]:
        capability = dotted(card["capability"])
        what = f"{card['name']}, {card['memory'] / 2**30:.1f} GiB, compute capability {capability}; {driver}"
        tried = [
            f"{NAMES[trial['module']]} {'fails' if trial['error'] else 'works'}"
            for trial in facts["trials"]
            if trial["gpu"] == card["index"]
        ]
        rows.append([f"GPU {card['index']}", f"{what}; tried: {', '.join(tried) or 'nothing'}"])
    if not facts["gpus"]:
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        may_hide = "" if hidden is None else f"; CUDA_VISIBLE_DEVICES={hidden!r} may hide GPUs"
        rows.append(["GPU", f"none; {driver}{may_hide}"])
    rows += [[NAMES[module], _library_text(build)] for module, build in facts["libraries"].items()]
    providers = [
        name if works or name not in ORT_NAMES.values() else f"{name} (does not work)"
        for name, works in facts["providers"].items()
    ]
    rows.append(["Providers", ", ".join(providers) or "none"])
    yield from align_columns(rows)
    yield ""
    yield from align_columns([["command", "runs on"], *map(list, facts["uses"].items())])
    yield ""
    if not facts["problems"]:
        yield "Nothing is wrong."
    for problem in facts["problems"]:
        yield f"Wrong: {NAMES.get(problem['module'], problem['module']) or 'driver'}: {problem['text']}"
        yield f"  repair: {problem['repair']}"
    for advice in facts["advice"]:
        yield f"Advice: {NAMES[advice['module']]}: {advice['text']}"
        yield f"  smaller: {advice['repair']}"


def _library_text(build: dict[str, Any] | None) -> str:
    if build is None:
        return "not installed"
    for_what = "for CPUs" if build["for_cpus"] else f"for CUDA {build['cuda'] or '(unknown version)'}"
    others = f"; also installed: {', '.join(build['others'])}" if build["others"] else ""
    return f"{build['version']} ({build['distribution']}), {for_what}{others}"
