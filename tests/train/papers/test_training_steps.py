"""Training steps of several losses: compared with a plain training loop."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from retrieval.errors import InputError
from tests.conftest import lookalike_here
from train import data as data_sets
from train import losses, settings
from train.config import Config
from train.loop.process_group import ProcessGroup
from train.loop.run_folder import Run, initial_model
from train.loop.trainer import Trainer
from train.loop.training_data import TrainingData
from train.papers.training_steps import HN_SHN_SCT, training_steps

SETTINGS = {
    "data": "digits",
    "split": {"validation": 0.0},
    "preprocess": {"size": 16},
    "model": {"backbone": "conv4", "embedding_dim": 8},
    "batch": {"classes": 5, "per_class": 4, "per_epoch": 3},
    "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.5},
    "schedule": {"name": "constant"},
    "device": "cpu",
    "seed": 3,
}


def configuration(**changes: Any) -> Config:
    return settings.parse_config(SETTINGS | changes)


def hardest(vectors: np.ndarray, labels: np.ndarray) -> list[tuple[int, int, int]]:
    """Return each image with its most similar positive and negative, by brute force."""
    found = []
    for a in range(len(labels)):
        others = [i for i in range(len(labels)) if i != a]
        order = sorted(others, key=lambda i, a=a: -float(vectors[a] @ vectors[i]))  # type: ignore[misc]
        same = [i for i in order if labels[i] == labels[a]]
        found.append((a, same[0], next(i for i in order if labels[i] != labels[a])))
    return found


@pytest.mark.parametrize("chunk", [None, 6])
def test_steps_are_those_of_a_plain_training_loop(tmp_path: Path, chunk: int | None) -> None:
    """Over an epoch's end, so that both epochs' batches are used."""
    batch_norm = "train" if chunk is None else "frozen"  # else chunks have statistics of their own
    model_settings = SETTINGS["model"] | {"batch_norm": batch_norm}  # type: ignore[operator]
    batch_settings = SETTINGS["batch"] | {"chunk": chunk}  # type: ignore[operator]
    config = configuration(model=model_settings, batch=batch_settings)
    dataset = data_sets.load("digits")
    found = training_steps(config, dataset, {"first": "triplet", "second": "sct"}, [0, 4])
    assert [(one.loss, one.step) for one in found] == [
        ("first", 0), ("first", 4), ("second", 0), ("second", 4),
    ]  # fmt: skip

    data = TrainingData(dataset, config, ProcessGroup(torch.device("cpu")), tmp_path)
    loader = data.loader()
    model, loss = initial_model(config), losses.build({"name": "sct"})
    optimizer = torch.optim.SGD(
        [p for p in model.parameters() if p.requires_grad], lr=0.05, momentum=0.5, weight_decay=1e-4
    )
    for number, loaded in enumerate(loader.load(data.sampler.epoch, range(2))):
        labels = loaded.labels.numpy()
        before = model(loaded.inputs)
        value = loss(before, loaded.labels)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        expected = next((one for one in found[2:] if one.step == number), None)
        if expected is not None:
            start, end = (
                normalize(x).detach().numpy() for x in (before, model(loaded.inputs))
            )  # the second forward pass changes running statistics, which training mode does not use
            rows = hardest(start, labels)
            for vectors, cosines in ((start, expected.before), (end, expected.after)):
                wanted = [(vectors[a] @ vectors[p], vectors[a] @ vectors[n]) for a, p, n in rows]
                np.testing.assert_allclose(cosines, wanted, atol=2e-4)
            again = [(end[a] @ end[p], end[a] @ end[n]) for a, p, n in hardest(end, labels)]
            np.testing.assert_allclose(expected.mined_after, again, atol=2e-4)
            assert expected.value == pytest.approx(value.item(), abs=1e-4)
    loader.close()


def test_all_losses_start_from_the_same_embeddings_and_differ_later() -> None:
    found = training_steps(configuration(), data_sets.load("digits"), HN_SHN_SCT, [0, 2])
    first, later = ([one for one in found if one.step == step] for step in (0, 2))
    for one in first[1:]:
        np.testing.assert_array_equal(one.before, first[0].before)
        assert (one.after != first[0].after).any()
    assert len({one.before.tobytes() for one in later}) == 3


def test_steps_from_a_checkpoint_continue_the_run(tmp_path: Path) -> None:
    """Without momentum, a run of 2 + 2 steps equals one of 4, also in its second epoch."""
    config = configuration(
        optimizer={"name": "sgd", "lr": 0.05, "momentum": 0.0},
        loss={"name": "sct"},
        batch=SETTINGS["batch"] | {"per_epoch": 2},  # type: ignore[operator]
        epochs=1,
    )
    dataset = data_sets.load("digits")
    Trainer(Run.start(tmp_path, config), dataset).train()
    (expected,) = training_steps(config, dataset, {"sct": "sct"}, [3])
    checkpoint = (Run.open(tmp_path), "last")
    (found,) = training_steps(config, dataset, {"sct": "sct"}, [1], checkpoint=checkpoint)
    assert found.step == expected.step == 3
    np.testing.assert_allclose(found.after, expected.after, atol=1e-4)


def test_negative_steps_are_refused() -> None:
    with pytest.raises(InputError, match="step -1: steps are numbered from 0"):
        training_steps(configuration(), data_sets.load("digits"), HN_SHN_SCT, [-1, 2])


def test_step_command(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text(configuration(epochs=0).to_yaml())
    out = tmp_path / "step.svg"
    words = ("analyze", "step", str(tmp_path / "run"), "--at", "3,0", "--out", str(out))
    facts = json.loads(lookalike_here(*words, "--json", "--png").stdout)
    assert [(f["loss"], f["step"]) for f in facts] == [
        (name, step) for name in ("HN", "SHN", "SCT") for step in (0, 3)
    ]
    assert facts[0]["before"] == facts[2]["before"] == facts[4]["before"]
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    first = out.read_bytes()
    table = lookalike_here(*words).stdout.splitlines()
    assert out.read_bytes() == first
    assert table[1].split()[:3] == ["HN", "0", f"{facts[0]['before']['hard_share']:.1%}"]
    slow = lookalike_here(*words, "--set", "optimizer.lr=1e-9", "--loss", "raw", "--json").stdout
    (still, _) = json.loads(slow)
    assert still["after"]["mean_negative"] == pytest.approx(still["before"]["mean_negative"], abs=1e-5)
    for more, message in (
        (("--loss", "raw") * 5, "at most 4"),
        (("--at", "1.5"), "expected whole numbers"),
        (("--at", "x"), "expected numbers"),
        (("--which", "last"), "no such checkpoint"),
        (("--which", "last", "--set", "model.embedding_dim=3"), "leave the settings of model"),
    ):
        assert message in lookalike_here(*words, *more, code=2).stderr
