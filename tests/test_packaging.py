"""The distributions: what they contain, and the wheel in a clean environment with the extra `cpu` alone."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import urllib.request
import zipfile
from collections.abc import Iterator
from email.message import Message
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from retrieval.cli import COMMANDS
from retrieval.machine.devices import gpus
from serve.client import ApiError, Client
from tests.retrieval.machine.test_installation import GPU
from tests.retrieval.stand_in import install

ROOT = Path(__file__).parents[1]
UV = Path(sys.executable).with_name("uv")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PACKAGES = ("lookalike", "retrieval", "train", "serve", "export", "recipes")
CLEAN = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
LOCKS = {"search": ["cpu"], "standard": ["cpu", "standard"], "dev": ["cpu", "train", "test"]}
NO_NETWORK = ("error sending request", "dns error", "offline")


def uv(*arguments: str | Path) -> str:
    """Run uv; skip the test if uv or the package index is missing."""
    if not UV.is_file():
        pytest.skip("needs uv in the environment")
    done = subprocess.run([UV, *arguments], capture_output=True, text=True, env=CLEAN)
    if done.returncode and any(word in done.stderr for word in NO_NETWORK):
        pytest.skip(f"the package index cannot be reached: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the sdist, and the wheel that is built from it."""
    project, out = tmp_path_factory.mktemp("project"), tmp_path_factory.mktemp("dist")
    for folder in (*PACKAGES, "tests", "benchmarks"):
        shutil.copytree(ROOT / folder, project / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in", "app.py"):
        shutil.copy(ROOT / name, project)
    uv("build", "--quiet", "--python", sys.executable, "--out-dir", out, project)
    return out


@pytest.fixture(scope="module")
def environment(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A clean environment with the wheel and the extra `cpu`."""
    folder = tmp_path_factory.mktemp("clean") / "environment"
    (wheel,) = built.glob("*.whl")
    try:
        uv("venv", "--quiet", "--python", sys.executable, folder)
        uv(
            "pip",
            "install",
            "--quiet",
            "--python",
            folder / "bin" / "python",
            f"lookalike[cpu] @ {wheel.as_uri()}",
        )
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # hundreds of megabytes, where files cannot be linked


def run(environment: Path, *words: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run the installed command outside the repository."""
    command = [environment / "bin" / "lookalike", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=environment, env=CLEAN)
    assert done.returncode == code, f"{words}: {done.stdout}\n{done.stderr}"
    return done


def files_of_packages() -> set[str]:
    """The files of the packages in this checkout."""
    found = (file for name in PACKAGES for file in (ROOT / name).rglob("*") if file.is_file())
    unused = {"types.d.ts", "jsconfig.json"}  # of the type checker of scripts
    found = (file for file in found if file.name not in unused and file.suffix != ".pyi")
    return {str(file.relative_to(ROOT)) for file in found if "__pycache__" not in file.parts}


def test_distributions_have_every_file_of_the_packages_and_no_test(built: Path) -> None:
    (wheel,), (sdist,) = built.glob("*.whl"), built.glob("*.tar.gz")
    stem = f"lookalike-{PROJECT['version']}"
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {name for name in names if not name.startswith(f"{stem}.dist-info/")} == files_of_packages()
    with tarfile.open(sdist) as source:
        names = {name.removeprefix(f"{stem}/") for name in source.getnames()}
    assert files_of_packages() | {"pyproject.toml", "README.md", "LICENSE"} <= names
    assert not {name for name in names if name.startswith(("benchmarks/", "build/", "tests/"))}


def test_base_installation_lacks_what_it_does_not_need(environment: Path) -> None:
    (packages,) = environment.glob("lib/python*/site-packages")
    names = {canonicalize_name(found.name) for found in Distribution.discover(path=[str(packages)])}
    absent = {"gradio", "pandas", "matplotlib", "scikit-learn", "torch", "onnx", "timm", "pyyaml", "scipy"}
    assert not names & absent
    assert {name for name in names if name.startswith(("faiss", "onnxruntime"))} == {
        "faiss-cpu",
        "onnxruntime",
    }


def test_every_command_explains_itself_or_names_its_extra(environment: Path) -> None:
    program = (
        "import click\nfrom retrieval.cli import COMMANDS, cli\nfrom retrieval.errors import LookalikeError\n"
        "for name in COMMANDS:\n"
        "    try: cli.main([name, '--help'], prog_name='lookalike', standalone_mode=False)\n"
        "    except LookalikeError as error: print(error)\n"
    )
    command = [environment / "bin" / "python", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, cwd=environment, env=CLEAN)
    assert done.returncode == 0, done.stderr
    lacking = dict(
        re.findall(r"^`lookalike (\w+)` needs \w+: uv pip install 'lookalike\[(\w+)\]'$", done.stdout, re.M)
    )
    assert lacking.keys() <= {"train", "recipes", "adapt", "teach", "improve"}
    assert set(lacking.values()) <= {"train"}
    assert done.stdout.count("Usage: lookalike ") == len(COMMANDS) - len(lacking)
    assert run(environment, "--version").stdout == f"lookalike, version {PROJECT['version']}\n"


def test_base_installation_indexes_searches_and_serves(
    environment: Path, model_file: Path, shop: Path, tmp_path: Path
) -> None:
    gallery, query = tmp_path / "shop.gallery", shop / "green" / "4.png"
    run(environment, "index", "build", gallery, shop, "--model", model_file)
    (answer,) = json.loads(run(environment, "search", gallery, query, "--json").stdout)
    assert answer["hits"][0]["path"] == str(query)
    command = [environment / "bin" / "lookalike", "serve", gallery, "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=environment, env=CLEAN)
    try:
        assert server.stdout
        address = re.search(r"http://[\d.:]+", server.stdout.readline())
        assert address
        with urllib.request.urlopen(address[0], timeout=30) as response:
            assert b"<title>Lookalike: " in response.read()
        request = urllib.request.Request(
            f"{address[0]}/v1/search", data=query.read_bytes(), headers={"Content-Type": "image/png"}
        )
        with urllib.request.urlopen(request, timeout=30) as response:
            found = json.load(response)
        client = Client(address[0])
        with pytest.raises(ApiError, match="installed without what this work needs"):
            client.wait(client.start_job("map").id, every=0.1)
    finally:
        server.terminate()
        server.wait(30)
    assert found["hits"][0]["score"] == pytest.approx(1, abs=1e-4)


def test_commands_name_the_extra_that_they_lack(environment: Path, model_file: Path, tmp_path: Path) -> None:
    """One line each, before any work: nothing is left behind."""
    gallery = tmp_path / "shop.gallery"

    def lacking(code: int, *words: str | Path) -> str:
        line = run(environment, *words, code=code).stderr
        assert line.count("\n") == 1
        return line.partition("needs ")[2].strip()

    def built(*words: str) -> str:
        return lacking(2, "index", "build", gallery, *words, "--model", model_file)

    assert lacking(1, "demo", "--out", gallery) == "torch: uv pip install 'lookalike[standard]'"
    assert built("s3://shop/a") == "fsspec: uv pip install 'lookalike[hub]'"
    assert built("a", "--engine", "ray") == "ray: uv pip install 'lookalike[ray]'"
    assert built("a", "--store", "postgresql://me@127.0.0.1/shop").endswith("install 'lookalike[postgres]'")
    database = "milvus://me@127.0.0.1/shop"
    assert built("a", "--store", database) == "pymilvus: uv pip install 'lookalike[milvus]'"
    assert not gallery.exists()


def test_doctor_repairs_an_environment_with_both_pairs(environment: Path) -> None:
    """The files and records of the builds for GPUs come over those for CPUs, as installers let them."""
    (packages,) = environment.glob("lib/python*/site-packages")
    for name in GPU:
        install(packages, name)
    found = json.loads(run(environment, "doctor", "--json", code=1).stdout)
    assert {problem["module"] for problem in found["problems"]} == {"faiss", "onnxruntime"}
    path = {"PATH": f"{environment / 'bin'}:{UV.parent}:{os.environ['PATH']}"}
    repair = found["problems"][0]["repair"]
    if gpus():
        assert "'lookalike[gpu]'" in repair  # gigabytes
        return
    subprocess.run(repair, shell=True, check=True, env=CLEAN | path, capture_output=True)
    repaired = json.loads(run(environment, "doctor", "--json").stdout)
    assert repaired["problems"] == []
    assert not any(trial["module"] == "faiss" for trial in repaired["trials"])
    assert repaired["providers"]


@pytest.mark.parametrize("name", LOCKS)
def test_lock_satisfies_the_requirements(name: str) -> None:
    """Each requirement of the project is pinned within its bounds, with hashes; no address of an index."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    assert "://" not in text
    locked: dict[str, list[Requirement]] = {}
    for entry in re.split(r"\n(?=\S)", text.replace("\\\n", " ")):
        line, *hashes = entry.split(" --hash=")
        pin = Requirement(line.strip())
        assert hashes, entry
        locked.setdefault(canonicalize_name(pin.name), []).append(pin)
    for wanted in requirements(LOCKS[name]):
        pins = locked[canonicalize_name(wanted.name)]
        assert any(wanted.specifier.contains(next(iter(pin.specifier)).version) for pin in pins), wanted


COPYLEFT = re.compile(
    r"\b(A|L)?GPL|General Public|\bEUPL|\bSSPL|\bOSL|Sleepycat|CC-BY-N[CD]|Commons Clause|\bBUSL",
    re.IGNORECASE,
)


def licence(metadata: Message) -> str:
    """What a distribution says of its licence: expression, classifiers, and the start of the old field."""
    classifiers = [c for c in metadata.get_all("Classifier") or [] if c.startswith("License")]
    return " ".join([metadata["License-Expression"] or "", *classifiers, (metadata["License"] or "")[:60]])


def test_no_dependency_is_strongly_copyleft() -> None:
    """Of what the extras `cpu` and `standard` install here."""
    found: dict[str, str] = {}
    todo = [Requirement("lookalike[cpu,standard]")]
    while todo:
        wanted = todo.pop()
        name = f"{canonicalize_name(wanted.name)}{sorted(wanted.extras)}"
        if name in found:
            continue
        installed = distribution(wanted.name)
        found[name] = licence(installed.metadata)
        extras = [{"extra": extra} for extra in ("", *wanted.extras)]
        for text in installed.requires or []:
            needed = Requirement(text)
            if needed.marker is None or any(needed.marker.evaluate(extra) for extra in extras):
                todo.append(needed)
    assert len(found) > 80
    assert not {name: text for name, text in found.items() if COPYLEFT.search(text)}


@pytest.mark.parametrize("text", ["AGPL-3.0-only", "GNU General Public License v3 (GPLv3)", "LGPL-2.1"])
def test_copyleft_is_recognized(text: str) -> None:
    metadata = Message()
    metadata["Classifier"] = f"License :: OSI Approved :: {text}"
    assert COPYLEFT.search(licence(metadata))


def test_each_extra_is_documented() -> None:
    rows = re.findall(r"^\| (`.+?) \|", (ROOT / "docs" / "installation.md").read_text(), re.MULTILINE)
    documented = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(documented) == sorted(PROJECT["optional-dependencies"])


def test_documented_wheel_is_that_of_this_version() -> None:
    text = (ROOT / "docs" / "installation.md").read_text()
    assert re.findall(r"lookalike-([\d.]+)-py3", text) == [PROJECT["version"]]


def requirements(extras: list[str]) -> Iterator[Requirement]:
    """The direct requirements of the project with some extras."""
    for text in [*PROJECT["dependencies"], *(t for e in extras for t in PROJECT["optional-dependencies"][e])]:
        wanted = Requirement(text)
        if wanted.name == "lookalike":
            yield from requirements(sorted(wanted.extras))
        else:
            yield wanted
