"""Trials in processes that die, hang or err, with a stand-in of the driver and of FAISS for GPUs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from retrieval.machine import gpu_trials
from retrieval.machine.devices import gpus
from retrieval.machine.gpu_trials import ORT_NAMES, Trial, run_trial
from retrieval.machine.installation import builds
from tests.retrieval.stand_in import compile_driver, install

ROOT = Path(__file__).parents[3]
# FAISS for GPUs, as far as a trial uses it. $DOING says what a search does; imports are counted in $COUNT.
FAISS = """
import os, signal, subprocess, sys, time
__version__ = "1.15.1"
print("libraries print, too")
open(os.environ["COUNT"], "a").write("x")
class StandardGpuResources:
    def setTempMemory(self, size): assert size <= 1 << 20
    def setPinnedMemory(self, size): assert size <= 1 << 20
def knn_gpu(resources, queries, vectors, k, device):
    print("Faiss assertion 'err == cudaSuccess' failed in x.cu:1; details: CUDA error 209 no kernel image is "
          "available for execution on the device", file=sys.stderr, flush=True)
    exec(os.environ["DOING"])
    scores = queries @ vectors.T
    return scores.max(1, keepdims=True), scores.argmax(1)[:, None] + (os.environ["DOING"] == "'wrong'")
"""
# What a command does before it gives work to a GPU.
PAYS = (
    "from retrieval.machine import gpu_trials; from retrieval.machine.devices import Device\n"
    "gpu_trials._SECONDS = 60\n"
    "from retrieval.machine.faiss_backend import backend_for; print(backend_for(Device()).pays(1 << 40))"
)
L4, RTX_5090 = "NVIDIA L4/8/9", "NVIDIA GeForce RTX 5090/12/0"


class Machine:
    """A machine with a GPU, in a folder: the driver, an environment with FAISS for GPUs, the user's cache."""

    def __init__(self, folder: Path) -> None:
        compile_driver(folder)
        install(folder, "faiss-gpu-cuvs", FAISS)
        for name in ("click", "numpy", "numpy.libs"):
            (folder / name).symlink_to(Path(np.__file__).parents[1] / name)
        self.folder, self.cache = folder, folder / "cache"
        self.environment = {
            **os.environ,
            "COUNT": str(folder / "count"),
            "CARDS": L4,
            "DRIVER_CUDA": "13000",
            "LD_LIBRARY_PATH": str(folder),
            "PYTHONPATH": f"{folder}:{ROOT}",
            "XDG_CACHE_HOME": str(self.cache),
        }

    def run(
        self, program: str, doing: str = "", *, everything: bool = False, **changes: str
    ) -> tuple[str, list[str]]:
        """Run a program, on demand with all that is installed; return its output and lines on stderr."""
        environment = self.environment | {"DOING": doing} | changes
        command = [sys.executable, *([] if everything else ["-S"]), "-c", program]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=100)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip(), done.stderr.splitlines()

    @property
    def trials(self) -> int:
        """Number of trials until now."""
        count = self.folder / "count"
        return len(count.read_text()) if count.exists() else 0


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_what_works_is_trusted_from_then_on(machine: Machine) -> None:
    assert machine.run(PAYS) == ("True", ["trying FAISS on NVIDIA L4, once for this build and driver"])
    assert machine.run(PAYS, "os.abort()") == ("True", [])
    assert machine.trials == 1
    for changes in ({"CARDS": "NVIDIA H100/9/0"}, {"DRIVER_CUDA": "13020"}):
        assert machine.run(PAYS, **changes)[0] == "True"
    assert machine.trials == 3


@pytest.mark.parametrize(
    ("doing", "reason"),
    [
        ("os.abort()", "its process ended by signal 6 (CUDA error 209 no kernel image is available for "),
        ("'wrong'", "CUDA error 209"),
    ],
)
def test_what_dies_leaves_the_work_to_the_cpu(machine: Machine, doing: str, reason: str) -> None:
    what = f"FAISS runs on the CPU and not on GPU 0: faiss-gpu-cuvs 1.15.1 fails on NVIDIA L4: {reason}"
    for _ in range(2):
        printed, lines = machine.run(PAYS, doing)
        assert printed == "False"
        assert lines[-1].startswith(what)
        assert lines[-1].endswith("; `lookalike doctor` tries it again")
    assert len(lines) == 1
    assert machine.trials == 1
    (kept,) = machine.cache.rglob("*.json")
    os.utime(kept, (time.time() - 4000,) * 2)  # an hour later the GPU may have memory again
    assert machine.run(PAYS)[0] == "True"


def test_a_trial_that_hangs_is_ended_with_its_children(machine: Machine) -> None:
    program = PAYS.replace("60", "10")
    child = machine.folder / "child"
    doing = f"open({str(child)!r}, 'w').write(str(subprocess.Popen(['sleep', '900']).pid)); time.sleep(900)"
    printed, lines = machine.run(program, doing)
    assert printed == "False"
    assert "fails on NVIDIA L4: it did not end within 10 seconds (CUDA error 209" in lines[-1]
    status = Path(f"/proc/{child.read_text()}/status")
    assert not status.exists() or "State:\tZ" in status.read_text()


def test_builds_without_code_for_the_card_are_not_tried(machine: Machine) -> None:
    printed, lines = machine.run(PAYS, CARDS=RTX_5090)
    assert printed == "False"
    assert lines == [
        "FAISS runs on the CPU and not on GPU 0: faiss-gpu-cuvs 1.15.1 has no machine code for compute "
        "capability 12.0 of NVIDIA GeForce RTX 5090, and the driver only compiles for CUDA 13.0; update the "
        "NVIDIA driver to one of CUDA 13.2 or newer"
    ]
    assert machine.trials == 0
    assert machine.run(PAYS, CARDS=RTX_5090, DRIVER_CUDA="13020")[0] == "True"
    assert machine.trials == 1


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"values": 3}', '{"values": {"works": 1}}', "\0", '{"error": 5}']
)
def test_garbage_in_the_cache_is_tried_again(
    content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "trial.json"
    file.write_text(content)
    assert gpu_trials._read(file) is None
    gpu_trials._write(file, Trial({"works": True}))
    assert gpu_trials._read(file) == Trial({"works": True})


def test_without_a_cache_each_process_tries(machine: Machine) -> None:
    machine.cache.write_text("a file in place of a folder")
    for count in (1, 2):
        assert machine.run(PAYS)[0] == "True"
        assert machine.trials == count


def test_doctor_tries_again_and_shows_it(machine: Machine) -> None:
    install(machine.folder, "onnxruntime-gpu", "raise ImportError('libcudart.so.13: cannot open')")
    install(machine.folder, "torch")
    assert machine.run(PAYS)[0] == "True"
    program = "import sys; from retrieval.cli import cli; cli.main(['doctor'], standalone_mode=False)"
    printed, _ = machine.run(program, "os.abort()")
    lines = printed.splitlines()
    assert lines[1].endswith("; tried: FAISS fails, ONNX Runtime fails, torch fails")
    wrong = [line for line in lines if line.startswith("Wrong: ")]
    assert wrong[0].startswith(
        "Wrong: FAISS: faiss-gpu-cuvs 1.15.1 fails on NVIDIA L4: its process ended by "
    )
    assert wrong[1] == "Wrong: ONNX Runtime: cannot be loaded: ImportError: libcudart.so.13: cannot open"
    assert wrong[2].startswith("Wrong: torch: cannot be loaded: AttributeError: ")
    assert "index build, duplicates  CPU, FAISS\n" in printed
    assert machine.run(PAYS)[0] == "False"  # commands know it, too


def test_a_model_runs_on_the_cpu_with_one_line(machine: Machine, model_file: Path) -> None:
    """The ONNX Runtime of this environment, beside a GPU that it has no code for."""
    build = builds()["onnxruntime"]
    if gpus() or build is None or not build.for_cpus:
        pytest.skip("needs an ONNX Runtime for CPUs, and no GPU")
    for device in ("auto", "cuda"):
        opened = f"Embedder({str(model_file)!r}, device={device!r})"
        program = f"from retrieval import Embedder; print({opened}.provider)"
        printed, lines = machine.run(program, everything=True)
        assert printed == "CPUExecutionProvider"
        (line,) = lines
        assert line.startswith(
            f"ONNX Runtime runs on the CPU and not on GPU 0: {build} is a build for CPUs; "
        )


def test_trials_of_the_libraries_of_this_environment() -> None:
    """Loaded; and what has no GPU to use fails at it."""
    assert run_trial("faiss").error == ""
    found = run_trial("onnxruntime")
    assert found.error == ""
    assert found.values["providers"][ORT_NAMES["cpu"]]
    if not gpus():
        for module in ("faiss", "onnxruntime"):
            trial = run_trial(module, 0)
            assert trial.values
            assert trial.error


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None, reason="torch compiles for a CPU with a C++ compiler")
def test_a_loss_is_compiled_and_has_the_same_gradient() -> None:
    assert list(gpu_trials._torch(None))[-1] == {"works": True}


@pytest.mark.skipif(bool(gpus()), reason="needs a machine without a GPU")
def test_without_a_gpu_no_process_is_started(machine: Machine) -> None:
    program = f"import subprocess; subprocess.Popen = None\n{PAYS}"
    assert machine.run(program, LD_LIBRARY_PATH="") == ("False", [])


def test_reason_is_taken_from_the_log_of_onnx_runtime() -> None:
    """What onnxruntime-gpu 1.31.1 wrote on a machine without a driver."""
    log = (
        "\x1b[1;31m2026-11-22 19:17:31.4 [E:onnxruntime:Default, provider_bridge_ort.cc:2458 operator()] "
        "provider_bridge_ort.cc:2043 Provider& onnxruntime::ProviderLibrary::Get() [ONNXRuntimeError] : 1 : "
        "FAIL : Failed to load library /x/libonnxruntime_providers_cuda.so with error: libcuda.so.1: cannot "
        "open shared object file: No such file or directory\n\x1b[m\n\x1b[0;93m2026-11-22 [W:x] Failed\n"
    )
    reason = "libcuda.so.1: cannot open shared object file: No such file or directory"
    assert gpu_trials._error(0, log, works=False) == reason
    assert gpu_trials._error(0, "", works=False) == "it does not say why"
    assert gpu_trials._error(0, log, works=True) == ""
