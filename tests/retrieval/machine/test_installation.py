"""The extras `cpu` and `gpu`: what uv resolves and installs, and the problems that are found in both."""

from __future__ import annotations

import json
import platform
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from importlib.metadata import distribution, distributions
from pathlib import Path

import pytest

from retrieval.machine import installation
from retrieval.machine.devices import Gpu
from retrieval.machine.installation import (
    Build,
    builds,
    find_problems,
    module_problems,
    name_problems,
    versions,
)
from tests.retrieval.stand_in import WHEELS, compile_driver, install

ROOT = Path(__file__).parents[3]
UV = Path(sys.executable).with_name("uv")
CARDS = (Gpu(0, "NVIDIA L4", 24 << 30, (8, 9)),)
CPU, GPU = ("faiss-cpu", "onnxruntime"), ("faiss-gpu-cuvs", "onnxruntime-gpu")


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in the environment of a checkout, which is repaired with make."""
    monkeypatch.setattr(installation, "_ROOT", tmp_path)


def found_in(folder: Path) -> dict[str, Build | None]:
    """The builds in a folder, and the torch of this environment without its thousands of files."""
    return builds([str(folder)])


def texts(found: Mapping[str, Build | None], driver: tuple[int, int] | None = (13, 0)) -> list[str]:
    return [problem.text for problem in find_problems(found, CARDS if driver else (), driver)]


@pytest.mark.parametrize("pair", [CPU, GPU, ("faiss-gpu", "onnxruntime-gpu")], ids="+".join)
def test_one_pair_has_no_problem_on_its_machine(pair: tuple[str, str], tmp_path: Path) -> None:
    for name in pair:
        install(tmp_path, name)
    found = found_in(tmp_path)
    assert [build and build.distribution for build in found.values()] == [*pair, None]
    assert not any(build.others for build in found.values() if build)
    assert texts(found, None if pair == CPU else (13, 0)) == []


def test_cuda_versions_are_read(tmp_path: Path) -> None:
    for name in GPU:
        install(tmp_path, name)
    found = found_in(tmp_path)
    assert [build and build.cuda for build in found.values()] == [(13, 2), (13, 0), None]
    too_old = texts(found, (12, 8))
    assert len(too_old) == 2
    assert all("needs CUDA 13, but the driver only supports 12.8" in text for text in too_old)
    assert {p.repair for p in find_problems(found, CARDS, (12, 8))} == {
        "update the NVIDIA driver to 580 or newer"
    }


# Card -> compute capability, and the CUDA of the driver from which FAISS, ONNX Runtime and torch run, if any.
TABLE = {
    "Tesla V100": ((7, 0), "- - -"),
    "Tesla T4": ((7, 5), "13.0 13.0 13.0"),
    "NVIDIA A100": ((8, 0), "13.0 13.0 13.0"),
    "NVIDIA L4": ((8, 9), "13.0 13.0 13.0"),
    "NVIDIA GeForce RTX 4090": ((8, 9), "13.0 13.0 13.0"),
    "NVIDIA H100": ((9, 0), "13.0 13.0 13.0"),
    "NVIDIA B200": ((10, 0), "13.2 - 13.0"),
    "NVIDIA B300": ((10, 3), "13.2 - 13.0"),
    "NVIDIA GeForce RTX 5090": ((12, 0), "13.2 13.0 13.0"),
    "NVIDIA GB10": ((12, 1), "13.2 - 13.0"),
}
DRIVERS = {"535": (12, 2), "550": (12, 4), "570": (12, 8), "580": (13, 0), "590": (13, 1), "595": (13, 2)}
REPAIRS = {
    "needs CUDA 13": "update the NVIDIA driver to 580 or newer",
    "no machine code": "update the NVIDIA driver to one of CUDA 13.2 or newer",
    "no code": "install a newer onnxruntime-gpu that has it",
}


def test_cards_and_drivers_that_suit_the_builds(tmp_path: Path) -> None:
    """All cards by all drivers, through a driver that is compiled here."""
    for name in (*GPU, "torch"):
        install(tmp_path, name)
    compile_driver(tmp_path)
    program = f"""
import itertools, json, os, sys
from retrieval.machine.devices import driver_cuda, gpus
from retrieval.machine.installation import builds, module_problems
found, verdicts = builds([sys.argv[1]]), []
for (name, (card, _)), cuda in itertools.product({TABLE}.items(), {DRIVERS}.values()):
    os.environ |= {{"CARDS": f"{{name}}/{{card[0]}}/{{card[1]}}", "DRIVER_CUDA": f"{{cuda[0]}}0{{cuda[1]}}0"}}
    gpus.cache_clear()
    assert [(gpu.name, gpu.capability) for gpu in gpus()] == [(name, card)] and driver_cuda() == cuda
    for module in found:
        problem = next(module_problems(module, found, gpus(), driver_cuda()), None)
        verdicts.append((name, cuda, module, problem and (problem.text, problem.repair)))
print(json.dumps(verdicts))
"""
    environment = {"LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    verdicts = json.loads(done.stdout)
    assert len(verdicts) == 3 * len(TABLE) * len(DRIVERS)
    for name, cuda, module, problem in verdicts:
        capability, first = TABLE[name]
        need = first.split()[["faiss", "onnxruntime", "torch"].index(module)]
        works = need != "-" and tuple(cuda) >= tuple(map(int, need.split(".")))
        assert (problem is None) == works, (name, cuda, module, problem)
        if problem is not None:
            kind = "needs CUDA 13" if cuda[0] < 13 else "no code" if need == "-" else "no machine code"
            assert kind in problem[0]
            assert (name in problem[0]) == (cuda[0] >= 13)
            if capability >= (7, 5) or cuda[0] < 13:
                assert problem[1] == REPAIRS[kind]
            elif module == "torch":
                assert problem[1] == "install a torch for CUDA 12 instead"
            else:
                assert problem[1].endswith(" faiss-gpu 'onnxruntime-gpu[cuda,cudnn]<1.27'")
                assert {*GPU} <= set(problem[1].split("&&")[0].split())


def test_texts_name_build_card_and_driver(tmp_path: Path) -> None:
    for name in (*GPU, "torch"):
        install(tmp_path, name)
    found = found_in(tmp_path)

    def text(module: str, card: str, driver: tuple[int, int]) -> str:
        gpu = Gpu(0, card, 24 << 30, TABLE[card][0])
        return next(module_problems(module, found, [gpu], driver)).text

    assert text("faiss", "NVIDIA GeForce RTX 5090", (13, 0)) == (
        "faiss-gpu-cuvs 1.15.1 has no machine code for compute capability 12.0 of NVIDIA GeForce RTX 5090, "
        "and the driver only compiles for CUDA 13.0"
    )
    assert text("onnxruntime", "NVIDIA B200", (13, 2)) == (
        "onnxruntime-gpu 1.31.1 has no code for compute capability 10.0 of NVIDIA B200"
    )
    assert (
        text("torch", "Tesla T4", (12, 8)) == "torch 2.15.0 needs CUDA 13, but the driver only supports 12.8"
    )


@pytest.mark.parametrize("last", [CPU, GPU], ids="+".join)
def test_of_both_pairs_that_installed_last_is_in_use(
    last: tuple[str, str], tmp_path: Path, elsewhere: None
) -> None:
    for name in (*(GPU if last is CPU else CPU), *last):
        install(tmp_path, name)
    found = found_in(tmp_path)
    assert [build and build.distribution for build in found.values()] == [*last, None]
    for driver in (None, (13, 0)):
        problems = find_problems(found, CARDS if driver else (), driver)
        assert [
            f"{name} {WHEELS[name][0]} is in use" in p.text for name, p in zip(last, problems, strict=True)
        ]
        extra = "gpu" if driver else "cpu"
        for problem in problems:
            assert all(name in problem.repair.split("&&")[0].split() for name in (*CPU, *GPU))
            assert problem.repair.endswith(f"'lookalike[{extra}]'")


@pytest.mark.parametrize("first", [CPU, GPU], ids="+".join)
def test_of_pairs_in_two_folders_the_first_on_the_path_is_in_use(
    first: tuple[str, str], tmp_path: Path
) -> None:
    """As with PYTHONPATH, `pip --target` or the packages of the user: nothing is overwritten."""
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder, pair in zip(folders, (first, GPU if first is CPU else CPU), strict=True):
        folder.mkdir()
        for name in pair:
            install(folder, name)
    (tmp_path / "empty").mkdir()
    found = builds([str(tmp_path / "empty"), *map(str, folders)])
    assert [build and (build.distribution, build.others) for build in found.values()] == [
        *((name, ()) for name in first),
        None,
    ]
    wanted = [f"{name} {WHEELS[name][0]} is a build for CPUs" for name in CPU] if first is CPU else []
    assert texts(found) == wanted


def test_builds_for_cpus_beside_a_gpu_are_wrong(tmp_path: Path, elsewhere: None) -> None:
    for name in CPU:
        install(tmp_path, name)
    found = found_in(tmp_path)
    assert texts(found) == ["faiss-cpu 1.15.1 is a build for CPUs", "onnxruntime 1.32.0 is a build for CPUs"]
    repair = find_problems(found, CARDS, (13, 0))[0].repair
    assert " faiss-cpu onnxruntime && " in repair
    assert repair.endswith("'lookalike[gpu]'")


def test_the_environment_of_a_checkout_is_repaired_with_make(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installation, "_ROOT", tmp_path)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    assert installation.install_command("gpu", {}) == f"make -C {tmp_path} --always-make env GPU=1"
    monkeypatch.chdir(tmp_path)
    assert installation.install_command("cpu", {}) == "make --always-make env"


@pytest.mark.parametrize("name", ["onnxruntime", "onnxruntime-gpu"])
def test_versions_name_the_build_that_is_installed(name: str, tmp_path: Path) -> None:
    install(tmp_path, name)
    found = versions(("onnxruntime", "pillow"), [str(tmp_path)])
    assert found == {"python": platform.python_version(), name: WHEELS[name][0]}


def test_distribution_with_a_package_of_ours_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "faiss-cpu")
    info = tmp_path / "trainer-2.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: trainer\nVersion: 2.1\n")
    (info / "RECORD").write_text("train/__init__.py,,1\ntrainer.py,,1\n")
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "__init__.py").touch()
    (tmp_path / "trainer.py").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    (problem,) = name_problems()
    assert problem.module == "train"
    assert problem.text.startswith("trainer 2.1 has a package")
    assert "uninstall trainer" in problem.repair


def test_what_only_a_gpu_needs_is_measured_and_removed_last(tmp_path: Path, elsewhere: None) -> None:
    """Of the distributions that torch needs, directly or not, those of CUDA; others that are there stay."""
    install(tmp_path, "torch")
    record = tmp_path / "torch-2.15.0.dist-info" / "METADATA"
    needs = "Requires-Dist: cuda-toolkit[cublas]==13.2\nRequires-Dist: sympy\n"
    record.write_text(record.read_text() + needs)
    for name, need in {
        "cuda-toolkit": "nvidia.cublas",
        "nvidia_cublas": "",
        "sympy": "",
        "nvidia-x": "",
    }.items():
        info = tmp_path / f"{name.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Name: {name}\nVersion: 1.0\nRequires-Dist: {need or 'numpy'}\n")
        (info / "RECORD").write_text(f"{name}.so,,\n")
        (tmp_path / f"{name}.so").write_bytes(bytes(100_000_000))
    unused = installation.unused_cuda(found_in(tmp_path), [str(tmp_path)])
    assert unused is not None
    assert unused.text == "torch 2.15.0 is built for CUDA 13.2: 0.20 GB of it need an NVIDIA GPU"
    steps = unused.repair.split(" && ")
    assert steps[-2].endswith(" --torch-backend cpu --reinstall-package torch torch")
    assert steps[-1].split("uninstall")[1].split()[-2:] == ["cuda-toolkit", "nvidia-cublas"]
    (tmp_path / "torch" / "version.py").write_text("cuda: str | None = None\n")
    assert installation.unused_cuda(found_in(tmp_path), [str(tmp_path)]) is None


def test_nothing_installed(tmp_path: Path) -> None:
    found = found_in(tmp_path)
    assert list(found.values()) == [None, None, None]
    assert texts(found, None) == ["it is not installed"] * 2
    assert all("uninstall" not in problem.repair for problem in find_problems(found, (), None))


def test_torch_of_this_environment_is_described() -> None:
    found, torch = builds()["torch"], distribution("torch")
    assert found is not None
    assert found.version == torch.version
    stated = runpy.run_path(str(torch.locate_file("torch/version.py")))["cuda"]
    assert stated == (".".join(map(str, found.cuda)) if found.cuda else None)


@pytest.mark.parametrize(
    ("installed", "words", "extra"),
    [
        (None, ["env"], "cpu"),
        (None, ["env", "GPU=1"], "gpu"),
        (None, ["demo"], "cpu"),
        ("cpu", ["env"], None),
        ("gpu", ["env"], "cpu"),
        ("cpu", ["env", "GPU=1"], "gpu"),
        ("gpu", ["demo"], None),
        ("gpu", ["env", "GPU=1"], None),
    ],
)
def test_make_installs_the_named_pair(
    installed: str | None, words: list[str], extra: str | None, tmp_path: Path
) -> None:
    """Commands of make are printed, not run; the other pair is removed first, and its stamp."""
    if shutil.which("make") is None:
        pytest.skip("needs make")
    if installed:
        (tmp_path / f".ready-{installed}").touch()
    command = ["make", "--dry-run", "--no-print-directory", f"VENV={tmp_path}", *words]
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    steps = [line for line in lines if "uv pip" in line or ".ready" in line]
    if extra is None:
        assert steps == []
        return
    stamps, uninstalling, installing, stamped = steps
    assert stamps == f"rm -f {tmp_path}/.ready*"
    assert {*CPU, *GPU} <= set(uninstalling.split())
    assert installing.endswith(f'".[train,test,{extra}]"')
    assert stamped == f"touch {tmp_path}/.ready-{extra}"


# ---- with uv and the package index


def uv(*arguments: str) -> str:
    """Run uv and return what it prints; skip the test if uv or the package index is missing."""
    if not UV.is_file():
        pytest.skip("needs uv in the environment")
    done = subprocess.run([UV, *arguments], capture_output=True, text=True)
    if done.returncode and any(
        word in done.stderr for word in ("error sending request", "dns error", "offline")
    ):
        pytest.skip(f"the package index cannot be reached: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize(("extra", "pair"), [("cpu", CPU), ("gpu", GPU)])
def test_extra_resolves_to_one_pair(extra: str, pair: tuple[str, str]) -> None:
    platform = ("--python-platform", "x86_64-manylinux_2_28", "--python-version", "3.11")
    project = str(ROOT / "pyproject.toml")
    lines = uv(
        "pip", "compile", "--quiet", "--no-annotate", "--extra", extra, *platform, project
    ).splitlines()
    names = {line.partition("==")[0] for line in lines}
    assert {name for name in names if name.startswith(("faiss", "onnxruntime"))} == set(pair)


def test_extras_exclude_each_other() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert settings["tool"]["uv"]["conflicts"] == [[{"extra": "cpu"}, {"extra": "gpu"}]]
    assert not [
        line for line in settings["project"]["dependencies"] if line.startswith(("faiss", "onnxruntime"))
    ]


def test_versions_are_those_of_the_metadata() -> None:
    """Of all that is installed here; read from the names of folders, as the metadata takes long to parse."""
    said: dict[str, str] = {}
    for one in distributions():  # the first of a name counts: setuptools puts further ones on the path
        said.setdefault(re.sub(r"[-_.]+", "-", one.name).lower(), one.version)
    assert len(said) > 20
    found = versions(said)
    assert {name: found.get(name) for name in said} == said
