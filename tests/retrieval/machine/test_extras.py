"""Hints for missing extras: each optional import has one, and it names an extra that brings the package."""

from __future__ import annotations

import ast
import contextlib
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from retrieval import demo
from retrieval.machine import extras
from retrieval.machine.extras import missing_extra, needs
from tests.conftest import lookalike_here

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PACKAGES = ("lookalike", "retrieval", "train", "serve", "export")
WITHOUT_EXTRA = {"pytorch_metric_learning"}  # losses "pml:": train/losses/pml.py names the package itself


def modules() -> Iterator[tuple[Path, ast.Module]]:
    for file in (file for package in PACKAGES for file in (ROOT / package).rglob("*.py")):
        yield file, ast.parse(file.read_text())


def imported() -> set[str]:
    """Top-level names of all imports that are neither ours nor Python's."""
    names = set()
    for _, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names.add(node.module.partition(".")[0])
    return names - {*PACKAGES, *sys.stdlib_module_names, "recipes"}


def installed_by(*requirements: str) -> set[str]:
    """The distributions that requirements bring, as the installed ones state."""
    found, waiting = set(), list(requirements)
    while waiting:
        wanted = Requirement(waiting.pop())
        if wanted.name == "lookalike":
            waiting += [text for extra in wanted.extras for text in PROJECT["optional-dependencies"][extra]]
            continue
        key = (canonicalize_name(wanted.name), tuple(sorted(wanted.extras)))
        if key in found:
            continue
        found.add(key)
        with contextlib.suppress(PackageNotFoundError):
            for text in distribution(wanted.name).requires or ():
                needed = Requirement(text)
                if needed.marker is None or any(
                    needed.marker.evaluate({"extra": extra}) for extra in ("", *wanted.extras)
                ):
                    needed.marker = None
                    waiting.append(str(needed))
    return {name for name, _ in found}


def test_each_import_is_of_the_base_installation_or_has_an_extra_that_brings_it() -> None:
    base = installed_by(*PROJECT["dependencies"])
    distributions = packages_distributions()
    checked = set()
    for module in imported() - WITHOUT_EXTRA:
        brings = {canonicalize_name(name) for name in distributions.get(module, ())}
        if not brings:
            pytest.skip(f"needs every extra; {module} is not installed")
        if brings & base:
            continue
        extras = re.findall(r"lookalike\[(\w+)\]", needs(module))
        if module not in ("faiss", "onnxruntime"):
            assert len(extras) == 1, module
        assert brings & installed_by(f"lookalike[{extras[0]}]"), f"{extras[0]} does not bring {module}"
        checked.add(module)
    assert {"torch", "faiss", "gradio", "fsspec", "pymilvus", "fontTools"} <= checked


def test_one_module_writes_the_hints() -> None:
    """Docstrings may name the command too."""
    for file, tree in modules():
        if file.relative_to(ROOT).as_posix() in (
            "retrieval/machine/extras.py",
            "retrieval/machine/installation.py",
        ):
            continue
        documentation = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and id(node) not in documentation
            ):
                assert "install 'lookalike" not in node.value, f"{file}:{node.lineno}"
                assert 'install "lookalike' not in node.value, f"{file}:{node.lineno}"


def test_another_extra_can_be_named() -> None:
    assert needs("pyarrow") == "needs pyarrow: pip install 'lookalike[parquet]'"
    assert needs("pyarrow", "ray") == "needs pyarrow: pip install 'lookalike[ray]'"


def test_hint_for_an_environment_of_uv_has_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.distributions", lambda name: [])
    monkeypatch.setattr(extras, "installer", extras.installer.__wrapped__)  # which keeps its result
    assert needs("pyarrow") == "needs pyarrow: uv pip install 'lookalike[parquet]'"


def test_modules_without_an_extra_have_no_hint() -> None:
    assert missing_extra(ModuleNotFoundError("no", name="colorama")) == ""
    assert missing_extra(PackageNotFoundError("torch")) == ""
    assert missing_extra(ModuleNotFoundError("no", name="torch.nn")) == needs("torch")


@pytest.mark.parametrize(
    ("hidden", "words", "line"),
    [
        (
            "fsspec",
            ["index", "build", "g", "s3://shop/a", "--model"],
            "s3://shop/a: needs fsspec: pip install 'lookalike[hub]'",
        ),
        (
            "retrieval.stores.postgres.engine",
            ["index", "build", "g", "a", "--store", "postgresql://me@127.0.0.1/shop", "--model"],
            "store postgresql://me@127.0.0.1:5432/shop?collection=lookalike: needs adbc_driver_postgresql: "
            "pip install 'lookalike[postgres]'",
        ),
    ],
)
def test_a_command_without_a_package_says_so_in_one_line(
    hidden: str,
    words: list[str],
    line: str,
    model_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "a").mkdir()
    if hidden.startswith("retrieval."):  # it may be imported already
        monkeypatch.delitem(sys.modules, hidden, raising=False)
        monkeypatch.delitem(sys.modules, "retrieval.stores.postgres.sessions", raising=False)
        hidden = "adbc_driver_postgresql"
    monkeypatch.setitem(sys.modules, hidden, None)
    done = lookalike_here(*words, str(model_file), cwd=tmp_path, code=2)
    assert done.stderr == f"lookalike: {line}\n"


def test_the_demo_says_what_it_lacks_before_it_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "find_spec", lambda module: None if module == "torch" else object())
    done = lookalike_here("demo", "--no-serve", cwd=tmp_path, code=1)
    assert done.stderr == "lookalike: `lookalike demo` needs torch: pip install 'lookalike[standard]'\n"
    assert not list(tmp_path.iterdir())
