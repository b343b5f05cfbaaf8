"""`import lookalike` beside modules of one's own that have the names of our other packages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import lookalike
from lookalike.own_packages import PACKAGES

ROOT = Path(__file__).parents[1]
PROGRAM = "raise SystemExit('a program that nobody started')"


def run(program: str, folder: Path, *, code: int = 0, **variables: str) -> str:
    """Run a script in a folder; return what it prints, with `code` 1 the last line of its errors."""
    (folder / "main.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "main.py"],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, **variables},
    )
    assert done.returncode == code, done.stderr
    return done.stderr.splitlines()[-1] if code else done.stdout.strip()


@pytest.mark.parametrize("kind", ["module", "package", "folder"])
def test_what_lies_beside_a_script_is_not_in_the_way(kind: str, tmp_path: Path) -> None:
    for name in PACKAGES:
        if kind == "module":
            (tmp_path / f"{name}.py").write_text(PROGRAM)
        else:
            (tmp_path / name).mkdir()
        if kind == "package":
            (tmp_path / name / "__init__.py").write_text(PROGRAM)
    printed = run(
        "import lookalike\nfor name in ('Client', 'Gallery', 'datasets'): print(getattr(lookalike, name))",
        tmp_path,
    )
    assert "serve.client.Client" in printed
    assert "retrieval.gallery.Gallery" in printed
    assert str(ROOT / "train" / "data" / "__init__.py") in printed


@pytest.mark.parametrize("first", ["from lookalike import datasets", "import train"])
def test_a_module_of_ones_own_goes_on_working(first: str, tmp_path: Path) -> None:
    """It is imported before ours, and imports ours itself; a class of it can be pickled."""
    (tmp_path / "train.py").write_text("from lookalike import datasets\nrate = 3\nclass Plan: number = 1\n")
    program = (
        "import train\n"
        f"{first}\n"
        "import pickle, train as again\nfrom train import Plan\n"
        "assert pickle.loads(pickle.dumps(Plan)) is Plan\n"
        "again.rate, train.rate, train.Plan.number\n"
        "print(Plan.number, again.rate, train.datasets.__file__)"
    )
    assert run(program, tmp_path) == f"1 3 {ROOT / 'train' / 'data' / '__init__.py'}"


def test_a_package_of_ones_own_keeps_its_modules(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    for name in ("__init__", "mine", "late", "recipes"):
        (tmp_path / "train" / f"{name}.py").write_text(f"name = {name!r}")
    theirs = "import train.mine\nfrom lookalike import datasets\nimport train.late\n"
    assert (
        run(theirs + "print(train.mine.name, train.late.name, train.name)", tmp_path) == "mine late __init__"
    )
    said = run("import train.recipes\nfrom lookalike import datasets", tmp_path, code=1)
    assert said.startswith(f"ImportError: {tmp_path / 'train' / 'recipes.py'}: imported as 'train.recipes', ")


def test_what_was_not_imported_in_time_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    said = run("from lookalike import datasets\nimport train\ntrain.main()", tmp_path, code=1)
    assert str(tmp_path / "train.py") in said
    assert "rename it, or import it before lookalike" in said


@pytest.mark.parametrize("place", ["here", "path"])
@pytest.mark.parametrize("command", ["export", "serve"])
def test_command_runs_beside_programs_of_these_names(command: str, place: str, tmp_path: Path) -> None:
    """In the working folder, which processes of the command do not look into either; or elsewhere."""
    for name in PACKAGES:
        (tmp_path / f"{name}.py").write_text(PROGRAM)
    (tmp_path / "look.py").write_text("import sys; print(*sys.path, sep='\\n')")
    (tmp_path / "elsewhere").mkdir()
    words = ["-m", "lookalike", "--import", str(tmp_path / "look.py"), command, "--help"]
    done = subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        cwd=tmp_path / ("elsewhere" if place == "path" else ""),
        env=os.environ | ({"PYTHONPATH": str(tmp_path)} if place == "path" else {}),
    )
    assert f"Usage: lookalike {command}" in done.stdout, done.stderr
    assert (str(tmp_path) in done.stdout.splitlines()) == (place == "path")


def test_names() -> None:
    for name in lookalike.__all__:
        assert getattr(lookalike, name) is not None
    assert set(lookalike.__all__) <= set(dir(lookalike))
    with pytest.raises(AttributeError, match="'lookalike' has no attribute 'Models'"):
        _ = lookalike.Models  # type: ignore[attr-defined]
