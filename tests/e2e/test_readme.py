"""The commands and programs of the README, in order, and the commands of the pages that continue it."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
import zipfile
from pathlib import Path

import pytest

from tests.conftest import SHARED, draw, draw_classes, lookalike_here
from tests.serve.serving import SERVE, serving
from train import recipes

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
CONTINUED = [ROOT / "docs" / f"{name}.md" for name in ("evaluation", "galleries")]
SHORT = ("--set", "epochs=2", "--set", "preprocess.size=64")  # settings of the training runs
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.S | re.M)


def commands(text: str = README) -> list[str]:
    joined = [re.sub(r" *\\\n\s*", " ", block) for block in blocks("sh", text)]
    lines = [line.split("    #")[0].strip() for block in joined for line in block.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of classes, a folder of more images, and a query, as the README assumes."""
    folder = tmp_path_factory.mktemp("reader")
    draw_classes(folder / "shop", 20, 4, suffix="jpg")
    (folder / "more").mkdir()
    draw(50).save(folder / "more" / "new.png")
    draw(0).save(folder / "query.jpg")
    shown = sorted((folder / "shop").rglob("*.jpg"))[30:34]  # of them a judged set
    (folder / "catalogue" / "gallery").mkdir(parents=True)
    draw(0).save(folder / "catalogue" / "room.jpg")
    for image in shown:
        (folder / "catalogue" / "gallery" / image.name).write_bytes(image.read_bytes())
    rows = [f"room.jpg,gallery/{image.name},relevant\n" for image in shown]
    (folder / "catalogue" / "judgements.csv").write_text("".join(["query,image,judgement\n", *rows]))
    return folder


def programs(*, for_the_client: bool) -> list[str]:
    return [block for block in blocks("python") if ("import Client" in block) == for_the_client]


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, env={**os.environ, "PATH": PATH}, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done


def bring_up(command: str, folder: Path) -> None:
    """Run a command `lookalike up` until the folder is indexed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("LOOKALIKE_SERVE_PAGE", "false")
        with serving([*SERVE[:-1], *shlex.split(command)[1:]], folder / "scratch") as server:
            while True:
                with urllib.request.urlopen(f"{server.url}/v1/gallery", timeout=60) as answer:
                    found = json.load(answer)
                if found["indexing"] is None:
                    break
                time.sleep(0.1)
            assert found["images"]
            assert server.stop()[0] == 0


@pytest.mark.slow
def test_commands_and_programs_run(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(workplace / "cache"))
    commands_to_run = [
        command
        for text in (README, *(page.read_text() for page in CONTINUED))
        for command in commands(text)
        if command.startswith("lookalike ") and not {"serve", "--watch"} & {*command.split()}
    ]
    assert len(commands_to_run) >= 30
    for command in commands_to_run:
        if command.startswith("lookalike up "):
            bring_up(command, workplace)
            continue
        if command.startswith("lookalike improve "):  # refused if it does not help these drawings
            continue
        trains = command.startswith("lookalike train --data")
        lookalike_here(*shlex.split(command)[1:], *(SHORT if trains else ()), cwd=workplace)
    assert (workplace / "report" / "report.html").is_file()
    for program in programs(for_the_client=False):
        (workplace / "program.py").write_text(program)
        assert run(f"PYTHONPATH={ROOT} python program.py", workplace).stdout


@pytest.fixture
def birds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Real photographs: `known`, of 24 species to learn from, and `shop`, of 24 others; and a query."""
    archive = SHARED / "birds305_224.zip"
    if not archive.is_file():
        pytest.skip(f"{archive.name} is not here: real photographs are not part of the repository")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with zipfile.ZipFile(archive) as packed:
        names = [name for name in packed.namelist() if name.endswith(".jpg")]
        species = sorted({Path(name).parent.name for name in names})[:48]
        for name in names:
            kind = Path(name).parent.name
            if kind in species:
                folder = tmp_path / ("known" if species.index(kind) % 2 else "shop") / kind
                folder.mkdir(parents=True, exist_ok=True)
                (folder / Path(name).name).write_bytes(packed.read(name))
    shutil.copy(next((tmp_path / "known").glob("*/*.jpg")), tmp_path / "query.jpg")
    return tmp_path


@pytest.mark.slow
def test_what_the_readme_trains_finds_new_classes_as_well(birds: Path) -> None:
    """The README's way, word for word, but with the labels of other species than those of the gallery."""
    for command in commands():
        if command.startswith("lookalike up "):
            bring_up(command, birds)
        elif command.startswith("lookalike ") and not re.search(" (demo|improve) ?", command):
            lookalike_here(*shlex.split(command.replace("folder:shop", "folder:known"))[1:], cwd=birds)
    reports = [
        json.loads((birds / f"report-{when}" / "report.json").read_text()) for when in ("before", "after")
    ]
    before, after = (report["results"][-1]["values"] for report in reports)
    assert after["recall_at_1"] >= before["recall_at_1"] - 0.01, "one query of 120"
    assert after["map_at_r"] >= before["map_at_r"]


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    """Photographs as in the tutorial: folders train and test with one folder for each class, and a query."""
    draw_classes(tmp_path / "photos" / "train", 16, 4, suffix="jpg")
    draw_classes(tmp_path / "photos" / "test", (f"class{hue}" for hue in range(8)), 4, hue=16, suffix="jpg")
    draw(0, hue=20).save(tmp_path / "query.jpg")
    return tmp_path


@pytest.mark.slow
def test_tutorial_runs(photographs: Path, workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first model is the README's, if that test came first."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(workplace / "cache"))
    text = (ROOT / "docs" / "tutorial.md").read_text()
    short = ("epochs=2", "preprocess.size=64", "model.embedding_dim=16", "batch.classes=8")
    for command in commands(text):
        trains = command.startswith("lookalike train")
        if command.startswith("lookalike up "):
            bring_up(command, photographs)
        elif not command.startswith("lookalike serve"):
            settings = [word for setting in short for word in ("--set", setting)] if trains else []
            lookalike_here(*shlex.split(command)[1:], *settings, cwd=photographs)
    for made in ("found.html", "triplets.svg", "report-run/report.html", "comparison/compare.html"):
        assert (photographs / made).is_file(), made


@pytest.mark.slow
def test_page_opens_at_the_stated_address(workplace: Path) -> None:
    (up,) = [command for command in commands() if command.startswith("lookalike up ")]
    gallery = workplace / f"{up.split()[2]}.gallery"
    if not gallery.exists():
        pytest.fail("the gallery is built by the test of the commands, which must run first")
    words = [str(Path(sys.executable).parent / "lookalike"), *up.split()[1:], "--port", "0"]
    pipes = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.STDOUT,
        "text": True,
    }
    with subprocess.Popen(words, cwd=workplace, **pipes) as server:
        assert server.stdout is not None
        address = next(
            (found[0] for line in server.stdout if (found := re.findall(r"http://127\.0\.0\.1:\d+", line))),
            None,
        )
        assert address
        with urllib.request.urlopen(address, timeout=30) as page:
            assert "Lookalike" in page.read().decode()
        (program,) = programs(for_the_client=True)
        assert "http://127.0.0.1:7860" in program
        (workplace / "program.py").write_text(program.replace("http://127.0.0.1:7860", address))
        printed = run(f"PYTHONPATH={ROOT} python program.py", workplace).stdout
        server.send_signal(signal.SIGINT)
        deadline = time.monotonic() + 20
        while server.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        if server.poll() is None:
            server.kill()
    assert server.returncode == 0
    assert len(printed.splitlines()) == 5


@pytest.mark.slow
def test_make_demo_reports_whether_training_helped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command of `make demo`, on digits, without the page, with ten steps; its last line agrees with its
    numbers."""
    assert {"make demo", "make test"} <= set(commands())
    if shutil.which("make") is None:
        pytest.skip("needs make")
    dry = [
        "make",
        "--dry-run",
        "--no-print-directory",
        "demo",
        f"DEMO_ARGS=--data digits --no-serve --out {tmp_path / 'demo'}",
    ]
    planned = subprocess.run(dry, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    program, *words = shlex.split(planned.splitlines()[-1])
    assert program == ".venv/bin/lookalike"
    recipe = (recipes.RECIPES / "demo.yaml").read_text()
    one_epoch = re.sub(r"^epochs: \d+$", "epochs: 1", recipe, flags=re.M)
    (tmp_path / "demo.yaml").write_text(one_epoch.replace("batch: {", "batch: {per_epoch: 10, "))
    monkeypatch.setattr(recipes, "RECIPES", tmp_path)
    done = lookalike_here(*words)
    config = (tmp_path / "demo" / "run" / "config.yaml").read_text()
    assert "\nepochs: 1\n" in config
    assert "\n  per_epoch: 10\n" in config
    assert re.search(r"raw pixels +\d", done.stdout)
    verdict = next(
        line for line in done.stderr.splitlines() if line.startswith("Recall@1 on digits never seen")
    )
    rows = {name: float(value) for name, value in re.findall(r"^(\w+ \w+) +(\d+\.\d) ", done.stdout, re.M)}
    helped = rows["after training"] > max(rows["raw pixels"], rows["before training"])
    assert ("better than raw" in verdict) == helped
    assert ("NOT better" in verdict) == (not helped)
    for part in ("run/config.yaml", "model.onnx", "gallery/gallery.db", "report/report.html"):
        assert (tmp_path / "demo" / part).exists()
