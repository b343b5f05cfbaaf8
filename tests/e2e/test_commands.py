"""Commands: results on stdout, one-line errors on stderr, exit codes."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from retrieval.cli import COMMANDS
from tests.conftest import CHECKOUT, SCRIPT, draw, draw_classes, lookalike, lookalike_here

LEAVES = [
    *(["datasets", name] for name in ("list", "fetch", "info")),
    *(["index", name] for name in ("build", "add", "sync", "rebuild", "remove", "verify", "info")),
    *(["index", name] for name in ("optimize", "export", "import")),
    *(["analyze", name] for name in ("triplets", "spectrum", "tsne", "heatmap", "gradients", "weights")),
    *(
        ["analyze", name]
        for name in ("arcs", "arc-cases", "selection", "embed", "step", "training", "synthetic")
    ),
    *(
        ["check", name]
        for name in ("overview", "duplicates", "suspects", "quality", "leakage", "decide", "undo")
    ),
    *(["recipes", "list"], ["recipes", "show"], ["model", "info"]),
    *([name] for name in COMMANDS),
]


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory, model_file: Path, shop: Path) -> Path:
    folder = tmp_path_factory.mktemp("galleries") / "shop.gallery"
    lookalike_here("index", "build", str(folder), str(shop), "--model", str(model_file))
    return folder


@pytest.mark.parametrize("words", LEAVES, ids=" ".join)
def test_help_explains_every_command(words: list[str]) -> None:
    shown = lookalike_here(*words, "--help").stdout
    assert f"Usage: lookalike {' '.join(words)}" in shown
    assert len(shown.splitlines()) > 5
    listed = COMMANDS[words[0]][1] if len(words) == 1 else ""
    assert listed.rstrip(".") in " ".join(shown.split())


@pytest.mark.parametrize("name", ["datasets", "recipes", "index", "model", "analyze"])
def test_group_without_a_command_lists_its_commands(name: str) -> None:
    shown = lookalike_here(name, code=2)
    assert not shown.stdout
    assert len(shown.stderr.splitlines()) > 5
    assert f"Usage: lookalike {name}" in shown.stderr


def test_search_finds_the_query_image_itself(gallery: Path, shop: Path) -> None:
    query = shop / "green" / "4.png"
    (answer,) = json.loads(lookalike("search", str(gallery), str(query), "-k", "3", "--json").stdout)
    assert [len(answer["hits"]), answer["hits"][0]["path"]] == [3, str(query)]
    assert answer["hits"][0]["score"] == pytest.approx(1, abs=1e-5)
    assert answer["hits"][0]["label"] == "green"
    text = lookalike("search", str(gallery), str(query), str(shop / "red" / "0.png"), "-k", "3").stdout
    assert len(text.splitlines()) == 8


def test_build_lists_bad_files_and_exits_with_3(tmp_path: Path, model_file: Path, shop: Path) -> None:
    shutil.copytree(shop, tmp_path / "shop")
    (tmp_path / "shop" / "red" / "broken.jpg").write_bytes(b"<html>")
    words = ["index", "build", "g", "shop", "--model", str(model_file)]
    done = lookalike(*words, "--json", code=3, cwd=tmp_path)
    facts = json.loads(done.stdout)
    assert (facts["images"], facts["added"]) == (24, 24)
    assert [Path(bad["path"]).name for bad in facts["bad"]] == ["broken.jpg"]
    assert "broken.jpg" in done.stderr
    again = json.loads(lookalike(*words, "--json", code=3, cwd=tmp_path).stdout)
    assert (again["added"], again["unchanged"]) == (0, 24)
    draw(77).save(tmp_path / "shop" / "red" / "broken.jpg")
    added = json.loads(lookalike("index", "add", "g", "shop/red", "--json", cwd=tmp_path).stdout)
    assert (added["added"], added["images"], added["bad"]) == (1, 25, [])


def test_run_model_and_gallery_evaluate_to_the_same_numbers(
    untrained_run: Path, model_file: Path, gallery: Path, shop: Path, tmp_path: Path
) -> None:
    results = []
    for target in (untrained_run, model_file, gallery):
        words = ["evaluate", str(target), "--data", f"folder:{shop}", "--out", str(tmp_path / "r"), "--json"]
        report = json.loads(lookalike_here(*words, "--baseline", "pixels", "--baseline", "untrained").stdout)
        assert [result["name"] for result in report["results"][:2]] == ["raw pixels", "before training"]
        assert json.loads((tmp_path / "r" / "report.json").read_text()) == report
        results.append(report["results"][-1])
        before, ours = report["results"][1:]
        assert ours["values"]["recall_at_1"] == before["values"]["recall_at_1"], (
            "this network was not trained"
        )
    assert results[0]["values"] == results[1]["values"] == results[2]["values"]
    assert list(gallery.glob("reports/*/report.html")), "the gallery keeps its report"


def test_queries_outside_the_gallery_are_searched_in_it(gallery: Path, tmp_path: Path) -> None:
    draw_classes(tmp_path / "q", ("red", "green", "blue"), 2, first=100)
    (tmp_path / "q" / "red" / "broken.png").touch()
    words = ["evaluate", str(gallery), "--data", f"folder:{tmp_path / 'q'}", "--json"]
    report = json.loads(lookalike_here(*words, code=3).stdout)
    assert report["images"] == 6
    assert "24 images" in report["protocol"]
    assert [Path(path).name for path, _ in report["bad_files"]] == ["broken.png"]
    shutil.move(tmp_path / "q" / "red", tmp_path / "q" / "rouge")
    shutil.rmtree(tmp_path / "q" / "green")
    shutil.rmtree(tmp_path / "q" / "blue")
    assert "none of the data set's labels" in lookalike_here(*words, code=2).stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["serch"], "no such command 'serch'; did you mean 'search'?"),
        (["index", "zzz"], "no such command 'zzz'; choose another one (see `lookalike index --help`)"),
        (["search"], "Missing argument"),
        (["search", "nowhere", "x.png"], "not a gallery"),
        (["search", "{gallery}", "nowhere.png"], "nowhere.png: there is no such file"),
        (["search", "{gallery}", "{gallery}/gallery.db"], "not a JPEG"),
        (["search", "{gallery}", "x.png", "-k", "0"], "'-k'"),
        (["index", "build", "{tmp}/g", "{shop}", "--model", "nowhere.onnx"], "no such model file"),
        (["index", "build", "{tmp}/g", "nowhere", "--model", "{model}"], "no such file or folder"),
        (["index", "add", "nowhere", "{shop}"], "not a gallery"),
        (["export", "nowhere", "--out", "{tmp}/m.onnx"], "not a training run"),
        (["evaluate", "nowhere.onnx", "--data", "folder:{shop}"], "no such model file"),
        (["evaluate", "{model}", "--data", "folder:nowhere"], "no such folder"),
        (
            [
                *("train", "--recipe", "scratch", "--data", "folder:{shop}", "--out", "{tmp}/r"),
                *("--set", "epoch=1"),
            ],
            "did you mean 'epochs'",
        ),
        (
            [
                *("train", "--recipe", "scratch", "--data", "folder:{shop}", "--out", "{tmp}/r"),
                *("--set", "loss={name: tripled}"),
            ],
            "triplet",
        ),
        (["train", "--data", "digit", "--out", "{tmp}/r"], "did you mean 'digits'"),
        (["train", "--out", "{tmp}/r"], "--data"),
        (["train", "--out", "{tmp}/r", "--resume"], "not a training run"),
        (["datasets", "fetch", "cub", "--root", "{tmp}"], "known: digits"),
        (["serve", "nowhere"], "not a gallery"),
    ],
    ids=lambda value: " ".join(value[:3]) if isinstance(value, list) else "",
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    words: list[str], message: str, gallery: Path, shop: Path, model_file: Path, tmp_path: Path
) -> None:
    places = {"gallery": gallery, "shop": shop, "model": model_file, "tmp": tmp_path}
    filled = [re.sub(r"\{(gallery|shop|model|tmp)\}", lambda m: str(places[m[1]]), word) for word in words]
    done = lookalike_here(*filled, code=2)
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("lookalike: ")
    assert message in done.stderr


def test_debug_shows_the_traceback() -> None:
    assert "Traceback" in lookalike("search", "nowhere", "x.png", "--debug", code=2).stderr


def test_console_script_ignores_files_of_the_working_folder(tmp_path: Path) -> None:
    for package in ("train", "serve", "export", "retrieval"):
        (tmp_path / f"{package}.py").write_text("raise SystemExit('the wrong package')")
    for command in ("train", "serve", "export"):
        done = subprocess.run(
            [SCRIPT, command, "--help"],
            capture_output=True,
            text=True,
            check=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": CHECKOUT},
        )
        assert f"Usage: lookalike {command}" in done.stdout


def test_interrupted_training_can_be_resumed(shop: Path, tmp_path: Path) -> None:
    settings = ["--set", "epochs=40", "--set", "preprocess.size=16", "--set", "split.validation=0.0"]
    command = [sys.executable, "-m", "lookalike", "train", "--recipe", "scratch"]
    command += ["--data", f"folder:{shop}", "--out", "run"]
    pipes = {"stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*command, *settings], cwd=tmp_path, **pipes) as process:
        deadline = time.monotonic() + 60
        metrics = tmp_path / "run" / "metrics.jsonl"
        while not metrics.exists() and time.monotonic() < deadline:
            time.sleep(0.005)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    assert re.fullmatch(
        r"lookalike: run: interrupted after step \d+, .*--resume continues.*", stderr.splitlines()[-1]
    )
    assert "Traceback" not in stderr
    facts = json.loads(lookalike_here("train", "--out", "run", "--resume", "--json", cwd=tmp_path).stdout)
    assert facts["epochs"] == 40
    assert "it is complete" in lookalike_here("train", "--out", "run", "--resume", cwd=tmp_path).stderr


def test_failed_start_leaves_no_run_folder(shop: Path, tmp_path: Path) -> None:
    words = ["train", "--recipe", "scratch", "--data", f"folder:{shop}", "--out", "run", "--set", "epochs=0"]
    refused = lookalike(*words, "--set", "loss={name: tripled}", code=2, cwd=tmp_path)
    assert len(refused.stderr.splitlines()) == 1, "the libraries print nothing either"
    lookalike_here(*words, cwd=tmp_path)
    assert "--resume" in lookalike_here(*words, code=2, cwd=tmp_path).stderr


def test_losses_are_listed_and_explained() -> None:
    listed = json.loads(lookalike_here("losses", "--json").stdout)
    found = {(entry["kind"], entry["name"]) for entry in listed}
    assert {("loss", "sct"), ("negatives", "optimal"), ("regularizer", "wasserstein")} <= found
    shown = lookalike_here("losses", "n-pair", "symmetric").stdout
    assert shown.splitlines()[0] == "Losses"
    assert "l2_reg=0.0" in shown
    assert "Negatives" in shown
    assert "did you mean 'n-pair'" in lookalike_here("losses", "n-par", code=2).stderr


def test_datasets_are_listed() -> None:
    listed = json.loads(lookalike_here("datasets", "list", "--json").stdout)
    assert "digits" in [known["name"] for known in listed]
    assert "folder:DIR" in lookalike_here("datasets", "list").stdout
