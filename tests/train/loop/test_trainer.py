"""Trainer: learning, bit-identical resumption, early stopping and failures."""

from __future__ import annotations

import copy
import json
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

from retrieval import InputError, LookalikeError, metrics
from retrieval.images.decode import embed_files
from retrieval.progress import Progress
from tests.conftest import draw_classes
from tests.train.forking import start_lookalike
from train import data, settings
from train.loop.interruption import Interrupted
from train.loop.refit import train_run
from train.loop.run_folder import Run, initial_model
from train.loop.trainer import Trainer
from train.models import backbones
from train.models.embedding_model import pixel_embedder

SMALL = [
    "preprocess.size=24",
    "model.embedding_dim=8",
    "batch.classes=3",
    "batch.per_class=4",
    "split.validation=0.0",
]
BY_RECALL = ["split.choice=always", "split.metric=recall_at_1"]  # few images would refuse the choice


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve classes of six images."""
    return draw_classes(tmp_path_factory.mktemp("many"), 12, 6)


def trainer(folder: Path, spec: str, *overrides: str) -> Trainer:
    run = Run.start(folder, settings.resolve(spec, None, [*SMALL, *overrides]))
    return Trainer(run, data.load(run.config.data))


def train_until_interrupted(ours: Trainer, after: int) -> None:
    """Train and press Ctrl-C during step `after`."""
    forward = ours.network.loss.forward

    def interrupted(*arguments: object, **more: object) -> object:
        if ours.step == after - 1:
            signal.raise_signal(signal.SIGINT)
        return forward(*arguments, **more)

    ours.network.loss.forward = interrupted
    with pytest.raises(Interrupted, match=f"after step {after}, checkpoint saved; --resume"):
        ours.train()


def test_training_reduces_the_loss(tmp_path: Path, shop: Path) -> None:
    ours = trainer(tmp_path / "run", f"folder:{shop}", "epochs=12", "loss={name: n-pair}")
    ours.train()
    records = [record for record in Run.open(tmp_path / "run").metrics() if "loss" in record]
    assert records[-1]["loss"] < 0.5 * records[0]["loss"]
    assert {"step", "epoch", "lr", "images_per_second"} <= set(records[0])
    assert list((tmp_path / "run").glob("events.out.tfevents.*"))


def assert_same_run(one: Path, other: Path) -> None:
    """Weights, EMA, optimizer state and all logged losses are bit-identical."""
    states = [load_file(run / "checkpoints" / "last" / "state.safetensors") for run in (one, other)]
    assert states[0].keys() == states[1].keys()
    for name, value in states[0].items():
        assert torch.equal(value, states[1][name]), name
    losses = [{r["step"]: r["loss"] for r in Run.open(run).metrics() if "loss" in r} for run in (one, other)]
    both = losses[0].keys() & losses[1].keys()  # an interruption logs an additional record
    assert max(losses[0]) in both
    assert all(losses[0][step] == losses[1][step] for step in both)


RESUMED = {
    "sgd": ["loss={name: triplet, negatives: optimal}", "optimizer.name=sgd"],
    "random": ["loss={name: triplet, mining: {positive: random, negative: random}}", "model.dropout=0.3"],
    "proxies": ["loss={name: proxy-anchor}", "optimizer.loss_lr=0.1", "ema=0.9", "loader.workers=1"],
    "memory": [
        "loss={name: triplet, memory: 20}", "precision=bf16", "batch.layout=at-least", "batch.chunk=5",
    ],
    "mic": [
        "mic={clusters: 3, every: 2, weight: 50.0}", "batch.chunk=5", "model.dropout=0.3",
        "loss={name: margin, learn: per-class, mining: {positive: random, negative: distance-weighted}}",
    ],
    "hard classes": ["batch={hard_classes: 0.7, group: 2, classes: 3, per_class: 4}", "loader.workers=1"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "after"),
    # Between epochs only the sampler and the loader are in another state.
    [*((name, 3) for name in RESUMED), ("random", 4), ("hard classes", 4), ("mic", 4), ("mic", 5)],
    ids=lambda value: {3: "in the middle of an epoch", 4: "between epochs"}.get(value, value),
)
def test_interrupted_and_resumed_run_is_bit_identical(
    tmp_path: Path, shop: Path, name: str, after: int
) -> None:
    """Ctrl-C during step `after`, in epochs of two steps."""
    chosen = ["epochs=4", *RESUMED[name]]
    trainer(tmp_path / "whole", f"folder:{shop}", *chosen).train()
    stopped = trainer(tmp_path / "parts", f"folder:{shop}", *chosen)
    train_until_interrupted(stopped, after)
    run = Run.open(tmp_path / "parts")
    Trainer(run, data.load(run.config.data)).train(resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_a_resumed_optimizer_has_the_strides_of_its_weights(tmp_path: Path, shop: Path) -> None:
    """The fused kernels of CUDA refuse others; weights of convolutions are in `channels_last`."""
    train_until_interrupted(trainer(tmp_path / "run", f"folder:{shop}", "epochs=4"), 3)
    run = Run.open(tmp_path / "run")
    resumed = Trainer(run, data.load(run.config.data))
    run.load_checkpoint("last", optimizer=resumed.optimizer, **resumed._modules)
    states = [
        (weight, value)
        for weight, state in resumed.optimizer.state.items()
        for name, value in state.items()
        if name != "step"
    ]
    assert any(not weight.is_contiguous() for weight, _ in states)
    assert all(value.stride() == weight.stride() for weight, value in states)
    assert any(value.any() for _, value in states)


@pytest.mark.slow
@pytest.mark.parametrize("refit", [False, True], ids=["plain", "refit"])
def test_killed_run_resumes_from_its_checkpoint(tmp_path: Path, many: Path, refit: bool) -> None:
    """Killed twice; with a refit once in the run that chooses, once in the one on all images."""
    chosen = ["epochs=6", "save_every=1"]
    chosen += ["split.validation=0.25", "split.refit=true"] if refit else []
    config = settings.resolve(f"folder:{many}", None, [*SMALL, *chosen])
    dataset = data.load(config.data)
    train_run(Run.start(tmp_path / "whole", config), dataset)
    words = ["--recipe", "scratch", "--data", f"folder:{many}"]
    words += [w for s in [*SMALL, *chosen] for w in ("--set", s)]
    killed = Run(tmp_path / "killed")
    parts = (killed.choice if refit else killed, killed)
    for more, delay, part in ((words, 0.0, parts[0]), (["--resume"], 0.03, parts[1])):
        kept = part.folder / "checkpoints" / "last" / "state.safetensors"
        before, deadline = kept.stat().st_mtime_ns if kept.exists() else 0, time.monotonic() + 120
        process = start_lookalike(tmp_path, "train", "--out", "killed", *more)
        while not (kept.exists() and kept.stat().st_mtime_ns != before):
            assert process.is_alive(), "the run ended before it could be killed"
            assert time.monotonic() < deadline
            time.sleep(0.002)
        time.sleep(delay)
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
    train_run(killed, dataset, resume=True)
    assert_same_run(tmp_path / "whole", killed.folder)
    if refit:
        assert_same_run(tmp_path / "whole" / "choice", killed.choice.folder)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU")
@pytest.mark.parametrize("compiled", ["network", "loss"])
def test_compiled_parts_are_trained_alike(
    tmp_path: Path,
    shop: Path,
    compiled: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also the random numbers of the miner. The larger graph of optimal points would take half a minute.

    The network has one of the four blocks of conv4, which are alike.
    """
    block = backbones._convolution(3, 64)
    monkeypatch.setitem(
        backbones.OWN_BACKBONES, "conv4", lambda: backbones._from_layers(copy.deepcopy(block))
    )
    # Adam would amplify rounding errors.
    loss = "loss={name: triplet, mining: {positive: random, negative: random}}"
    settings_of_run = ["epochs=2", loss, "optimizer.name=sgd"]
    # Processes to compile in would import torch first; a test of the vector instructions takes ten seconds.
    quick = {"compile_threads": 1, "cpp.vec_isa_ok": True}
    for part in ("none", compiled):
        with torch._inductor.config.patch(quick):
            trainer(tmp_path / part, f"folder:{shop}", *settings_of_run, f"compile={part}").train()
    assert "could not be compiled" not in capsys.readouterr().err
    models = [Run.open(tmp_path / part).trained("last").state_dict() for part in ("none", compiled)]
    for name, value in models[0].items():
        torch.testing.assert_close(value, models[1][name], rtol=1e-2, atol=1e-4)


def test_ema_weights_are_validated_and_saved(tmp_path: Path, many: Path) -> None:
    held_out = ["split.validation=0.25", "split.distractors=0"]
    ours = trainer(tmp_path / "run", f"folder:{many}", "epochs=3", "ema=0.9", *held_out)
    facts = ours.train()
    assert ours.network.ema is not None
    trained = ours.run.trained("last")
    for name, value in trained.state_dict().items():
        torch.testing.assert_close(value, ours.network.ema.state_dict()[name])
    assert not torch.equal(trained.head.weight, ours.network.model.head.weight)
    found = embed_files(
        [image.path for image in ours.data.validation],
        ours.config.preprocess,
        pixel_embedder(trained),
        Progress("", None, show=False),
    )
    labels = data.class_numbers(ours.data.validation)
    recall = metrics.recall_at_k(found.vectors, labels, ks=(1,))[1]
    assert recall == facts["recall_at_1_last"], "the validated weights are saved"


def test_early_stopping(tmp_path: Path, many: Path) -> None:
    settings_of_run = ["epochs=50", "patience=2", "split.validation=0.25", "optimizer.lr=1e-12"]
    ours = trainer(tmp_path / "run", f"folder:{many}", *settings_of_run, *BY_RECALL)
    facts = ours.train()
    assert facts["stopped_early"]
    recalls = [r["recall_at_1"] for r in ours.run.metrics() if "recall_at_1" in r]
    best = recalls.index(max(recalls))
    assert facts["epochs"] == best + 2 == len(recalls) - 1
    again = Trainer(Run.open(tmp_path / "run"), data.load(ours.config.data)).train(resume=True)
    assert again["epochs"] == facts["epochs"], "it stays stopped"
    with pytest.raises(InputError, match="patience: no images are held out"):
        trainer(tmp_path / "other", f"folder:{many}", "patience=2")


def test_collapse_is_reported(tmp_path: Path, shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A network forced to return one embedding for all images, and a normal one."""
    run = Run.start(tmp_path / "run", settings.resolve(f"folder:{shop}", None, [*SMALL, "epochs=2"]))
    ours = Trainer(run, data.load(run.config.data), show_progress=True)
    torch.nn.init.zeros_(ours.network.model.head.weight)
    torch.nn.init.ones_(ours.network.model.head.bias)
    for group in ours.optimizer.param_groups:
        group["initial_lr"] = 0.0
    assert ours.train()["collapsed_at"] == 2
    assert "collapsed: at step 2 all embeddings are nearly equal" in capsys.readouterr().err
    assert trainer(tmp_path / "fine", f"folder:{shop}", "epochs=12").train()["collapsed_at"] is None


def test_regularizer_without_gradient_is_reported_once(
    tmp_path: Path, shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a tiny sigma, and with a list of widths."""
    for sigma, epochs, warnings in (("1e-6", 12, 1), ("[0.05, 0.2, 0.8]", 2, 0)):
        part = f"{{name: mmd-laplacian, weight: 0.2, sigma: {sigma}}}"
        loss = f"{{name: n-pair, normalize: true, regularizers: [{part}]}}"
        overrides = [*SMALL, f"epochs={epochs}", f"loss={loss}"]
        folder = tmp_path / str(warnings)
        run = Run.start(folder, settings.resolve(f"folder:{shop}", None, overrides))
        Trainer(run, data.load(run.config.data), show_progress=True).train()
        assert capsys.readouterr().err.count("inert kernel: up to step") == warnings
        records = [record for record in run.metrics() if "loss" in record]
        assert (max(record["gradient_ratio"] for record in records) > 1e-3) == (warnings == 0)


def test_label_noise_is_recorded_and_spares_validation(tmp_path: Path, many: Path) -> None:
    noisy = ["noise.rate=0.25", "split.validation=0.25", "epochs=1"]
    ours = trainer(tmp_path / "run", f"folder:{many}", *noisy)
    lines = (tmp_path / "run" / "noise.csv").read_text().splitlines()
    assert len(lines) == 1 + round(0.25 * 54)
    assert all(Path(image.path).parent.name == image.label for image in ours.data.validation)
    ours.train()


def test_best_checkpoint_of_a_closed_set_is_chosen_on_held_out_images(tmp_path: Path, many: Path) -> None:
    settings_of_run = ["epochs=3", "split.by=images", "split.validation=0.34", "noise.rate=0.25"]
    ours = trainer(tmp_path / "run", f"folder:{many}", *settings_of_run, *BY_RECALL)
    facts = ours.train()
    assert (facts["validation_images"], facts["validation_classes"]) == (24, 12), "two of six of every class"
    assert facts["training_images"] == 48
    assert len((tmp_path / "run" / "noise.csv").read_text().splitlines()) == 1 + round(0.25 * 48)
    held_out = ours.data.validation
    assert all(image.path.parent.name == image.label for image in held_out), "their labels are true"
    assert not {image.path for image in held_out} & {image.path for image in ours.data.images}
    recalls = [r["recall_at_1"] for r in ours.run.metrics() if "recall_at_1" in r]
    kept = ours.run.load_checkpoint("best", model=ours.run.untrained())
    assert kept["recall_at_1"] == facts["recall_at_1_best"] == max(recalls)


def test_held_out_classes_of_single_images_are_refused_before_the_features(tmp_path: Path) -> None:
    folder = draw_classes(tmp_path / "single", 8, 1)
    with pytest.raises(InputError, match=r"no held-out class has two images.*images:DIR"):
        trainer(tmp_path / "run", f"folder:{folder}", "split.validation=0.25")
    assert data.load(f"images:{folder}", unlabelled=True).train, "as the message proposes"


def test_best_checkpoint_is_chosen_on_held_out_classes(tmp_path: Path, many: Path) -> None:
    held_out = ["split.validation=0.25", *BY_RECALL]
    ours = trainer(tmp_path / "run", f"folder:{many}", "epochs=3", *held_out)
    facts = ours.train()
    assert facts["validation_classes"] == 3
    assert len(set(ours.data.labels)) == 9
    recalls = [r["recall_at_1"] for r in ours.run.metrics() if "recall_at_1" in r]
    assert len(recalls) == 4, "before the first epoch and after each"
    assert facts["recall_at_1_best"] == max(recalls)
    kept = ours.run.load_checkpoint("best", model=ours.run.untrained())
    assert kept["recall_at_1"] == max(recalls)


def test_non_finite_loss_stops_and_keeps_the_last_checkpoint(tmp_path: Path, shop: Path) -> None:
    ours = trainer(tmp_path / "run", f"folder:{shop}", "epochs=3")
    real = ours.network.loss.forward
    ours.network.loss.forward = lambda *a, **k: real(*a, **k) * (float("nan") if ours.step >= 3 else 1.0)
    with pytest.raises(LookalikeError, match=r"nan at step 4 \(learning rate"):
        ours.train()
    assert ours.run.load_checkpoint("last", model=ours.run.untrained())["epoch"] == 1


@pytest.mark.parametrize("overflows", [10, 11])
def test_fp16_may_skip_ten_steps_in_a_row(tmp_path: Path, shop: Path, overflows: int) -> None:
    ours = trainer(tmp_path / "run", f"folder:{shop}", "epochs=1", "batch.per_epoch=22")
    ours.take_step.scaler = torch.amp.GradScaler("cpu")
    real, before = ours.network.loss.forward, ours.network.model.head.weight.clone()
    ours.network.loss.forward = lambda *a, **k: (
        real(*a, **k) * (float("nan") if 5 <= ours.step < 5 + overflows else 1.0)
    )
    if overflows > 10:
        with pytest.raises(LookalikeError, match=r"nan at step 16 .*: set precision=bf16, or lower"):
            ours.train()
        return
    ours.train()
    assert ours.network.model.head.weight.isfinite().all()
    assert not torch.equal(ours.network.model.head.weight, before)
    losses = [record["loss"] for record in ours.run.metrics() if "loss" in record]
    assert len(losses) == 3
    assert torch.tensor(losses).isfinite().all()


def test_non_finite_embeddings_are_reported_with_the_step(tmp_path: Path, shop: Path) -> None:
    ours = trainer(tmp_path / "run", f"folder:{shop}", "epochs=3")
    ours.network.model.head.register_forward_hook(
        lambda _, given, out: out * (float("inf") if ours.step == 3 else 1.0)
    )
    with pytest.raises(LookalikeError, match=r"at step 4 \(learning rate .*embeddings hold NaN, infinity"):
        ours.train()


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (torch.OutOfMemoryError("CUDA out of memory."), "out of memory at step 3: set batch.chunk"),
        (RuntimeError("CUDA error: device-side assert triggered"), "lower optimizer.lr; the last checkpoint"),
    ],
)
def test_gpu_errors_are_reported_with_a_remedy(
    tmp_path: Path, shop: Path, error: Exception, message: str
) -> None:
    ours = trainer(tmp_path / "run", f"folder:{shop}", "epochs=3")

    def fail(_: object, given: object) -> None:
        if ours.step == 2:
            raise error

    ours.network.model.head.register_forward_pre_hook(fail)
    with pytest.raises(LookalikeError, match=message):
        ours.train()


def test_non_finite_weights_are_not_saved(tmp_path: Path, shop: Path) -> None:
    """The loss of the last step of the epoch is still finite."""
    ours = trainer(tmp_path / "run", f"folder:{shop}", "epochs=3")
    ours.network.model.head.weight.register_hook(lambda g: g * (float("nan") if ours.step == 3 else 1.0))
    with pytest.raises(LookalikeError, match="weights are no longer finite at step 4"):
        ours.train()
    assert ours.run.load_checkpoint("last", model=ours.run.untrained())["epoch"] == 1


def test_unreadable_training_image_is_skipped_and_reported(tmp_path: Path) -> None:
    draw_classes(tmp_path / "d", 3, 4)
    (tmp_path / "d" / "00" / "bad.png").write_bytes(b"bad")
    ours = trainer(tmp_path / "run", f"folder:{tmp_path / 'd'}", "epochs=1")
    ours.train()
    assert [Path(error.source).name for error in ours.bad_files] == ["bad.png"]


def test_run_folder_holds_the_configuration(tmp_path: Path, shop: Path) -> None:
    ours = trainer(tmp_path / "run", f"folder:{shop}", "epochs=0", "seed=5")
    ours.train()
    kept = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert kept["seed"] == 5
    assert settings.parse_config(kept) == ours.config
    untrained = initial_model(ours.config).state_dict()
    assert all(torch.equal(untrained[name], value) for name, value in ours.run.trained().state_dict().items())
    with pytest.raises(InputError, match="--resume"):
        Run.start(tmp_path / "run", ours.config)


def test_checkpoint_of_another_network_is_refused(tmp_path: Path, shop: Path) -> None:
    trainer(tmp_path / "run", f"folder:{shop}", "epochs=0").train()
    other = settings.resolve(f"folder:{shop}", None, [*SMALL, "model.embedding_dim=9"])
    (tmp_path / "run" / "config.yaml").write_text(other.to_yaml())
    with pytest.raises(InputError, match="does not belong"):
        Run.open(tmp_path / "run").trained()
    (tmp_path / "run" / "checkpoints" / "best" / "state.safetensors").write_bytes(b"\x80\x04pickle")
    with pytest.raises(InputError, match="does not belong"):
        Run.open(tmp_path / "run").trained()


def test_metrics_are_one_object_per_line(tmp_path: Path, shop: Path) -> None:
    ours = trainer(tmp_path / "run", f"folder:{shop}", "epochs=2")
    ours.train()
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line)["step"] for line in lines]
    assert steps == sorted(steps)
