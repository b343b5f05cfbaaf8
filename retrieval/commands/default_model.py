"""The model of a gallery for which none is given: EfficientNet-Lite0, or the best one for this machine.

Model files that are made here are kept in the user's cache; every gallery has its own copy.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from retrieval.cli import load, print_status, run_command
from retrieval.errors import InputError, LookalikeError
from retrieval.files import sha256_of, user_cache
from retrieval.machine.devices import Device, gpus
from retrieval.machine.extras import needs
from retrieval.machine.resources import cores
from retrieval.model import hub
from retrieval.model.embedder import Embedder, measure_latency
from retrieval.model.lite0 import LICENSE, PACKAGE, write_model
from retrieval.model.runtime import Runtime
from retrieval.storage.identity import model_file

NAME = "EfficientNet-Lite0"
AUTO, LITE0 = "auto", "lite0"
MIN_RATE = 15.0  # images a second that a network has to embed here to be chosen
_BATCH, _RUNS = 8, 3  # of a measurement
_SECONDS = 2.0  # to wait for the hub
_EXPORTERS = ("torch", "timm", "onnx", "onnxscript", "huggingface_hub")
_HUB = "https://huggingface.co"


def default_model() -> Path:
    """Return the model file of EfficientNet-Lite0, and print which model it is.

    Raises:
        InputError: The weights are not installed.
        LookalikeError: The cache cannot be written.
    """
    file = _lite0()
    print_status(
        f"model: {NAME} with ImageNet weights ({LICENSE}), as no --model is given; others: "
        "`lookalike model list`"
    )
    return file


def chosen_model(name: str, runtime: Runtime) -> Path:
    """Return the model file that a name stands for, and print which model it is, why, and its licence.

    Args:
        name: A model file; a backbone of `lookalike model list`, which is downloaded and exported once;
            "lite0"; or "auto": the strongest small backbone of the list with a permissive licence that this
            machine runs at `MIN_RATE` images a second, if the hub can be reached, and else Lite0.
        runtime: Device and provider of the model.

    Raises:
        InputError: There is no such file or backbone, or what is needed for it is not installed.
        LookalikeError: A named backbone cannot be downloaded, or the cache cannot be written.
    """
    if name == AUTO:
        return _best_model(runtime)
    if name == LITE0:
        print_status(f"model: {NAME}, ImageNet weights, licence {LICENSE}")
        return _lite0()
    file = Path(name)
    if file.exists() or file.suffix in (".onnx", ".zip"):
        return file
    if not name.startswith("timm:"):
        raise InputError(
            f"--model {name}: neither a file nor a name of `lookalike model list`, such as lite0 or timm:NAME"
        )
    missing = _missing_exporter()
    if missing is not None:
        raise InputError(f"--model {name}: exporting it {needs(missing, 'standard')}")
    print_status(f"model: {name}; its file is made once")
    return _exported(name)


def kept_model(gallery: Path) -> Path:
    """Return the model file that a gallery keeps.

    Raises:
        InputError: There is none.
    """
    file = model_file(gallery)
    if not file.is_file():
        raise InputError(
            f"{file}: missing; give --model, or see what else is: `lookalike index verify {gallery}`"
        )
    return file


# ---- the best one


def _best_model(runtime: Runtime) -> Path:
    lite0 = _lite0()
    reason = _why_offline()
    if not reason:
        best, rate = _strongest(lite0, runtime)
        if best is None:
            reason = f"as no stronger one of the list embeds {MIN_RATE:g} images a second here"
        else:
            print_status(
                f"model: {best.name}, licence {best.license}: the strongest small one of `lookalike model "
                f"list` that embeds {MIN_RATE:g} images a second here (about {rate:.0f}); its file is made "
                "once, which takes a minute; --model lite0 begins at once"
            )
            try:
                return _exported(best.name)
            except LookalikeError as error:
                reason = f"as the other cannot be had: {error}"
    print_status(f"model: {NAME}, ImageNet weights, licence {LICENSE}, {reason}")
    return lite0


def _strongest(lite0: Path, runtime: Runtime) -> tuple[Any, float]:
    """Return the backbone to take, `None` for Lite0, and the images that it embeds here in a second."""
    on_gpu = bool(gpus()) and "cuda" in runtime.accelerators
    if on_gpu:
        seconds = measure_latency(Embedder.open(lite0, runtime), _BATCH, seconds=0.2) / _BATCH
    else:
        seconds = _cpu_seconds(Embedder.open(lite0, Runtime(Device("cpu"), threads=1)))
    found: tuple[Any, float] = load("train.curated_backbones:affordable")(
        seconds, 1 if on_gpu else cores(), MIN_RATE
    )
    return found


def _cpu_seconds(embedder: Embedder) -> float:
    """Return the CPU time for an image on one thread, in which a busy machine counts little."""
    side = embedder.preprocess.size
    pixels = np.zeros((_BATCH, side, side, 3), np.uint8)
    embedder.embed_in_one_run(pixels)
    began = time.process_time()
    for _ in range(_RUNS):
        embedder.embed_in_one_run(pixels)
    return (time.process_time() - began) / (_RUNS * _BATCH)


def _why_offline() -> str:
    """Return why no stronger network can be had; empty if the hub answers."""
    missing = _missing_exporter()
    if missing is not None:
        return f"as exporting a stronger one {needs(missing, 'standard')}"
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON"):
        return "as HF_HUB_OFFLINE is set"
    endpoint = os.environ.get("HF_ENDPOINT", _HUB)
    return "" if _answers(endpoint) else f"as {endpoint} cannot be reached from here"


def _missing_exporter() -> str | None:
    """Return a module that is needed to export a backbone and is not installed; `None` if all are."""
    return next((module for module in _EXPORTERS if find_spec(module) is None), None)


def _answers(address: str) -> bool:
    """Return whether a server answers soon; looking up its name may take longer, and is not waited for."""
    import httpx

    found: list[bool] = []

    def ask() -> None:
        with contextlib.suppress(httpx.HTTPError):
            httpx.head(address, timeout=_SECONDS)
            found.append(True)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_SECONDS)
    return bool(found)


# ---- the cache


def _lite0() -> Path:
    if find_spec(PACKAGE) is None:
        raise InputError(
            f"--model: {NAME}, which is taken without one, {needs(PACKAGE, 'standard')}; or give a "
            "model file, from `lookalike export` on another machine or from `lookalike hub pull`"
        )
    return _cached("efficientnet-lite0", write_model)


def _exported(name: str) -> Path:
    """Return the model file of a backbone of timm; if need be, download its weights and check them."""

    def export(file: Path) -> None:
        repository = f"timm/{name.removeprefix('timm:')}"
        hub.check_download(repository, hub.download(repository, ["model.safetensors", "config.json"]))
        with contextlib.redirect_stdout(sys.stderr):  # stdout is for the result of the command
            run_command("export", "--from", name, "--out", str(file))

    return _cached(re.sub(r"[^\w.]+", "-", name), export)


def _cached(name: str, make: Callable[[Path], None]) -> Path:
    """Return a file of the cache, made by this version of Lookalike, unless it is there and unharmed."""
    file = user_cache("models") / f"{name}-{version('lookalike')}.onnx"
    stamp = file.with_suffix(".sha256")
    with contextlib.suppress(OSError):
        if stamp.read_text() == sha256_of(file):
            return file
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        make(file)
        stamp.write_text(sha256_of(file))
    except OSError as error:
        raise LookalikeError(f"{file.parent}: cannot be written ({error.strerror}); give --model") from error
    return file
