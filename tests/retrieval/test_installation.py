"""The extras `cpu` and `gpu`: what uv resolves and installs, and the problems that are found in both."""

from __future__ import annotations

import platform
import runpy
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from importlib.metadata import distribution
from pathlib import Path

import pytest

from retrieval import installation
from retrieval.devices import Gpu
from retrieval.installation import Build, builds, find_problems, idle_gpu, versions

ROOT = Path(__file__).parents[2]
UV = Path(sys.executable).with_name("uv")
CARDS = (Gpu(0, "NVIDIA L4", 24 << 30, (8, 9)),)
CPU, GPU = ("faiss-cpu", "onnxruntime"), ("faiss-gpu-cuvs", "onnxruntime-gpu")
# Distribution -> version, requirement that names CUDA, and its extension module: file and bytes.
WHEELS = {
    "faiss-cpu": ("1.15.1", "numpy", "faiss/_swigfaiss.abi3.so", 6541),
    "faiss-gpu": ("1.15.1", "nvidia-cuda-runtime-cu12<13,>=12.6", "faiss/_swigfaiss.abi3.so", 7001),
    "faiss-gpu-cuvs": ("1.15.1", "nvidia-cuda-runtime<14,>=13.2", "faiss/_swigfaiss.abi3.so", 7262),
    "onnxruntime": ("1.32.0", "numpy", "onnxruntime/capi/state.so", 3661),
    "onnxruntime-gpu": ("1.31.1", "numpy", "onnxruntime/capi/state.so", 3102),
}


def install(folder: Path, name: str) -> None:
    """Write the files of a wheel and its records, over those that are there, as an installer does."""
    version, requirement, extension, size = WHEELS[name]
    module = extension.partition("/")[0]
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    files: dict[str, str] = {f"{module}/__init__.py": "", extension: "x" * size}
    if name == "onnxruntime-gpu":
        files["onnxruntime/capi/providers_cuda.so"] = "x" * 28_401
    if module == "onnxruntime":
        cuda = "cuda_version = '13.0'\n" if name == "onnxruntime-gpu" else ""
        files["onnxruntime/capi/build_and_package_info.py"] = f"package_name = '{name}'\n{cuda}"
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).unlink(missing_ok=True)  # it may be a hard link into the cache of uv
        (folder / path).write_text(content)
    info.mkdir()
    (info / "METADATA").write_text(f"Name: {name}\nVersion: {version}\nRequires-Dist: {requirement}\n")
    records = [f"{path},,{len(content)}\n" for path, content in files.items()]
    records += [f"{info.name}/{own},,\n" for own in ("METADATA", "RECORD")]
    (info / "RECORD").write_text("".join(records))


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


def test_a_gpu_that_is_too_old_is_named(tmp_path: Path) -> None:
    for name in GPU:
        install(tmp_path, name)
    volta = (Gpu(0, "Tesla V100", 16 << 30, (7, 0)),)
    problems = find_problems(found_in(tmp_path), volta, (13, 0))
    assert [problem.module for problem in problems] == ["faiss", "onnxruntime"]
    assert problems[0].text == "faiss-gpu-cuvs 1.15.1 needs compute capability 7.5, but Tesla V100 has 7.0"
    assert problems[0].repair.endswith(" faiss-gpu 'onnxruntime-gpu[cuda,cudnn]<1.27'")
    for name in GPU:
        assert name in problems[0].repair.split("&&")[0].split()


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


def test_builds_for_cpus_beside_a_gpu_are_wrong(tmp_path: Path, elsewhere: None) -> None:
    for name in CPU:
        install(tmp_path, name)
    found = found_in(tmp_path)
    assert texts(found) == ["faiss-cpu 1.15.1 is a build for CPUs", "onnxruntime 1.32.0 is a build for CPUs"]
    line = idle_gpu("onnxruntime", "", found, CARDS, (13, 0))
    assert line.startswith("ONNX Runtime runs on the CPU and leaves NVIDIA L4 idle: onnxruntime 1.32.0 is a")
    assert line.endswith(" faiss-cpu onnxruntime && " + line.rpartition("&& ")[2])
    assert "'lookalike[gpu]'" in line
    assert "\n" not in line


def test_the_environment_of_a_checkout_is_repaired_with_make(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installation, "_ROOT", tmp_path)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    assert installation.install_command("gpu", {}) == f"make -C {tmp_path} --always-make env GPU=1"
    monkeypatch.chdir(tmp_path)
    assert installation.install_command("cpu", {}) == "make --always-make env"


def test_the_reason_of_the_caller_counts_where_the_build_is_right(tmp_path: Path) -> None:
    for name in GPU:
        install(tmp_path, name)
    line = idle_gpu("faiss", "out of memory", found_in(tmp_path), CARDS, (13, 0))
    assert line.endswith("leaves NVIDIA L4 idle: out of memory; `lookalike doctor` looks for the cause")


@pytest.mark.parametrize("name", ["onnxruntime", "onnxruntime-gpu"])
def test_versions_name_the_build_that_is_installed(name: str, tmp_path: Path) -> None:
    install(tmp_path, name)
    found = versions(("onnxruntime", "pillow"), [str(tmp_path)])
    assert found == {"python": platform.python_version(), name: WHEELS[name][0]}


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
