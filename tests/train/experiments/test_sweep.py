"""Sweeps: scores, resuming, extension with variants and seeds, and refused changes."""

from __future__ import annotations

import contextlib
import fcntl
import json
import multiprocessing
import os
import shlex
import signal
import statistics
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import ttest_rel

from retrieval import InputError, LookalikeError
from retrieval.evaluation.report import Report
from tests.conftest import draw_classes, lookalike_here, wait_until
from tests.train.forking import START_METHOD
from train.experiments.experiment import Experiment
from train.experiments.sweep import run_sweep
from train.experiments.sweep_plan import make_sweep_plan, parse_variants
from train.experiments.sweep_results import SweepResults
from train.loop.run_folder import Run
from train.models.embedding_model import pixel_embedder
from train.settings import parse_changes

SMALL = (
    "preprocess.size=24",
    "model.embedding_dim=8",
    "batch.classes=3",
    "batch.per_class=4",
    "split.validation=0.34",
    "epochs=2",
    "loss={name: triplet, negatives: optimal, margin: 0.2}",
)
VARIANTS = ("plain", "wide:loss.margin=0.6; optimizer.lr=1e-2")
SEEDS = (0, 1)


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Six classes of six images to train on, and of six others to test on; two classes share each hue."""
    folder = tmp_path_factory.mktemp("twins")
    for split, first in (("train", 0), ("test", 50)):
        draw_classes(folder / split, 6, 6, first=first)
    return f"folder:{folder}"


def sweep(
    folder: Path,
    data: str | None,
    variants: Sequence[str] = VARIANTS,
    seeds: Sequence[int] | None = SEEDS,
    baseline: str | None = None,
    overrides: Sequence[str] = SMALL,
) -> SweepResults:
    experiment = Experiment(data, None, parse_changes(overrides)) if data else Experiment()
    plan = make_sweep_plan(folder, experiment, parse_variants(variants), seeds, baseline)
    return run_sweep(folder, plan, lambda message: None)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, twins: str) -> Path:
    """A finished sweep of two variants and two seeds."""
    folder = tmp_path_factory.mktemp("sweep") / "out"
    sweep(folder, twins)
    return folder


def state(folder: Path) -> dict[str, bytes]:
    """Return the files of every run."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.glob("*/seed-*/**/*") if p.is_file()}


def recall_at_1(run: Run, which: str, data: str) -> float:
    """Compute Recall@1 image by image; among ties a wrong class ranks first."""
    files = sorted(Path(data.partition(":")[2]).glob("test/*/*.png"))
    embed = pixel_embedder(run.trained(which) if which != "before" else run.untrained())
    pixels = [run.config.preprocess(Image.open(file).convert("RGB")) for file in files]
    vectors = np.concatenate([embed(np.stack([image])) for image in pixels])
    right = 0
    for i, vector in enumerate(vectors):
        others = [j for j in range(len(files)) if j != i]
        cosines = {True: [-1.0], False: [-1.0]}
        for j in others:
            cosines[files[j].parent == files[i].parent].append(float(vector @ vectors[j]))
        right += max(cosines[True]) - 1e-6 > max(cosines[False])
    return right / len(files)


def test_scores_before_and_after_match_a_brute_force_computation(finished: Path, twins: str) -> None:
    results = json.loads((finished / "results.json").read_text())
    assert [(r["variant"], r["seed"], r["status"]) for r in results["runs"]] == [
        (name, seed, "done") for seed in SEEDS for name in ("plain", "wide")
    ]
    for found in results["runs"]:
        run = Run.open(finished / found["variant"] / f"seed-{found['seed']}")
        assert run.config.seed == found["seed"]
        assert run.config.loss["margin"] == (0.6 if found["variant"] == "wide" else 0.2)
        for which in ("before", "best", "last"):
            assert found["scores"][which]["recall_at_1"] == pytest.approx(recall_at_1(run, which, twins))


def test_best_epoch_is_compared_if_classes_were_held_out(finished: Path) -> None:
    results = json.loads((finished / "results.json").read_text())
    assert {variant["checkpoint"] for variant in results["variants"]} == {"best"}
    for variant in results["variants"]:
        runs = [run for run in results["runs"] if run["variant"] == variant["name"]]
        for which in ("before", "best", "last"):
            for metric in ("recall_at_1", "recall_at_4", "nmi", "f1"):
                values = [run["scores"][which][metric] for run in runs]
                summary = variant["scores"][which][metric]
                assert summary["mean"] == pytest.approx(statistics.mean(values))
                assert summary["std"] == pytest.approx(statistics.stdev(values))
        assert variant["recalls"] == [run["scores"]["best"]["recall_at_1"] for run in runs]
        trained = [Run(finished / run["variant"] / f"seed-{run['seed']}") for run in runs]
        held_out = [
            next(
                record["recall_at_1"]
                for record in run.metrics()
                if "recall_at_1" in record and record["step"] == run.checkpoint_state("best")["step"]
            )
            for run in trained
        ]
        assert [run["scores"]["validation"]["recall_at_1"] for run in runs] == held_out
        assert "oracle" not in variant["scores"], "no test images are watched"
    assert "the best epoch on held-out images" in (finished / "results.md").read_text()
    assert (finished / "results.svg").read_text().startswith("<?xml")


def test_untrained_network_of_a_seed_is_measured_once(finished: Path) -> None:
    before = {
        (name, seed): next(
            r for r in Report.load(finished / name / f"seed-{seed}").results if r.name == "before training"
        )
        for name in ("plain", "wide")
        for seed in SEEDS
    }
    assert before["plain", 0] == before["wide", 0]
    assert before["plain", 1] == before["wide", 1]


def test_repeated_sweep_changes_no_file_of_a_run(finished: Path, twins: str) -> None:
    before = state(finished)
    found = sweep(finished, None, variants=(), seeds=None)
    assert state(finished) == before
    assert [outcome.status for outcome in found.outcomes] == ["done"] * 4
    sweep(finished, twins)
    assert state(finished) == before


def test_variants_and_seeds_can_be_added(tmp_path: Path, twins: str) -> None:
    quick = (*SMALL, "epochs=0", "split.validation=0.0")  # no training
    sweep(tmp_path, twins, ["plain"], [0], overrides=quick)
    before = state(tmp_path)
    found = sweep(tmp_path, None, ["big:model.embedding_dim=16"], [3], baseline="big")
    assert [(o.variant, o.seed) for o in found.outcomes] == [
        ("plain", 0),
        ("big", 0),
        ("plain", 3),
        ("big", 3),
    ]
    assert {row.checkpoint for row in found.rows} == {"last"}, "no classes are held out"
    assert all("best" not in outcome.scores for outcome in found.outcomes)
    assert before.items() <= state(tmp_path).items()
    assert found.baseline == "big"


def test_baselines_are_announced_once_and_resumed(tmp_path: Path, twins: str) -> None:
    quick = parse_changes((*SMALL, "epochs=0", "split.validation=0.0"))  # no training
    said: list[str] = []
    for experiment, variants in ((Experiment(twins, None, quick), ["plain"]), (Experiment(), [])):
        plan = make_sweep_plan(
            tmp_path, experiment, parse_variants(variants), (0,), None, with_baselines=True
        )
        found = run_sweep(tmp_path, plan, said.append)
    names = ["baseline-triplet", "baseline-semi-hard", "baseline-softmax", "baseline-proxy-anchor"]
    assert [row.name for row in found.rows] == ["plain", *names]
    assert [outcome.status for outcome in found.outcomes] == ["done"] * 5
    announced = [message for message in said if "--no-baselines" in message]
    assert announced == [f"added as baselines: {', '.join(names)}; --no-baselines leaves them out"]
    assert found.references == [], "the backbone is random"


def test_command_in_results_reproduces_the_sweep(finished: Path) -> None:
    kept = json.loads((finished / "results.json").read_text())
    assert f"\n```sh\n{kept['command']}\n```\n" in (finished / "results.md").read_text()
    before = state(finished)
    again = json.loads(lookalike_here(*shlex.split(kept["command"])[1:], "--json").stdout)
    assert {**again, "created": kept["created"]} == kept
    assert state(finished) == before


def test_changed_settings_are_refused(finished: Path, twins: str) -> None:
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match="epochs 2, not 3; variants and seeds may be added"):
        sweep(finished, twins, overrides=(*SMALL, "epochs=3"))
    with pytest.raises(InputError, match=r"variant wide: begun with loss.margin 0.6, not 0.7"):
        sweep(finished, twins, ["wide:loss.margin=0.7; optimizer.lr=1e-2"])
    config = finished / "plain" / "seed-0" / "config.yaml"
    other = config.read_text().replace("epochs: 2", "epochs: 5")
    config.write_text(other)
    with pytest.raises(InputError, match="seed-0: trained with epochs 5, not 2"):
        sweep(finished, None, variants=(), seeds=None)
    config.write_bytes(before[config])
    assert {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("odd:epoch=3", "variant odd: epoch: .* did you mean 'epochs'"),
        ("odd:loss={name: tripled}", "variant odd: loss: .*triplet"),
        ("odd:loss.margn=1", "variant odd: loss: .*margin"),
        ("odd:model.backbone=resnet81", "variant odd: model.backbone"),
        ("odd:batch.classes=1", "variant odd: batch.classes"),
        ("odd:seed=4", "--seeds"),
        ("odd:data=digits", "variant odd: data"),
        ("odd:loss.margin=0.2", "plain and odd have equal settings"),
    ],
)
def test_invalid_variant_is_refused_before_the_first_run(
    tmp_path: Path, twins: str, word: str, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        sweep(tmp_path / "out", twins, ["plain", word])
    assert not (tmp_path / "out").exists()


def test_failed_run_is_recorded_and_the_others_continue(tmp_path: Path, twins: str) -> None:
    words = ["sweep", "--data", twins, "--out", str(tmp_path), "--seeds", "0,", "--json", "--no-baselines"]
    words += [word for setting in SMALL for word in ("--set", setting)]
    words += ["--variant", "wild:optimizer={name: sgd, lr: 1.0e+30}", "--variant", "plain"]
    done = lookalike_here(*words, code=1)
    results = json.loads(done.stdout)
    assert [run["status"] for run in results["runs"]] == ["failed", "done"]
    message = results["runs"][0]["error"]
    assert "lower" in message, "advice for a loss that is not finite"
    assert "run 2 of 2: plain, seed 0" in done.stderr
    assert "1 of 2 runs failed" in done.stderr
    failure = (tmp_path / "wild" / "seed-0" / "failure.txt").read_text()
    assert failure.startswith(message)
    assert "Traceback" in failure
    assert message in (tmp_path / "results.md").read_text()
    (plain,) = [variant for variant in results["variants"] if variant["name"] == "plain"]
    assert plain["paired"] == {}, "there is nothing to compare with"


def descendants(process: int) -> list[int]:
    """Return the process ids of all processes that a process has started, and of those that they did."""
    parents = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # ended meanwhile
            parents[int(file.parent.name)] = int(file.read_text().rpartition(")")[2].split()[1])
    found = [process]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    return found[1:]


def sweep_once(folder: Path, data: str, overrides: Sequence[str]) -> None:
    """Run a sweep of one seed as a process of its own, which starts others."""
    torch.set_num_threads(1)
    sweep(folder, data, seeds=(0,), overrides=overrides)


@pytest.mark.slow
def test_killed_sweep_resumes_to_identical_results(tmp_path: Path, twins: str) -> None:
    long = (*SMALL, "epochs=12")
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    second = Run(killed / "wide" / "seed-0")
    child = multiprocessing.get_context(START_METHOD).Process(target=sweep_once, args=(killed, twins, long))
    child.start()
    assert child.pid is not None
    deadline = time.monotonic() + 120
    while not (second.has_checkpoint("last") and any(record["epoch"] >= 2 for record in second.metrics())):
        assert child.is_alive(), "the sweep ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.01)
    processes = descendants(child.pid)
    assert len(processes) >= 2, "the server, and the run"
    child.kill()
    child.join()
    wait_until(lambda: not any(Path(f"/proc/{process}").exists() for process in processes))
    assert not (second.folder / "report.json").exists()
    first = {name: content for name, content in state(killed).items() if name.startswith("plain")}
    assert "plain/seed-0/report.json" in first
    sweep(killed, None, variants=(), seeds=None)
    assert first.items() <= state(killed).items(), "finished runs are not repeated"
    sweep(whole, twins, [VARIANTS[1]], (0,), overrides=long)
    uninterrupted = Run(whole / "wide" / "seed-0")
    for which in ("best", "last"):
        ours, theirs = (run.trained(which).state_dict() for run in (second, uninterrupted))
        assert all(torch.equal(ours[name], value) for name, value in theirs.items())
    assert Report.load(second.folder).results == Report.load(uninterrupted.folder).results


def test_killed_run_does_not_take_the_others(tmp_path: Path, twins: str) -> None:
    """The sweep records the death, and the next call resumes the run from its checkpoint."""
    first, said = tmp_path / "out" / "plain" / "seed-0", list[str]()
    overrides = parse_changes((*SMALL, "epochs=12"))

    def kill() -> None:
        wait_until(lambda: Run(first).has_checkpoint("last"))
        (process,) = multiprocessing.active_children()
        process.kill()

    plan = make_sweep_plan(
        tmp_path / "out",
        Experiment(twins, None, overrides),
        parse_variants(("plain", "short:epochs=1")),
        (0,),
        None,
    )
    killer = threading.Thread(target=kill)
    killer.start()
    found = run_sweep(tmp_path / "out", plan, said.append)
    killer.join()
    assert [outcome.status for outcome in found.outcomes] == ["failed", "done"]
    assert found.outcomes[0].error == (
        "its process was ended by SIGKILL; the memory of the machine may be exhausted"
    )
    assert found.outcomes[0].error in said[1]

    def interrupt() -> None:
        step = Run(first).checkpoint_state("last")["step"]
        wait_until(lambda: Run(first).checkpoint_state("last")["step"] > step)
        os.kill(os.getpid(), signal.SIGTERM)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt, match="seed-0: interrupted; repeat the command to resume"):
        run_sweep(tmp_path / "out", plan, said.append)
    interrupter.join()
    found = run_sweep(tmp_path / "out", plan, said.append)
    assert [outcome.status for outcome in found.outcomes] == ["done", "done"]
    whole = sweep(tmp_path / "whole", twins, ["plain"], (0,), overrides=(*SMALL, "epochs=12"))
    assert found.outcomes[0].scores == whole.outcomes[0].scores
    assert not (first / "failure.txt").exists()


def test_run_does_not_depend_on_earlier_runs(tmp_path: Path, twins: str) -> None:
    """Including losses with randomly initialized parameters of their own."""
    proxies = "proxies:loss={name: proxy-anchor}"
    sweep(tmp_path / "second", twins, ["plain", proxies], (1,))
    sweep(tmp_path / "first", twins, [proxies], (1,))
    one, other = (Run(tmp_path / name / "proxies" / "seed-1").trained("last") for name in ("first", "second"))
    assert all(map(torch.equal, one.state_dict().values(), other.state_dict().values()))


def test_concurrent_sweep_in_one_folder_is_refused(finished: Path) -> None:
    with (finished / "LOCK").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(LookalikeError, match="another process"):
            sweep(finished, None, variants=(), seeds=None)


def test_images_that_training_sees_are_not_measured(shop: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no test split, so training would see all that is measured"):
        sweep(tmp_path / "out", f"folder:{shop}", ["plain"], (0,))
    assert not (tmp_path / "out").exists()


def test_linear_probe_is_compared_like_recall(twins: str, shop: Path, tmp_path: Path) -> None:
    overrides = [*SMALL, "split.by=images", "epochs=1", "linear_probe=clean"]
    variants = ("plain", "noisy:noise.rate=0.5; linear_probe=noisy")
    found = sweep(tmp_path / "out", twins, variants, overrides=overrides)
    runs = {(run.variant, run.seed): run.scores for run in found.outcomes}
    for seed in SEEDS:
        before = [runs[name, seed]["before"].values for name in ("plain", "noisy")]
        assert before[0]["recall_at_1"] == before[1]["recall_at_1"], "the same untrained network"
        report = Report.load(tmp_path / "out" / "noisy" / f"seed-{seed}")
        assert "24 training images with the noisy labels" in report.notes[-1]
    noisy, plain = (
        [runs[name, seed]["best"].values["linear_probe"] for seed in SEEDS] for name in ("noisy", "plain")
    )
    row = found.rows[1]
    assert row.paired["linear_probe"].difference == pytest.approx(np.mean(noisy) - np.mean(plain))
    if np.ptp(np.subtract(noisy, plain)) > 0:
        assert row.paired["linear_probe"].p == pytest.approx(ttest_rel(noisy, plain).pvalue)
    page = (tmp_path / "out" / "results.md").read_text()
    assert page.splitlines()[2].endswith("| probe | s/step | memory |")
    assert "\n| Linear probe | noisy | 2 | " in page
    with pytest.raises(InputError, match="a linear probe needs training images apart from the test images"):
        sweep(tmp_path / "open", f"folder:{shop}", ("plain",), overrides=overrides)


def test_published_values_are_noted_as_printed(twins: str, tmp_path: Path) -> None:
    published = "published={source: a paper, recall: {1: 66.85}, coarse_recall: {3: 57}, nmi: 59.9}"
    found = sweep(tmp_path, twins, ["plain"], (0,), overrides=(*SMALL, "epochs=1", published))
    assert "For the unchanged recipe, a paper reports R@1 66.85, NMI 59.9, coarse R@3 57.0." in found.notes


def test_linear_probe_has_no_columns_where_it_is_not_measured(finished: Path) -> None:
    assert "robe" not in (finished / "results.md").read_text()
