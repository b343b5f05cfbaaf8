"""Installation: the builds of FAISS, ONNX Runtime and torch, and what keeps them from using a GPU.

Everything is read from the metadata and files of the installed distributions; no library is imported.
`retrieval.machine.gpu_trials` finds out whether a library really works on a GPU.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from retrieval.machine.devices import Gpu
from retrieval.machine.extras import installer
from retrieval.machine.gpu_code import Code, gpu_code

if TYPE_CHECKING:
    from importlib.metadata import Distribution

NAMES = {"faiss": "FAISS", "onnxruntime": "ONNX Runtime", "torch": "torch"}
_PAIR = ("faiss", "onnxruntime")  # modules of which the extras `cpu` and `gpu` have one distribution each
_FOR_CPUS = {"faiss-cpu", "onnxruntime"}
_DRIVERS = {11: 450, 12: 525, 13: 580}  # CUDA -> first NVIDIA driver that runs it
# Libraries with code for GPUs, below the folder of the module.
_LIBRARIES = {"faiss": "*.so", "onnxruntime": "capi/*_cuda.so", "torch": "lib/libtorch_cuda.so"}
# Where a library says for which CUDA it is built: the requirements of FAISS, files of the others.
_CUDA = {
    "faiss": ("", r"^nvidia-cuda-runtime.*?>=\s*(\d+)\.(\d+)"),
    "onnxruntime": ("capi/build_and_package_info.py", r"cuda_version = '(\d+)\.(\d+)"),
    "torch": ("version.py", r"^cuda\b.*?= '(\d+)\.(\d+)"),
}
# What PyTorch's builds for CPUs do not need: distributions, and libraries in its own folder.
_TORCH_CUDA = re.compile(r"(cuda|nvidia|triton|pytorch-triton)(-|$)")
_TORCH_CUDA_FILES = re.compile(r"torch/lib/.*(cuda|nvshmem|nvrtc)")
_CUDA_12 = ("faiss-gpu", "onnxruntime-gpu[cuda,cudnn]<1.27")
_FOLDER = re.compile(r"(.+?)-([^-]+)\.dist-info")
_ROOT = Path(__file__).resolve().parents[2]
_PACKAGES = ("lookalike", "retrieval", "train", "serve", "export")  # ours


@dataclass(frozen=True)
class Build:
    """Installed build of a library.

    Attributes:
        module: Name of its Python module.
        distribution: Distribution whose files are in use.
        version: Version of that distribution.
        others: Further distributions of the module in that folder, whose files it has overwritten.
        cuda: Version of CUDA that it is built for, such as (13, 0); `None` for none or unknown.
        for_cpus: Whether it can only use CPUs.
        folder: Folder of the module.
    """

    module: str
    distribution: str
    version: str
    others: tuple[str, ...]
    cuda: tuple[int, int] | None
    for_cpus: bool
    folder: Path

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}"

    def code(self) -> frozenset[Code]:
        """Return its code for GPUs; none if its files do not tell."""
        return frozenset().union(*map(gpu_code, self.folder.glob(_LIBRARIES[self.module])))


@dataclass(frozen=True)
class Problem:
    """Something wrong with the installation.

    Attributes:
        module: Python module that it concerns, which may be a package of ours; "" for the driver.
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
    from importlib.metadata import distributions  # slow to import

    folders = list(dict.fromkeys(sys.path if path is None else path))
    found: dict[str, list[Distribution]] = {module: [] for module in NAMES}
    for distribution in distributions(path=folders):
        name = _name(distribution)
        for module, known in found.items():
            mine = name == module or (name.startswith(f"{module}-") and _has(distribution, module))
            if mine and name not in map(_name, known):
                known.append(distribution)
    return {
        module: _build(module, _in_one_folder(module, known)) if known else None
        for module, known in found.items()
    }


def _in_one_folder(module: str, known: Sequence[Distribution]) -> list[Distribution]:
    """Return those of distributions, in the order of the path, that are where Python finds the module."""
    folders = [Path(str(one.locate_file(module))).resolve() for one in known]
    first = next((folder for folder in folders if folder.is_dir()), folders[0])
    return [one for one, folder in zip(known, folders, strict=True) if folder == first]


def versions(names: Iterable[str], path: Sequence[str] | None = None) -> dict[str, str]:
    """Return the versions of Python and of distributions, for records of what made a file.

    Args:
        names: Distributions. One of several builds of a library, such as onnxruntime, stands for the one that
            is installed, whose name is returned; missing ones are left out.
        path: Folders to look into; `None` for those of `sys.path`.
    """
    found, installed = {"python": platform.python_version()}, _installed(sys.path if path is None else path)
    for name in names:
        if (version := installed.get(name)) is not None:
            found[name] = version
        elif build := builds(path).get(name):
            found[build.distribution] = build.version
    return found


def _installed(path: Sequence[str]) -> dict[str, str]:
    """Return the versions of distributions by the names of their folders, the first of a name.

    `importlib.metadata` parses all that a distribution says about itself, which takes 100 times as long.
    """
    found = dict[str, str]()
    for folder in path:
        with suppress(OSError):  # a file, or gone
            for entry in os.listdir(folder or "."):
                if match := _FOLDER.fullmatch(entry):
                    found.setdefault(re.sub(r"[-_.]+", "-", match[1]).lower(), match[2])
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
    return [problem for module in NAMES for problem in module_problems(module, found, cards, driver)]


def name_problems() -> Iterator[Problem]:
    """Yield the packages of ours that another distribution has, too: both have their files in one folder."""
    from importlib.metadata import packages_distributions, version

    owners = packages_distributions()
    for package in _PACKAGES:
        if others := sorted({*owners.get(package, ())} - {"lookalike"}):
            names = " and ".join(f"{name} {version(name)}" for name in others)
            text = (
                f"{names} has a package or module of this name, and may have overwritten files of lookalike"
            )
            repair = (
                f"uninstall {' and '.join(others)}, then install lookalike again; or use two environments"
            )
            yield Problem(package, text, repair)


def unused_cuda(found: Mapping[str, Build | None], path: Sequence[str] | None = None) -> Problem | None:
    """Return how much of a torch for CUDA is of no use without an NVIDIA GPU; `None` if it is for CPUs.

    It works all the same. pip has no option for a build of torch, uv has one.

    Args:
        found: Installed builds, by module.
        path: Folders with the distributions; `None` for those of `sys.path`.
    """
    from importlib.metadata import distributions

    build = found["torch"]
    if build is None or build.cuda is None:
        return None
    folders = list(dict.fromkeys(sys.path if path is None else path))
    installed = {_name(one): one for one in reversed(list(distributions(path=folders)))}
    parts, waiting = set[str](), ["torch"]
    while waiting:
        for line in installed[waiting.pop()].requires or ():
            name = re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", line, maxsplit=1)[0]).lower()
            if name in installed and name not in parts and _TORCH_CUDA.match(name):
                parts.add(name)
                waiting.append(name)
    files = [file for name in sorted(parts) for file in installed[name].files or ()]
    files += [file for file in installed["torch"].files or () if _TORCH_CUDA_FILES.match(file.as_posix())]
    paths = {Path(str(file.locate())) for file in files}
    size = sum(path.stat().st_size for path in paths if path.is_file())
    text = f"{build} is built for CUDA {dotted(build.cuda)}: {size / 1e9:.2f} GB of it need an NVIDIA GPU"
    torch = [name for name in ("torch", "torchvision", "torchaudio") if name in installed]
    return Problem("torch", text, _torch_for_cpus_command(torch, sorted(parts)))


def module_problems(
    module: str, found: Mapping[str, Build | None], cards: Sequence[Gpu], driver: tuple[int, int] | None
) -> Iterator[Problem]:
    """Yield what keeps one library from working; as `find_problems` otherwise."""
    build, extra = found[module], "gpu" if cards else "cpu"
    if build is None:
        if module in _PAIR:
            yield Problem(module, "it is not installed", install_command(extra, found))
        return
    if build.others:
        text = f"{' and '.join(_all_names(build))} overwrite each other's files, and {build} is in use"
        yield Problem(module, text, install_command(extra, found))
    elif cards and build.for_cpus:
        torch = ["torch", "torchvision"]
        repair = install_command("gpu", found) if module in _PAIR else _replace_command(torch, torch)
        yield Problem(module, f"{build} is a build for CPUs", repair)
    elif cards and build.cuda and driver and build.cuda[0] > driver[0]:
        text = f"{build} needs CUDA {build.cuda[0]}, but the driver only supports {dotted(driver)}"
        newest = _DRIVERS.get(build.cuda[0])
        repair = f"update the NVIDIA driver to {newest} or newer" if newest else "update the NVIDIA driver"
        yield Problem(module, text, repair)
    elif cards and (code := build.code()):
        yield from _code_problems(build, code, cards, driver, found)


def _code_problems(
    build: Build,
    code: Collection[Code],
    cards: Sequence[Gpu],
    driver: tuple[int, int] | None,
    found: Mapping[str, Build | None],
) -> Iterator[Problem]:
    """Yield the first card that a build has no code for, or none that the driver can compile."""
    for card in cards:
        suiting = [one for one in code if one.suits(card.capability)]
        what = f"code for compute capability {dotted(card.capability)} of {card.name}"
        if not suiting:
            yield Problem(build.module, f"{build} has no {what}", _other_build(build, code, card, found))
        elif all(one.is_ptx for one in suiting) and build.cuda and driver and driver < build.cuda:
            # The PTX of a version of CUDA is compiled by drivers of that version and newer ones.
            text = f"{build} has no machine {what}, and the driver only compiles for CUDA {dotted(driver)}"
            repair = f"update the NVIDIA driver to one of CUDA {dotted(build.cuda)} or newer"
            yield Problem(build.module, text, repair)
        else:
            continue
        return


def _other_build(build: Build, code: Collection[Code], card: Gpu, found: Mapping[str, Build | None]) -> str:
    """Return how to get a build with code for a card."""
    if card.capability > min(code).capability:
        return f"install a newer {build.distribution} that has it"
    if build.module in _PAIR:
        return _replace_command(_present(found), _CUDA_12)
    return "install a torch for CUDA 12 instead"


def dotted(version: tuple[int, int]) -> str:
    """Return a version, or a compute capability, as it is usually written."""
    return ".".join(map(str, version))


def install_command(extra: str, found: Mapping[str, Build | None]) -> str:
    """Return the command that leaves exactly the FAISS and the ONNX Runtime of an extra, `cpu` or `gpu`."""
    if Path(sys.prefix) == _ROOT / ".venv":  # a checkout's own environment
        where = "" if Path.cwd() == _ROOT else f" -C {shlex.quote(str(_ROOT))}"
        return f"make{where} --always-make env{' GPU=1' if extra == 'gpu' else ''}"
    return _replace_command(_present(found), [f"lookalike[{extra}]"])


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


def _torch_for_cpus_command(torch: Sequence[str], rest: Sequence[str]) -> str:
    """Return the command that installs PyTorch's builds for CPUs, and removes what those for CUDA needed.

    In this order, so that nothing is lost if the builds cannot be had.
    """
    uv, where, python = "uv pip", "", shlex.quote(sys.executable)
    steps = []
    if installer() == "pip":
        steps.append(f"{python} -m pip install uv")
        uv = f"{python} -m uv pip"
    if steps or _elsewhere("python"):
        where = f" --python {python}"
    again = " ".join(f"--reinstall-package {name}" for name in torch)
    steps.append(f"{uv} install{where} --torch-backend cpu {again} {' '.join(torch)}")
    if rest:
        steps.append(f"{uv} uninstall{where} {' '.join(rest)}")
    return " && ".join(steps)


def _elsewhere(program: str) -> bool:
    """Return whether the shell would start the program of another environment."""
    found = shutil.which(program)
    return found is None or Path(found).parent != Path(sys.executable).parent


def _build(module: str, known: Sequence[Distribution]) -> Build:
    used = next((one for one in known[:-1] if _is_in_use(one, module)), known[-1])
    file, pattern = _CUDA[module]
    folder = Path(str(used.locate_file(module)))
    told = "\n".join(used.requires or ()) if not file else _read(folder / file)
    match = re.search(pattern, told, re.MULTILINE)
    cuda = (int(match[1]), int(match[2])) if match else None
    others = tuple(sorted(_name(one) for one in known if one is not used))
    for_cpus = _name(used) in _FOR_CPUS or (module == "torch" and cuda is None)
    return Build(module, _name(used), used.version, others, cuda, for_cpus, folder)


def _read(file: Path) -> str:
    return file.read_text() if file.is_file() else ""


def _present(found: Mapping[str, Build | None]) -> list[str]:
    return [name for module in _PAIR if (build := found[module]) for name in _all_names(build)]


def _all_names(build: Build) -> list[str]:
    return sorted([build.distribution, *build.others])


def _name(distribution: Distribution) -> str:
    return re.sub(r"[-_.]+", "-", distribution.name or "").lower()


def _has(distribution: Distribution, module: str) -> bool:
    return any(str(file) == f"{module}/__init__.py" for file in distribution.files or ())


def _is_in_use(distribution: Distribution, module: str) -> bool:
    """Return whether the module's files have the sizes that a distribution has recorded."""
    files = [file for file in distribution.files or () if str(file).startswith(f"{module}/") and file.size]
    return all(
        path.is_file() and path.stat().st_size == file.size
        for file in files
        for path in [Path(str(file.locate()))]
    )
