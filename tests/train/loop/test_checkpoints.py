"""Checkpoints kept during training, their batches, and commands that take one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from retrieval import Embedder, InputError
from tests.conftest import lookalike_here
from tests.train.loop.test_trainer import train_until_interrupted, trainer
from train import data
from train.loop.run_folder import Run
from train.loop.trainer import Trainer
from train.models.embedding_model import EmbeddingModel

KEEPING = ["epochs=3", "checkpoints={at: [0, 1, 3], every: 2}", "ema=0.9"]  # epochs of two steps


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory, shop: Path) -> Run:
    ours = trainer(tmp_path_factory.mktemp("kept") / "run", f"folder:{shop}", *KEEPING)
    ours.train()
    return ours.run


def weights(run: Run, which: str, part: str = "model") -> dict[str, torch.Tensor]:
    file = run.folder / "checkpoints" / which / "state.safetensors"
    return {name: value for name, value in load_file(file).items() if name.startswith(f"{part}.")}


def assert_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    assert all(torch.equal(value, other[name]) for name, value in one.items())


def test_chosen_steps_are_kept_without_the_optimizer(kept: Run) -> None:
    assert kept.kept_steps == [0, 1, 2, 3, 4, 6]
    assert_equal(weights(kept, "step-000006"), weights(kept, "last"))
    assert_equal(weights(kept, "step-000006", "average"), weights(kept, "last", "average"))
    untrained = kept.untrained().state_dict()
    assert_equal(weights(kept, "step-000000"), {f"model.{name}": v for name, v in untrained.items()})
    names = load_file(kept.folder / "checkpoints" / "step-000003" / "state.safetensors")
    assert {name.partition(".")[0] for name in names} == {"model", "average"}
    assert kept.checkpoint_state("3") == {"epoch": 1, "step": 3}
    plain, average = kept.trained("step-3"), weights(kept, "step-000003", "average")
    assert torch.equal(plain.head.weight, average["average.head.weight"]), "the weights that are validated"


def test_nothing_is_kept_by_default(tmp_path: Path, shop: Path) -> None:
    ours = trainer(tmp_path / "run", f"folder:{shop}", "epochs=1")
    ours.train()
    assert ours.run.kept_steps == []
    assert sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir()) == ["best", "last"]
    with pytest.raises(
        InputError, match=r"no such checkpoint: 1; .*checkpoints.at keeps others while training"
    ):
        ours.run.trained("1")


@pytest.mark.parametrize("after", [3, 4], ids=["in the middle of an epoch", "between epochs"])
def test_resumed_run_keeps_the_same_checkpoints(tmp_path: Path, shop: Path, kept: Run, after: int) -> None:
    stopped = trainer(tmp_path / "parts", f"folder:{shop}", *KEEPING)
    train_until_interrupted(stopped, after)
    run = Run.open(tmp_path / "parts")
    assert run.kept_steps == [step for step in kept.kept_steps if step <= after]
    Trainer(run, data.load(run.config.data)).train(resume=True)
    assert run.kept_steps == kept.kept_steps
    for step in run.kept_steps:
        assert_equal(weights(run, f"step-{step:06d}"), weights(kept, f"step-{step:06d}"))


def test_new_run_removes_checkpoints_of_one_that_never_began(tmp_path: Path, shop: Path) -> None:
    ours = trainer(tmp_path / "run", f"folder:{shop}", "epochs=1", "checkpoints.at=[0]")
    ours.step = 7
    ours._keep_checkpoint()
    assert ours.run.kept_steps == [7]
    assert Run.start(tmp_path / "run", ours.config).kept_steps == []


def test_steps_that_never_come_are_refused(tmp_path: Path, shop: Path) -> None:
    with pytest.raises(
        InputError, match=r"checkpoints.at: step 7 is beyond the 6 steps of this run .3 epochs of 2"
    ):
        trainer(tmp_path / "run", f"folder:{shop}", "epochs=3", "checkpoints.at=[6, 7]")
    with pytest.raises(InputError, match=r"checkpoints\.at: expected steps from 0, got -1"):
        trainer(tmp_path / "run", f"folder:{shop}", "checkpoints.at=[-1]")


def test_batch_of_a_step_is_the_one_trained_on(tmp_path: Path, shop: Path) -> None:
    """Labels that the loss receives in each step, against those of the batch."""
    ours = trainer(
        tmp_path / "run", f"folder:{shop}", "epochs=3", "augment.symmetries=4", "batch.per_epoch=2"
    )
    seen: list[torch.Tensor] = []
    ours.network.loss.register_forward_pre_hook(lambda _, given: seen.append(given[1]))
    ours.train()
    again = Trainer(Run.open(tmp_path / "run"), data.load(ours.config.data)).data
    for step in range(1, 7):
        batch = again.batch(step)
        np.testing.assert_array_equal(again.labels[batch], seen[step - 1])
        images = [again.images[number % len(again.images)] for number in batch]
        names = [image.label for image in images]
        assert len(set(zip(names, batch // len(again.images), strict=True))) == 3, "classes under a symmetry"


@pytest.mark.parametrize("name", ["3", "step-3", "step-000003"])
def test_network_of_a_kept_step_is_found_by_name(kept: Run, name: str) -> None:
    assert isinstance(kept.trained(name), EmbeddingModel)


def test_commands_take_a_kept_step(tmp_path: Path, kept: Run, shop: Path) -> None:
    words = ("--data", f"folder:{shop}")
    found = json.loads(lookalike_here("evaluate", str(kept.folder), *words, "--which", "3", "--json").stdout)
    assert [result["name"] for result in found["results"]] == ["step 3"]
    model = tmp_path / "m.onnx"
    lookalike_here("export", str(kept.folder), "--checkpoint", "3", "--out", str(model), "--data", "noise")
    assert Embedder(model).provenance["checkpoint"] == "3"
    assert Embedder(model).provenance["metrics"] == {}, "Recall@1 of another step is none of this one"
    refused = lookalike_here("evaluate", str(kept.folder), *words, "--which", "5", code=2).stderr
    assert "no such checkpoint: 5; it has best and last, and those of steps 0, 1, 2, 3, 4, 6" in refused
    unknown = lookalike_here("evaluate", str(kept.folder), *words, "--which", "first", code=2).stderr
    assert "checkpoint 'first': expected best, last, or a step as in 12 or step-12" in unknown


def test_epoch_that_is_both_best_and_last_is_written_once(tmp_path: Path, shop: Path) -> None:
    ours = trainer(tmp_path / "run", f"folder:{shop}", "epochs=1", "split.validation=0")
    ours.train()
    best, last = (tmp_path / "run" / "checkpoints" / name / "state.safetensors" for name in ("best", "last"))
    assert best.samefile(last)
    content = best.read_bytes()
    ours.step += 1
    ours._save_checkpoint("last")
    assert best.read_bytes() == content
    assert ours.run.checkpoint_state("last")["step"] == ours.step
