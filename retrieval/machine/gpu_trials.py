"""Trials: each library is used on a GPU in a process of its own, before a command trusts it there.

FAISS ends its process at most errors of CUDA, and a driver may hang. What a trial shows is kept in the user's
cache for each card, driver and build; a failure counts for an hour, since the GPU may have been full. If the
cache cannot be written, each process tries again.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from retrieval.files import atomic_write, user_cache
from retrieval.machine.devices import Gpu, driver_cuda, gpus
from retrieval.machine.installation import NAMES, Build, Problem, builds, module_problems
from retrieval.system import kill_group, python_command
from retrieval.text import print_notice, print_once

ORT_NAMES = {
    "cuda": "CUDAExecutionProvider",
    "coreml": "CoreMLExecutionProvider",
    "openvino": "OpenVINOExecutionProvider",
    "cpu": "CPUExecutionProvider",
}
"""Names of execution providers in ONNX Runtime, by ours."""
_SECONDS = 120  # for a trial: torch compiles code, and a driver may compile FAISS's
_RETRY = 3600
_MARK = "trial: "  # before what a trial reports: libraries print on stdout, too
_LITTLE = 1 << 20  # bytes of temporary and of pinned memory on a GPU; FAISS takes up to 1.5 GiB by default
# ONNX model that negates one number: Neg of opset 13, float32 [1] -> [1].
_NEGATION = (
    b'\x08\x08:2\n\x0b\n\x01x\x12\x01y"\x03Neg\x12\x01gZ\x0f\n\x01x\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01'
    b"b\x0f\n\x01y\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01B\x04\n\x00\x10\r"
)


@dataclass(frozen=True)
class Trial:
    """What happened when a library was loaded, and used on a GPU.

    Attributes:
        values: What it reported; empty if it could not be loaded.
        error: What went wrong; "" if nothing did.
    """

    values: dict[str, Any] = field(default_factory=dict)
    error: str = ""


@cache
def gpu_problem(module: str, number: int = 0) -> Problem | None:
    """Return what keeps a library of this environment from using a GPU of this machine, if anything.

    Args:
        module: Python module: faiss, onnxruntime or torch, of which a compiled loss is tried.
        number: Number of the GPU.
    """
    problem = build_problem(module, number)
    build = builds()[module]
    if problem is not None or build is None:
        return problem
    card = gpus()[number]
    error = try_once(build, card).error
    text, repair = f"{build} fails on {card.name}: {error}", "`lookalike doctor` tries it again"
    return Problem(module, text, repair) if error else None


def build_problem(module: str, number: int = 0) -> Problem | None:
    """Return what the installed files say against a library on a GPU; as `gpu_problem` otherwise."""
    cards = [card for card in gpus() if card.index == number]
    if not cards:
        return Problem(module, f"there is no GPU {number}", "`lookalike doctor` lists the GPUs")
    return next(module_problems(module, builds(), cards, driver_cuda()), None)


def report_cpu(module: str, number: int = 0) -> None:
    """Print on stderr, once, that a library works on the CPU in place of a GPU, why, and the repair."""
    problem = gpu_problem(module, number)
    reason = f"{problem.text}; {problem.repair}" if problem else "it could not use it; see `lookalike doctor`"
    print_once(f"{NAMES[module]} runs on the CPU and not on GPU {number}: {reason}")


def try_once(build: Build, card: Gpu, *, again: bool = False) -> Trial:
    """Return what a trial of a build on a card shows, or has shown to an earlier process.

    Args:
        build: Installed build.
        card: GPU.
        again: Try it in any case.
    """
    # Builds of the same version may differ in the libraries beside them.
    facts = [build.module, str(build), str(build.folder), card.name, card.capability, driver_cuda()]
    name = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
    try:
        file: Path | None = user_cache("gpu_trials") / f"{name}.json"
    except RuntimeError:  # nobody's home
        file = None
    kept = None if again or file is None else _read(file)
    if kept is not None:
        return kept
    if not again:
        print_notice(f"trying {NAMES[build.module]} on {card.name}, once for this build and driver")
    trial = run_trial(build.module, card.index)
    if file is not None:
        _write(file, trial)
    return trial


def run_trial(module: str, number: int | None = None) -> Trial:
    """Load a library in a process of its own, and use it on a GPU; `None` for no GPU."""
    program = f"from retrieval.machine.gpu_trials import report; report({module!r}, {number})"
    command, environment = python_command(program)
    try:
        with TemporaryFile("w+", errors="replace") as output, TemporaryFile("w+", errors="replace") as log:
            process = subprocess.Popen(
                command,
                stdout=output,
                stderr=log,
                env=environment,
                process_group=0,
            )
            code = _wait(process)
            output.seek(0)
            log.seek(0)
            lines = [line for line in output if line.startswith(_MARK)]
            values = {name: value for line in lines for name, value in json.loads(line[len(_MARK) :]).items()}
            return Trial(values, _error(code, log.read(), number is None or bool(values.get("works"))))
    except OSError as error:
        return Trial(error=f"no process could be started for a trial: {error}")


def report(module: str, number: int | None) -> None:
    """Do the work of a trial and print what is found out step by step, in the process of the trial."""
    for values in _PROGRAMS[module](number):
        print(f"\n{_MARK}{json.dumps(values)}", flush=True)


def _faiss(number: int | None) -> Iterator[dict[str, Any]]:
    import faiss
    import numpy as np

    yield {"version": faiss.__version__}
    if number is not None:
        resources, points = faiss.StandardGpuResources(), np.eye(8, dtype=np.float32)
        resources.setTempMemory(_LITTLE)
        resources.setPinnedMemory(_LITTLE)
        _, rows = faiss.knn_gpu(resources, points, points, 1, device=number)
        yield {"works": bool((rows[:, 0] == np.arange(8)).all())}


def _onnxruntime(number: int | None) -> Iterator[dict[str, Any]]:
    import numpy as np
    import onnxruntime

    cuda, offered = ORT_NAMES["cuda"], onnxruntime.get_available_providers()
    providers = {name: name == ORT_NAMES["cpu"] for name in offered}
    yield {"providers": providers}
    if cuda in offered:
        onnxruntime.preload_dlls()
    for provider in set(offered) & set(ORT_NAMES.values()):
        options = {"device_id": str(number or 0)} if provider == cuda else {}
        try:
            session = onnxruntime.InferenceSession(
                _NEGATION, providers=[(provider, options)], enable_fallback=0
            )
            session.run(None, {"x": np.ones(1, np.float32)})
            providers[provider] = provider in session.get_providers()
        except Exception as error:  # ONNX Runtime raises its own classes, which differ between versions
            print(error, file=sys.stderr)
    yield {"providers": providers, "works": providers.get(cuda, False)}


def _torch(number: int | None) -> Iterator[dict[str, Any]]:
    import torch

    yield {"version": torch.__version__}
    device = "cpu" if number is None else f"cuda:{number}"
    x = torch.linspace(-1, 1, 32, device=device).view(8, 4).requires_grad_()

    def loss(embeddings: torch.Tensor) -> torch.Tensor:
        return torch.logsumexp(embeddings @ embeddings.T, 1).mean()

    grads = [torch.autograd.grad(function(x), x)[0] for function in (loss, torch.compile(loss))]
    yield {"works": torch.allclose(grads[0], grads[1], rtol=1e-3, atol=1e-4)}


_PROGRAMS = {"faiss": _faiss, "onnxruntime": _onnxruntime, "torch": _torch}


def _wait(process: subprocess.Popen[bytes]) -> int | None:
    """Return the exit code of a process; `None` if it was ended, with its children, because of the time."""
    try:
        return process.wait(_SECONDS)
    except BaseException as error:
        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
            kill_group(process)
            process.wait(5)  # not for ever: a hanging driver keeps even killed processes
        if isinstance(error, subprocess.TimeoutExpired):
            return None
        raise


def _error(code: int | None, log: str, works: bool) -> str:
    """Return what went wrong in a trial, from its exit code and what it wrote on stderr."""
    if code == 0 and works:
        return ""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", log)
    match = re.search(r"with error: (.+)", plain) or re.search(r"(CUDA (?:error|failure) [^;\n]+)", plain)
    if code is None:
        end = f"it did not end within {_SECONDS} seconds"
    elif code < 0:
        end = f"its process ended by signal {-code}"
    else:
        lines = plain.strip().splitlines() or ["it does not say why"]
        return match[1].strip() if match else lines[-1]
    return f"{end} ({match[1].strip()})" if match else end


def _read(file: Path) -> Trial | None:
    """Return a kept trial; `None` if there is none that counts."""
    try:
        trial = Trial(**json.loads(file.read_text()))
        failed = bool(trial.error) and isinstance(trial.error, str)
        counts = 0 <= time.time() - file.stat().st_mtime < _RETRY if failed else trial.values["works"] is True
    except (OSError, RuntimeError, LookupError, TypeError, ValueError):  # none, or garbage
        return None
    return trial if counts else None


def _write(file: Path, trial: Trial) -> None:
    with suppress(OSError):  # a cache that cannot be written
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(file) as draft:
            draft.write_text(json.dumps(asdict(trial)))
