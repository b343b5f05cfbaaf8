"""Architecture: import rules between packages and rooms, the cost of start-up, generated files."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from retrieval.cli import COMMANDS

ROOT = Path(__file__).parent.parent
PACKAGES = {
    "retrieval": set(),
    "train": {"retrieval"},
    "serve": {"retrieval"},
    "export": {"train", "retrieval"},
    "lookalike": {"retrieval", "train", "serve", "export"},
}
# The rooms of each package, from the ground up. A module imports from its own room and from lower floors.
FLOORS = {
    "retrieval": (
        "display errors text old_names system",
        "files plugins progress",
        "machine",
        "arrow cli images",
        "model metrics",
        "storage",
        "search",
        "stores",
        "galleries",
        "curation ingest planning",
        "evaluation upkeep",
        "gallery reports",
        "analysis",
        "commands",
        "demo",
    ),
    "train": (
        "config defaults yaml_files pretrained_configs",
        "recipes weights_origin curated_backbones",
        "automatic",
        "settings",
        "data",
        "input",
        "models losses",
        "layers",
        "loop",
        "experiments",
        "commands",
        "papers",
    ),
    "serve": (
        "addresses exchanges limits",
        "core",
        "wire",
        "config",
        "http",
        "client api",
        "page",
        "gradio",
        "app",
        "forked",
        "processes",
        "server",
        "commands mcp_server",
        "up",
    ),
    "export": (
        "blend graph int8 published_configs published_graphs samples sample_texts text_cleaning",
        "cost tokenizer_files",
        "model_file",
        "pair",
        "open_clip_pair pretrained published_pair transformers_pair",
        "commands",
    ),
    "lookalike": ("own_packages", "__main__"),
}

# File names that stand in three rooms or more, since the rooms are layers over one and the same thing.
SHARED_NAMES = {
    "decisions": "what people decided by hand: its log, its commands, its routes",
    "embeddings": "vectors of images: of a data set, of a gallery, on request",
    "engine": "an engine of a store: what every one does, and each",
    "evaluation": "metrics on labelled images: what computes them, and routes with their models",
    "index": "an index of vectors: by FAISS, by PostgreSQL, and its commands",
    "items": "entries of a gallery: their table, their routes",
    "jobs": "work that the server does after it has answered: its queue, its routes",
    "queries": "questions to a gallery: to its table, and of clients",
}


def modules() -> dict[str, Path]:
    """Every module of the packages -> its file."""
    found = {}
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            parts = file.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


MODULES = modules()


def imports(file: Path) -> set[str]:
    """The modules of ours that a file imports anywhere in it: also in functions and for type checkers."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names & MODULES.keys() or {node.module or ""}
    return {name for name in found if name.partition(".")[0] in PACKAGES}


def floor(module: str) -> int:
    """The floor of a module's room in its package; the package itself (its `__init__`) is below all."""
    package, _, rest = module.partition(".")
    room = rest.partition(".")[0]
    for number, rooms in enumerate(FLOORS[package]):
        if room in rooms.split():
            return number
    assert not room, f"{module}: {room} is not in FLOORS"
    return -1


def room(module: str) -> list[str]:
    return module.split(".")[:2]


def test_packages_import_only_what_the_design_allows() -> None:
    for module, file in MODULES.items():
        package = module.partition(".")[0]
        others = {name.partition(".")[0] for name in imports(file)} - {package}
        assert others <= PACKAGES[package], f"{module} imports {others - PACKAGES[package]}"
    assert "app" not in MODULES


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_go_down(package: str) -> None:
    """Within a package from higher floors to lower ones, never between rooms of one floor."""
    inside = {m: f for m, f in MODULES.items() if m.startswith(f"{package}.")}
    assert inside
    climbing = [
        f"{module} imports {name}"
        for module, file in inside.items()
        for name in sorted(imports(file))
        if name.partition(".")[0] == package and name != package and room(name) != room(module)
        if floor(name) >= floor(module)
    ]
    assert not climbing, "\n".join(climbing)


def test_no_import_circle() -> None:
    graph = {m: imports(f) - {m} for m, f in MODULES.items() if "." in m}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_no_file_name_stands_for_three_things() -> None:
    rooms: dict[str, set[str]] = {}
    for file in MODULES.values():
        rooms.setdefault(file.stem, set()).add(str(file.parent))
    crowded = {name for name, where in rooms.items() if len(where) >= 3} - {"__init__"}
    assert crowded == SHARED_NAMES.keys()


def strings(file: Path) -> list[str]:
    """The string constants of a file, without docstrings and other bare strings; of f-strings their parts."""
    tree = ast.parse(file.read_text())
    bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    constants = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in bare]
    return [node.value for node in constants if isinstance(node.value, str)]


SQL = re.compile(r"\b(SELECT\s.*\sFROM|INSERT\s.*INTO|UPDATE\s.*\sSET|DELETE\s+FROM)\b", re.DOTALL)
HTML = re.compile(
    r"</?(div|span|p|table|tr|td|th|ul|li|script|style|button|section|figure|img|a|b|h\d)\b[^<]*>"
)


def test_sql_is_in_storage() -> None:
    where = ("retrieval.storage", "retrieval.stores.postgres")
    files = {module: file for module, file in MODULES.items() if not module.startswith(where)}
    found = {module for module, file in files.items() if any(map(SQL.search, strings(file)))}
    assert not found
    assert any(map(SQL.search, strings(MODULES["retrieval.storage.items"])))


def test_html_is_in_templates() -> None:
    assert not {module for module, file in MODULES.items() if any(map(HTML.search, strings(file)))}


def modules_after(statement: str, *options: str) -> set[str]:
    """The top-level modules loaded by a statement in a fresh interpreter with these options."""
    program = f"import sys; {statement}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run(
        [sys.executable, *options, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return set(done.stdout.split())


def test_runtime_needs_no_torch() -> None:
    everything = "import retrieval, serve; from retrieval import Embedder, Gallery, load_image, metrics"
    assert not {"torch", "torchvision", "onnx", "sklearn"} & modules_after(everything)


def test_libraries_are_loaded_when_they_are_needed() -> None:
    """This keeps the import below 0.3 s, and the start of a server without its page below a second."""
    slow = {"faiss", "onnxruntime", "tqdm", "email"}  # the last by importlib.metadata
    assert not slow & modules_after("from retrieval import Gallery")
    assert not {"faiss", "httpx", "tqdm"} & modules_after("import serve.core.service")


def test_door_is_open_in_milliseconds() -> None:
    """`import lookalike` loads none of the packages behind it; only losses need torch."""
    assert not {*PACKAGES, "torch", "numpy", "pathlib", "typing"} - {"lookalike"} & modules_after(
        "import lookalike", "-S"
    )
    assert "torch" not in modules_after(
        "import lookalike; [getattr(lookalike, n) for n in dir(lookalike) if n != 'losses']"
    )


def test_layers_without_labels_need_no_torch() -> None:
    assert not {"torch", "torchvision"} & modules_after("import train.layers.flow, train.layers.whitening")


def test_help_loads_nothing_heavy() -> None:
    """This is what keeps `lookalike --help` far below half a second."""
    program = "from retrieval.cli import cli; cli.main(['--help'], standalone_mode=False)"
    heavy = {"torch", "numpy", "faiss", "onnxruntime", "PIL", "gradio", "matplotlib", "yaml", "fastapi"}
    assert not heavy & modules_after(program)


def test_every_command_explains_itself_without_torch_faiss_or_gradio() -> None:
    """One after the other in one process: the first that loads them is named."""
    program = (
        "import sys; from retrieval.cli import cli\n"
        f"for name in {list(COMMANDS)}:\n"
        "    cli.main([name, '--help'], standalone_mode=False)\n"
        "    loaded = {'torch', 'faiss', 'gradio'} & set(sys.modules)\n"
        "    if loaded: sys.exit(f'{name} loads {loaded}')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Usage: ") == len(COMMANDS)


def test_nothing_that_was_generated_is_kept() -> None:
    stubs = [p for name in PACKAGES for p in (ROOT / name).rglob("*.pyi")]
    assert not stubs, f"gradio wrote {stubs}"
