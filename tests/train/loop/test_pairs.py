"""Training from labelled pairs: division, batches, validation, resumption, unreadable images, the command."""

from __future__ import annotations

import json
import random
import re
import shutil
from pathlib import Path

import pytest
from scipy.stats import spearmanr
from sklearn.metrics import roc_auc_score

from retrieval import Embedder, InputError
from retrieval.images.decode import embed_files
from retrieval.progress import Progress
from tests.conftest import draw_classes, lookalike_here
from tests.train.loop.test_trainer import assert_same_run, train_until_interrupted
from train import data, settings
from train.data.pairs import from_pairs
from train.loop.run_folder import Run
from train.loop.trainer import Trainer
from train.models.embedding_model import pixel_embedder

CLASSES, EACH = 44, 4
SMALL = [
    "preprocess.size=16",
    "model.embedding_dim=8",
    "batch={classes: 8, per_class: 4}",
    "split.validation=0.25",
    "loss={name: cosent}",
]
STILL = "augment={flip: false, rotate: 0, scale: 0, shift: 0}"


def write_pairs(folder: Path, kind: str, wrong: float = 0.2) -> Path:
    """Pairs within blocks of two classes, which no pair connects with others; some labels are wrong."""
    files = [sorted(part.glob("*.png")) for part in sorted(folder.iterdir()) if part.is_dir()]
    drawn, lines = random.Random(0), []
    for block in range(0, CLASSES, 2):
        own = [(file, side) for side in (0, 1) for file in files[block + side]]
        for i, (a, x) in enumerate(own):
            for b, y in own[i + 1 :]:
                value = (
                    int((x == y) != (drawn.random() < wrong))
                    if kind == "label"
                    else round((x == y) + drawn.random() / 2, 2)
                )
                lines.append(f"{a.relative_to(folder)},{b.relative_to(folder)},{value}")
    file = folder / f"{kind}.csv"
    file.write_text("\n".join([f"image_a,image_b,{kind}", *lines]) + "\n")
    return file


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = draw_classes(tmp_path_factory.mktemp("compared"), CLASSES, EACH)
    for kind in ("label", "score"):
        write_pairs(folder, kind)
    return folder


def trainer(folder: Path, file: Path, *words: str) -> Trainer:
    config = settings.resolve(f"pairs:{file}", None, [*SMALL, f"loader.cache={folder / 'cache'}", *words])
    return Trainer(Run.start(folder / "run", config), data.load(config.data, unlabelled=True))


@pytest.mark.parametrize("kind", ["label", "score"])
def test_score_is_that_of_the_held_out_pairs(tmp_path: Path, compared: Path, kind: str) -> None:
    """Computed from the file with another library; their images are in no batch."""
    ours = trainer(tmp_path, compared / f"{kind}.csv", "epochs=2", "optimizer.lr=0.003")
    used: set[int] = set()
    for epoch in range(2):
        for positions, numbers, _ in ours.sampler.epoch(epoch):
            used |= set(positions.tolist())
            assert (numbers[0::2] == numbers[1::2]).all()
            assert len(positions) == 32
            first, second = positions[0::2], positions[1::2]
            assert (ours.data.pairs.first[numbers[0::2]] == first).all()
            assert (ours.data.pairs.second[numbers[0::2]] == second).all()
    facts = ours.train()
    held_out = {image.path for image in ours.data.validation}
    assert not held_out & {ours.data.images[i].path for i in used}
    images, pairs = from_pairs(compared / f"{kind}.csv")
    kept = [
        (images[a].path, images[b].path, value)
        for a, b, value in zip(pairs.first, pairs.second, pairs.values, strict=True)
        if {images[a].path, images[b].path} <= held_out
    ]
    assert len(kept) == facts["validation_pairs"] == len(ours.data.held_out_pairs)
    assert facts["training_pairs"] + len(kept) == len(pairs), "whole groups are held out"
    model = Run.open(tmp_path / "run").trained("last")
    files = sorted(held_out)
    found = embed_files(
        files, ours.config.preprocess, pixel_embedder(model), Progress("", len(files), show=False)
    )
    vector = dict(zip(files, found.vectors, strict=True))
    cosines = [float(vector[a] @ vector[b]) for a, b, _ in kept]
    values = [value for _, _, value in kept]
    metric = {"label": "auc", "score": "spearman"}[kind]
    expected = roc_auc_score(values, cosines) if kind == "label" else spearmanr(cosines, values).statistic
    last = [record for record in ours.run.metrics() if metric in record][-1]
    # Two cosines that rounding orders one way here and the other there change a correlation of ranks.
    assert last[metric] == pytest.approx(expected, abs=1e-5 if kind == "label" else 5e-4)
    assert last[f"{metric}_low"] < last[metric] < last[f"{metric}_high"]
    assert facts["metric"] == metric
    assert "recall_at_1" not in last


@pytest.mark.parametrize(
    ("kind", "name"), [("label", "cosent"), ("label", "contrastive"), ("score", "cosent")]
)
def test_pairs_are_learned(tmp_path: Path, compared: Path, kind: str, name: str) -> None:
    """By heart: their values are drawn at random."""
    drawn = random.Random(1)
    files = sorted(compared.rglob("*.png"))[:40]
    pairs = [f"{a},{b},{drawn.choice((0, 1))}" for a, b in zip(files[::2], files[1::2], strict=True)]
    file = tmp_path / "random.csv"
    file.write_text("\n".join([f"image_a,image_b,{kind}", *pairs]) + "\n")
    words = ["split.validation=0", STILL, "epochs=60", "optimizer.lr=0.003", f"loss={{name: {name}}}"]
    ours = trainer(tmp_path, file, *words)
    ours.train()
    records = [record["loss"] for record in ours.run.metrics() if "loss" in record]
    assert len(records) == 60
    assert records[-1] < records[0] - 0.2


@pytest.mark.parametrize("after", [5, 6], ids=["in the middle of an epoch", "between epochs"])
def test_interrupted_and_resumed_run_is_bit_identical(tmp_path: Path, compared: Path, after: int) -> None:
    words = ["epochs=3", "batch.per_epoch=3", "loader.workers=1", "model.dropout=0.2"]
    trainer(tmp_path / "whole", compared / "label.csv", *words).train()
    stopped = trainer(tmp_path / "parts", compared / "label.csv", *words)
    train_until_interrupted(stopped, after)
    run = Run.open(tmp_path / "parts" / "run")
    Trainer(run, data.load(run.config.data, unlabelled=True)).train(resume=True)
    assert_same_run(tmp_path / "whole" / "run", run.folder)


@pytest.mark.parametrize("frozen", [False, True], ids=["pixels", "features"])
def test_pairs_of_an_unreadable_image_are_left_out(tmp_path: Path, frozen: bool) -> None:
    folder = draw_classes(tmp_path / "pictures", CLASSES, EACH)
    broken = sorted(folder.rglob("*.png"))[0]
    file = write_pairs(folder, "label")
    broken.write_bytes(b"broken")
    words = ["epochs=3", "split.validation=0", STILL, *(["model.trainable=0"] if frozen else [])]
    ours = trainer(tmp_path, file, *words)
    place = [image.path for image in ours.data.images].index(broken)
    seen = 0
    for loaded in ours.batches(range(3)):
        batch = list(ours.sampler.epoch(loaded.epoch))[loaded.number]
        assert ((loaded.labels.numpy() == -1) == (batch.positions == place)).all()
        assert (
            loaded.labels.numpy()[batch.positions != place] == batch.labels[batch.positions != place]
        ).all()
        seen += int((batch.positions == place).sum())
    assert seen > 0
    ours.train()
    assert ours.network.on_features == frozen
    assert str(broken) in [error.source for error in ours.bad_files]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("noise.rate=0.1", r"noise\.rate: cannot be used with labelled pairs"),
        ("split.by=images", r"split\.by=images: cannot"),
        ("mic.clusters=3", r"mic\.clusters: cannot"),
        ("batch.hard_classes=0.5", r"batch\.hard_classes: cannot"),
        ("model.init=lda", r"model\.init=lda: cannot"),
        ("augment.symmetries=4", r"augment\.symmetries: cannot"),
        ("loss={name: multi-similarity}", "loss: labelled pairs are learned by cosent.*--set loss="),
        ("split.validation=0.02", "nothing"),
    ],
)
def test_settings_that_need_classes(tmp_path: Path, compared: Path, word: str, message: str) -> None:
    if message == "nothing":  # fewer than two groups are held out: no validation, as with classes
        assert trainer(tmp_path, compared / "label.csv", word).train()["validation_pairs"] is None
        return
    with pytest.raises(InputError, match=message):
        trainer(tmp_path, compared / "label.csv", word)


def test_scores_need_a_loss_of_scores(tmp_path: Path, compared: Path) -> None:
    with pytest.raises(InputError, match="loss: pairs with scores are learned by cosent"):
        trainer(tmp_path, compared / "score.csv", "loss={name: siglip}")


def test_too_few_held_out_pairs_are_refused(tmp_path: Path, compared: Path) -> None:
    center, *others = sorted(compared.rglob("*.png"))
    lines = [f"{center},{other},{i % 2}" for i, other in enumerate(others)]
    file = tmp_path / "star.csv"
    file.write_text("\n".join(["image_a,image_b,label", *lines]) + "\n")
    found = set()
    for seed in range(8):  # the center is held out, or not
        with pytest.raises(InputError) as refusal:
            trainer(tmp_path / str(seed), file, f"seed={seed}")
        found.add(re.sub(r"\d+ pairs", "N pairs", str(refusal.value).rpartition(": ")[2]))
    assert found == {
        "the pairs of training images are too few, or all of one value; hold out fewer (split.validation)",
        "N pairs are of two held-out images, too few or all of one value; raise it, or set "
        "split.validation=0",
    }


def test_command_trains_notes_contradictions_and_exports(
    tmp_path: Path, compared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pictures = shutil.copytree(compared, tmp_path / "pictures")
    lines = write_pairs(pictures, "label", wrong=0).read_text().splitlines()
    wrong = next(line for line in lines if line.endswith(",1"))
    file = pictures / "wrong.csv"
    file.write_text("\n".join(wrong[:-1] + "0" if line == wrong else line for line in lines) + "\n")
    words = ["--set", "preprocess.size=16", "--set", "epochs=1", "--set", "split.validation=0.25"]
    done = lookalike_here("train", "--data", f"pairs:{file}", "--out", "run", *words, "--json")
    assert "1 pair labelled different although a chain of same pairs connects them" in done.stderr
    facts = json.loads(done.stdout)
    assert facts["metric"] == "auc"
    low, high = facts["metric_interval"]
    assert low < facts["metric_best"] < high
    assert Run.open(tmp_path / "run").config.loss["name"] == "cosent"
    lookalike_here("export", "run", "--out", "model.onnx")
    assert Embedder(tmp_path / "model.onnx").dim == Run.open(tmp_path / "run").config.model.embedding_dim
