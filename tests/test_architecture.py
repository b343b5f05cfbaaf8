"""The rules of the house: who imports whom, what start-up costs, generated files."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from retrieval.cli import COMMANDS

ROOT = Path(__file__).parent.parent
PACKAGES = ("retrieval", "train", "serve", "export")
ALLOWED = {
    "retrieval": set(),
    "train": {"retrieval"},
    "serve": {"retrieval"},
    "export": {"train", "retrieval"},
    "app": {"serve"},
}


def imports(file: Path) -> set[str]:
    """The top-level names of everything a file imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            names.add((node.module or "").partition(".")[0])
    return names


def sources(name: str) -> list[Path]:
    return [ROOT / "app.py"] if name == "app" else sorted((ROOT / name).rglob("*.py"))


@pytest.mark.parametrize("name", ALLOWED)
def test_packages_import_only_what_the_design_allows(name: str) -> None:
    files = sources(name)
    assert files
    for file in files:
        ours = imports(file) & {*PACKAGES, "app"} - {name}
        assert ours <= ALLOWED[name], f"{file.relative_to(ROOT)} imports {ours - ALLOWED[name]}"


def modules_after(statement: str) -> set[str]:
    """The top-level modules loaded by a statement in a fresh interpreter."""
    program = f"import sys; {statement}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return set(done.stdout.split())


def test_runtime_needs_no_torch() -> None:
    everything = "import retrieval, serve; from retrieval import Embedder, Gallery, load_image, metrics"
    assert not {"torch", "torchvision", "onnx", "sklearn"} & modules_after(everything)


def test_help_loads_nothing_heavy() -> None:
    """This is what keeps `lookalike --help` far below half a second."""
    program = "from retrieval.cli import cli; cli.main(['--help'], standalone_mode=False)"
    heavy = {"torch", "numpy", "faiss", "onnxruntime", "PIL", "gradio", "matplotlib", "yaml", "fastapi"}
    assert not heavy & modules_after(program)


def test_every_command_explains_itself_without_torch_or_gradio() -> None:
    """One after the other in one process: the first that loads them is named."""
    program = (
        "import sys; from retrieval.cli import cli\n"
        f"for name in {list(COMMANDS)}:\n"
        "    cli.main([name, '--help'], standalone_mode=False)\n"
        "    if loaded := {'torch', 'gradio'} & set(sys.modules): sys.exit(f'{name} loads {loaded}')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Usage: ") == len(COMMANDS)


def test_nothing_that_was_generated_is_kept() -> None:
    stubs = [p for name in PACKAGES for p in (ROOT / name).rglob("*.pyi")]
    assert not stubs, f"gradio wrote {stubs}"
