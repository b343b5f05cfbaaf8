"""Every command of docs/figures.md draws its figure, on small trees in the layout of its set; a table."""

from __future__ import annotations

import dataclasses
import json
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.conftest import lookalike_here
from tests.train.test_recipe_steps import TREES, cars196, cub200
from train import data
from train.loop.run_folder import Run
from train.papers.figures import paper_figures

COMMANDS = sorted({command for figure in paper_figures() for command in figure.commands})
TRAINING = ("epochs=2", "batch.per_epoch=2", "batch.classes=4", "preprocess.size=16", "checkpoints.every=2")
# In place of a large network, large pictures and many steps; a command's own settings come later, and count.
SMALL = (
    "model={backbone: conv4, embedding_dim: 8}",
    "preprocess={size: 16}",
    "augment.resize=null",
    "epochs=1",
    "schedule={name: constant}",
    "batch={classes: 4, per_class: 4, per_epoch: 2}",
    "optimizer={lr: 1.0e-3}",
)


def settings(*texts: str) -> list[str]:
    return [word for text in texts for word in ("--set", text)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Data sets, runs with checkpoints, a model and pictures."""
    home = tmp_path_factory.mktemp("figures")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("cars196", "cub200", "cifar10"):
            patch.setitem(data.KNOWN, name, dataclasses.replace(data.KNOWN[name], counts={}))
        cars196(home / "cars196", range(99, 103), 32)
        cub200(home / "cub200", range(101, 105), 8)
        TREES["cifar10"](home / "cifar10")
        (home / "docs").symlink_to(Path("docs").resolve())
        patch.chdir(home)
        for run, loss in (
            ("RUN_SCT", "{name: sct}"),
            ("RUN", "{name: n-pair, negatives: symmetric}"),
        ):
            words = ["train", "--recipe", "scratch", "--data", "cars196:cars196", "--out", run]
            lookalike_here(*words, *settings(*TRAINING, f"loss={loss}"))
        shutil.copytree("RUN", "RUN_SHN")
        lookalike_here("export", "RUN", "--out", "MODEL")
        yield home


def shortened(command: str) -> list[str]:
    """Return the words of a command, with small data, and settings for less work."""
    for text, other in {
        "cars196:ROOT": "cars196:cars196",
        "cub200:ROOT": "cub200:cub200",
        "cifar10:ROOT": "cifar10:cifar10",
        "RUN...": "RUN_SHN RUN_SCT",
        "QUERY RESULT...": "cars196/car_ims/1_0.jpg cars196/car_ims/1_1.jpg cars196/car_ims/2_0.jpg",
        "every: 500": "every: 1",
        "--at 0,4,8,12": "--at 0,1,2",
    }.items():
        command = command.replace(text, other)
    words = shlex.split(command)[1:]
    if words[0] == "sweep":
        words[1:1] = [*([] if "--seeds" in words else ["--seeds", "1"]), *settings(*SMALL)]
    elif words[0] == "recipes":
        words += ["--seeds", "1", *settings(*SMALL)]
    return words


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_command_draws_its_figure(command: str, place: Path) -> None:
    words = shortened(command)
    out = Path(words[words.index("--out") + 1])
    lookalike_here(*words)
    made = [out] if out.is_file() else [*out.glob("*.svg"), *out.glob("*.md")]
    assert made
    for file in made:
        if file.suffix == ".svg":
            drawn = [one.tag.rpartition("}")[2] for one in ElementTree.parse(file).iter()]
            assert sum(tag in ("path", "use", "image") for tag in drawn) > 5, "lines, dots or pictures"
    if out.is_dir():
        assert not list(out.glob("**/failure.txt"))
        shutil.rmtree(out)


@pytest.mark.slow
def test_table_with_mic_is_made(place: Path) -> None:
    """Table 7 of DCDL: MIC alone, and with both of the paper's regularizers."""
    small = settings(*SMALL, "mic={clusters: 5, every: 1}", "epochs=2")
    words = ["--data", "cub200:cub200", "--data", "cars196:cars196", "--seeds", "1", "--out", "table-7"]
    lookalike_here("recipes", "run", "dcdl/table7", *words, *small)
    saved = json.loads((place / "table-7" / "table.json").read_text())
    made = {row["name"].partition("/table7/")[2]: row["ours"] for row in saved["rows"] if row["seeds"]}
    methods = ("mic-own", "mic-l", "mic-w")
    assert set(made) == {f"{method}-{name}" for method in methods for name in ("cub200", "cars196")}
    assert all({"nmi", "recall_at_1", "recall_at_2", "recall_at_4"} <= set(ours) for ours in made.values())
    for method in methods:
        run = Run.open(place / "table-7" / "cub200" / f"{method}-cub200" / "seed-0")
        last = [record for record in run.metrics() if "loss" in record][-1]
        assert 0 < last["correlation"] < 1
        assert ("transport_cost" in last, "kernel_active" in last) == (method == "mic-w", method == "mic-l")
