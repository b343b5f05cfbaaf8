"""Installation: the builds of FAISS, ONNX Runtime and torch, and what keeps them from using a GPU.

Everything is read from the metadata and files of the installed distributions; no library is imported.
"""

from __future__ import annotations

import platform
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import Distribution, distributions
from pathlib import Path

from retrieval.devices import Gpu, driver_cuda, gpus
from retrieval.extras import installer
from retrieval.notices import print_notice

NAMES = {"faiss": "FAISS", "onnxruntime": "ONNX Runtime", "torch": "torch"}
_PAIR = ("faiss", "onnxruntime")  # modules of which the extras `cpu` and `gpu` have one distribution each
_FOR_CPUS = {"faiss-cpu", "onnxruntime"}
_DRIVERS = {11: 450, 12: 525, 13: 580}  # CUDA -> first NVIDIA driver that runs it
_OLDEST = {11: (3, 5), 12: (5, 0), 13: (7, 5)}  # CUDA -> least compute capability
_CUDA_12 = ("faiss-gpu", "onnxruntime-gpu[cuda,cudnn]<1.27")
_ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Build:
    """Installed build of a library.

    Attributes:
        module: Name of its Python module.
        distribution: Distribution whose files are in use.
        version: Version of that distribution.
        others: Further distributions with the same module, whose files it has overwritten.
        cuda: Version of CUDA that it is built for, such as (13, 0); `None` for none or unknown.
        for_cpus: Whether it can only use CPUs.
    """

    module: str
    distribution: str
    version: str
    others: tuple[str, ...]
    cuda: tuple[int, int] | None
    for_cpus: bool


@dataclass(frozen=True)
class Problem:
    """Something wrong with the installation.

    Attributes:
        module: Python module that it concerns; "" for the driver.
        text: What is wrong.
        repair: Command that repairs it, or what to do.
    """

    module: str
    text: str
    repair: str


def builds(path: Sequence[str] | None = None) -> dict[str, Build | None]:
    """Return the installed build of each library by its module; `None` for one that is not installed.

    Args:
        path: Folders to look into; `None` for those of `sys.path`.
    """
    folders = list(dict.fromkeys(sys.path if path is None else path))
    found: dict[str, list[Distribution]] = {module: [] for module in NAMES}
    for distribution in distributions(path=folders):
        name = _name(distribution)
        for module, known in found.items():
            mine = name == module or (name.startswith(f"{module}-") and _has(distribution, module))
            if mine and name not in map(_name, known):
                known.append(distribution)
    return {module: _build(module, known) if known else None for module, known in found.items()}


def versions(names: Iterable[str], path: Sequence[str] | None = None) -> dict[str, str]:
    """Return the versions of Python and of distributions, for records of what made a file.

    Args:
        names: Distributions. One of several builds of a library, such as onnxruntime, stands for the one that
            is installed, whose name is returned; missing ones are left out.
        path: Folders to look into; `None` for those of `sys.path`.
    """
    found = {"python": platform.python_version()}
    for name in names:
        known = next(iter(distributions(name=name, path=sys.path if path is None else list(path))), None)
        if known is not None:
            found[name] = known.version
        elif build := builds(path).get(name):
            found[build.distribution] = build.version
    return found


def find_problems(
    found: Mapping[str, Build | None], cards: Sequence[Gpu], driver: tuple[int, int] | None
) -> list[Problem]:
    """Return what keeps the libraries from working, or from using a GPU that is there.

    Args:
        found: Installed builds, by module.
        cards: GPUs of the machine.
        driver: Newest CUDA version that the driver supports; `None` without a driver.
    """
    return [problem for module in NAMES for problem in _problems(module, found, cards, driver)]


@cache
def gpu_problem(module: str) -> Problem | None:
    """Return what keeps a library of this environment from using the GPUs of this machine, if anything."""
    return next(_problems(module, builds(), gpus(), driver_cuda()), None)


@cache
def report_idle_gpu(module: str, reason: str = "") -> None:
    """Print on stderr that a library works on the CPU although there is a GPU, and the repair.

    Call it where a device was chosen automatically and a GPU would have been used. It prints once per process
    and library, and nothing on a machine without a GPU.

    Args:
        module: Python module of the library: faiss, onnxruntime or torch.
        reason: Why it cannot use the GPU, if the caller knows; the build is checked in any case.
    """
    if gpus():
        print_notice(idle_gpu(module, reason, builds(), gpus(), driver_cuda()))


def idle_gpu(
    module: str,
    reason: str,
    found: Mapping[str, Build | None],
    cards: Sequence[Gpu],
    driver: tuple[int, int] | None,
) -> str:
    """Return the line that `report_idle_gpu` prints on a machine with GPUs."""
    problems = list(_problems(module, found, cards, driver))
    text = problems[0].text if problems else reason or "it does not find the GPU"
    repair = problems[0].repair if problems else "`lookalike doctor` looks for the cause"
    return f"{NAMES[module]} runs on the CPU and leaves {cards[0].name} idle: {text}; {repair}"


def install_command(extra: str, found: Mapping[str, Build | None]) -> str:
    """Return the command that leaves exactly the FAISS and the ONNX Runtime of an extra, `cpu` or `gpu`."""
    if Path(sys.prefix) == _ROOT / ".venv":  # a checkout's own environment
        where = "" if Path.cwd() == _ROOT else f" -C {shlex.quote(str(_ROOT))}"
        return f"make{where} --always-make env{' GPU=1' if extra == 'gpu' else ''}"
    return _replace_command(_present(found), [f"lookalike[{extra}]"])


def _problems(
    module: str, found: Mapping[str, Build | None], cards: Sequence[Gpu], driver: tuple[int, int] | None
) -> Iterator[Problem]:
    build, extra = found[module], "gpu" if cards else "cpu"
    if build is None:
        if module in _PAIR:
            yield Problem(module, "it is not installed", install_command(extra, found))
        return
    what = f"{build.distribution} {build.version}"
    if build.others:
        text = f"{' and '.join(_all_names(build))} overwrite each other's files, and {what} is in use"
        yield Problem(module, text, install_command(extra, found))
    elif cards and build.for_cpus:
        yield Problem(module, f"{what} is a build for CPUs", _swap_command(module, found))
    elif cards and build.cuda and driver and build.cuda[0] > driver[0]:
        text = f"{what} needs CUDA {build.cuda[0]}, but the driver only supports {driver[0]}.{driver[1]}"
        newest = _DRIVERS.get(build.cuda[0])
        repair = f"update the NVIDIA driver to {newest} or newer" if newest else "update the NVIDIA driver"
        yield Problem(module, text, repair)
    elif build.cuda and (
        old := [card for card in cards if card.capability < _OLDEST.get(build.cuda[0], (0, 0))]
    ):
        have, need = (".".join(map(str, pair)) for pair in (old[0].capability, _OLDEST[build.cuda[0]]))
        text = f"{what} needs compute capability {need}, but {old[0].name} has {have}"
        repair = "install a torch for CUDA 12 instead"
        if module in _PAIR:
            repair = _replace_command(_present(found), _CUDA_12)
        yield Problem(module, text, repair)


def _swap_command(module: str, found: Mapping[str, Build | None]) -> str:
    if module in _PAIR:
        return install_command("gpu", found)
    return _replace_command(["torch", "torchvision"], ["torch", "torchvision"])


def _replace_command(old: Sequence[str], new: Sequence[str]) -> str:
    """Return the command that replaces distributions in this environment."""
    python = shlex.quote(sys.executable)
    if installer() != "pip":
        where = f" --python {python}" if _elsewhere("python") else ""
        uninstall, install = f"uv pip uninstall{where}", f"uv pip install{where}"
    else:
        pip = f"{python} -m pip" if _elsewhere("pip") else "pip"
        uninstall, install = f"{pip} uninstall -y", f"{pip} install"
    installing = f"{install} {' '.join(map(shlex.quote, new))}"
    return f"{uninstall} {' '.join(old)} && {installing}" if old else installing


def _elsewhere(program: str) -> bool:
    """Return whether the shell would start the program of another environment."""
    found = shutil.which(program)
    return found is None or Path(found).parent != Path(sys.executable).parent


def _build(module: str, known: Sequence[Distribution]) -> Build:
    used = _in_use(known, module) if len(known) > 1 else known[0]
    others = tuple(sorted(_name(distribution) for distribution in known if distribution is not used))
    name = _name(used)
    folder = Path(str(used.locate_file(module)))
    cuda = {"faiss": _cuda_of_faiss, "onnxruntime": _cuda_of_onnxruntime, "torch": _cuda_of_torch}[module]
    found = cuda(used, folder)
    for_cpus = name in _FOR_CPUS or (module == "torch" and found is None)
    return Build(module, name, used.version, others, found, for_cpus)


def _present(found: Mapping[str, Build | None]) -> list[str]:
    return [name for module in _PAIR if (build := found[module]) for name in _all_names(build)]


def _all_names(build: Build) -> list[str]:
    return sorted([build.distribution, *build.others])


def _name(distribution: Distribution) -> str:
    return re.sub(r"[-_.]+", "-", distribution.name or "").lower()


def _has(distribution: Distribution, module: str) -> bool:
    return any(str(file) == f"{module}/__init__.py" for file in distribution.files or ())


def _in_use(known: Sequence[Distribution], module: str) -> Distribution:
    """Return the distribution that wrote the module's largest file of those that all of them have."""
    recorded = [{str(file): file for file in distribution.files or ()} for distribution in known]
    shared = set.intersection(*map(set, recorded))
    differing = [
        name
        for name in shared
        if name.startswith(f"{module}/") and len({files[name].size for files in recorded}) == len(known)
    ]
    largest = max(differing, key=lambda name: recorded[0][name].size or 0, default="")
    path = Path(str(known[0].locate_file(largest)))
    size = path.stat().st_size if path.is_file() else None
    sizes = [files[largest].size if largest else None for files in recorded]
    return known[sizes.index(size)] if size in sizes else known[-1]


def _cuda_of_faiss(distribution: Distribution, _: Path) -> tuple[int, int] | None:
    for requirement in distribution.requires or ():
        if requirement.startswith("nvidia-cuda-runtime"):
            return _version(re.search(r">=\s*(\d+)\.(\d+)", requirement))
    return None


def _cuda_of_onnxruntime(_: Distribution, folder: Path) -> tuple[int, int] | None:
    return _cuda_in(folder / "capi" / "build_and_package_info.py", r"cuda_version = '(\d+)\.(\d+)")


def _cuda_of_torch(_: Distribution, folder: Path) -> tuple[int, int] | None:
    return _cuda_in(folder / "version.py", r"^cuda\b.*?= '(\d+)\.(\d+)")


def _cuda_in(file: Path, pattern: str) -> tuple[int, int] | None:
    try:
        return _version(re.search(pattern, file.read_text(), re.MULTILINE))
    except OSError:
        return None


def _version(match: re.Match[str] | None) -> tuple[int, int] | None:
    return (int(match[1]), int(match[2])) if match else None
