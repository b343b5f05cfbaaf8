"""Sessions of ONNX Runtime: a model on the execution provider that is asked for, or else on the CPU."""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

from retrieval.errors import InputError
from retrieval.machine.devices import gpus
from retrieval.machine.gpu_trials import ORT_NAMES, gpu_problem, report_cpu
from retrieval.model.external_data import refuse_external_data
from retrieval.model.interruption import interruptible
from retrieval.model.runtime import Runtime
from retrieval.text import print_once

if TYPE_CHECKING:
    import onnxruntime as ort

CPU, CUDA = ORT_NAMES["cpu"], ORT_NAMES["cuda"]
_REQUIREMENTS = {
    "cuda": "an NVIDIA GPU with its driver, and the extra gpu in place of cpu; see `lookalike doctor`",
    "coreml": "a Mac",
    "openvino": "onnxruntime-openvino instead of onnxruntime",
}


@interruptible
def open_session(path: Path, data: bytes, runtime: Runtime) -> ort.InferenceSession:
    """Return a session for a model.

    If the accelerator that is asked for does not work, the CPU runs the model, with one line on stderr.

    Args:
        path: Model file, for error messages.
        data: Its contents.
        runtime: Device, provider and threads.

    Raises:
        InputError: It is not a complete ONNX model, or takes weights from other files.
    """
    import onnxruntime as ort  # galleries are opened without it

    refuse_external_data(str(path), data)
    options = ort.SessionOptions()
    options.intra_op_num_threads = runtime.threads or 0
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 4  # errors are raised as exceptions as well
    # Idle threads that spin cost more than they save next to a web server or a decoder pool.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # Not ONNX Runtime's own format, in which nobody has looked for external data.
    options.add_session_config_entry("session.load_model_format", "ONNX")
    offered = ort.get_available_providers()
    candidates = runtime.accelerators
    if runtime.is_automatic:
        candidates = tuple(name for name in candidates if ORT_NAMES[name] in offered)
    for name in candidates:
        session = _accelerated(data, options, name, runtime, offered)
        if session is not None:
            return session
    try:
        session = ort.InferenceSession(data, options, providers=[CPU])
    except Exception as error:  # ONNX Runtime raises its own classes, which differ between versions
        raise InputError(f"{path}: not a complete ONNX model ({reason(error)}); export it again") from error
    for name in candidates:
        if name != "cuda" or not gpus():
            where = f"{name} on {runtime.device}" if runtime.device.index is not None else name
            needed = _REQUIREMENTS[name]
            print_once(f"{where} does not work here, so the CPU runs the model; it needs {needed}")
    if gpus() and (runtime.is_automatic or "cuda" in candidates):
        report_cpu("onnxruntime", runtime.device.index or 0)
    return session


def reason(error: Exception) -> str:
    """Return the message of an error of ONNX Runtime on one line, shortened."""
    return " ".join(str(error).split())[:160]


def _accelerated(
    data: bytes, options: ort.SessionOptions, name: str, runtime: Runtime, offered: Sequence[str]
) -> ort.InferenceSession | None:
    """Return a session on an accelerator; `None` if ONNX Runtime fails or silently falls back."""
    import onnxruntime as ort

    kind = ORT_NAMES[name]
    if kind not in offered:
        return None
    ort.set_default_logger_severity(4)  # it logs missing libraries at length
    works = False
    try:
        if name == "cuda":
            if gpu_problem("onnxruntime", runtime.device.index or 0):
                return None
            with redirect_stdout(io.StringIO()):  # stdout is for results
                ort.preload_dlls()  # CUDA libraries from pip packages, which the dynamic loader does not find
        # Operators that the accelerator does not support run on the CPU. The fallback of ONNX Runtime is off,
        # since it prints on stdout.
        providers = [(kind, runtime.options(name)), CPU]
        session = ort.InferenceSession(data, options, providers=providers, enable_fallback=0)
        works = session.get_providers()[0] == kind
    except Exception:
        return None
    finally:
        # A session on CUDA logs an error for each plan of cuDNN that it tries in vain before another one.
        if not (works and name == "cuda"):
            ort.set_default_logger_severity(2)
    return session if works else None
