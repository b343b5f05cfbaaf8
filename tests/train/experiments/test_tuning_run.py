"""Hyper-parameter search: budget, held-out classes, resumption, and the final runs on the test split."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from matplotlib import pyplot as plt
from PIL import Image

from retrieval import InputError
from tests.conftest import draw, lookalike_here
from train.data import load
from train.data.splits import hold_out
from train.experiments.experiment import Experiment
from train.experiments.isolation import DeadProcessError
from train.experiments.search_space import is_space, parse_space
from train.experiments.sweep_plan import parse_variants
from train.experiments.tuning_plan import TuningPlan, make_tuning_plan
from train.experiments.tuning_results import MethodResult, TuningResult, search_figure
from train.experiments.tuning_run import run_tuning
from train.experiments.tuning_search import Search, Trial, best_trial
from train.loop.run_folder import Run
from train.loop.trainer import Trainer
from train.models.embedding_model import pixel_embedder
from train.settings import load_config, parse_changes

SMALL = (
    "preprocess.size=24",
    "model.embedding_dim=8",
    "batch.classes=2",
    "batch.per_class=4",
    "epochs=2",
    "loader.workers=0",
)
TRIPLET = "triplet:loss={name: triplet, negatives: batch, margin: {low: 0.05, high: 0.5, log: true}}"
PROXY = "proxy:loss={name: proxy-anchor}; optimizer.lr={choices: [0.01, 0.001]}"
TRIALS, SEEDS = 4, (1,)


@pytest.fixture(scope="module", autouse=True)
def _undrawn() -> Iterator[None]:
    """Figures are tested elsewhere; here they would take most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        for figure in ("sweep_results.results_figure", "sweep_results.curves_figure"):
            patch.setattr(f"train.experiments.{figure}", lambda *data: "")
        patch.setattr("train.experiments.tuning_run.search_figure", lambda *data: "")
        yield


@pytest.fixture(scope="module")
def hues(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six training classes and three test classes of six images, of one colour: hard to tell apart."""
    folder = tmp_path_factory.mktemp("hues")
    for hue in range(9):
        home = folder / ("train" if hue < 6 else "test") / f"{hue}"
        home.mkdir(parents=True)
        for seed in range(6):
            draw(seed, hue=3 * hue).save(home / f"{seed}.png")
    return folder


def plan(
    folder: Path,
    data: Path,
    methods: Sequence[str] = (TRIPLET, PROXY),
    overrides: Sequence[str] = SMALL,
    **options: Any,
) -> TuningPlan:
    experiment = Experiment(f"folder:{data}", None, parse_changes(overrides))
    found = parse_variants(methods, option="--method", is_value=is_space)
    return make_tuning_plan(folder, experiment, found, **{"trials": TRIALS, "seeds": SEEDS, **options})


def ignore(message: str) -> None:
    pass


def search_only(folder: Path, chosen: TuningPlan) -> dict[str, Any]:
    """Search without the final runs; return tune.json with the messages."""
    messages: list[str] = []

    def stop(message: str) -> None:
        messages.append(message)
        if message.startswith("run 1 of"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_tuning(folder, chosen, stop)
    return {**json.loads((folder / "tune.json").read_text()), "messages": messages}


def without_times(tree: Any) -> Any:
    """Return JSON values of a search without times and what depends on the folder or the final runs."""
    if isinstance(tree, dict):
        return {
            k: without_times(v)
            for k, v in tree.items()
            if k not in ("seconds", "created", "command", "final")
        }
    return [without_times(item) for item in tree] if isinstance(tree, list) else tree


def study(folder: Path, method: str) -> optuna.Study:
    """Return a study as any program that knows Optuna reads it."""
    backend = optuna.storages.journal.JournalFileBackend(str(folder / "search.log"))
    return optuna.load_study(study_name=method, storage=optuna.storages.JournalStorage(backend))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, hues: Path) -> Path:
    """A finished search of two methods, with its final runs."""
    folder = tmp_path_factory.mktemp("tuned") / "out"
    run_tuning(folder, plan(folder, hues), ignore)
    return folder


def test_every_method_gets_the_same_budget(finished: Path) -> None:
    result = json.loads((finished / "tune.json").read_text())
    assert [m["budget"]["trials"] for m in result["methods"]] == [TRIALS, 2], "proxy has two settings"
    for method in result["methods"]:
        history = method["history"]
        assert [trial["number"] for trial in history] == list(range(method["budget"]["trials"]))
        values = [trial["value"] for trial in history]
        assert method["best"]["value"] == max(values)
        assert method["chosen"] == history[values.index(max(values))]["settings"]
        assert method["budget"]["seconds"] == pytest.approx(sum(trial["seconds"] for trial in history))
    proxy = result["methods"][1]
    assert list(proxy["space"]) == ["optimizer.lr"], "its own space replaces the common one"
    assert (result["training"]["classes"], result["held_out"]["classes"]) == (4, 2)


def test_value_of_a_trial_is_map_at_r_of_the_held_out_classes(
    finished: Path, hues: Path, tmp_path: Path
) -> None:
    (trial, *_) = study(finished, "triplet").trials
    settings = {"loss.margin": trial.params["loss.margin"], "optimizer.lr": trial.params["optimizer.lr"]}
    dataset = load(f"folder:{hues}")
    (config,) = plan(tmp_path, hues).fitted(dataset.train).trial_configs("triplet", settings)
    run = Run.start(tmp_path / "run", config)
    Trainer(run, dataset).train()
    _, held_out = hold_out(dataset.train, config.split, config.seed)
    embed = pixel_embedder(run.trained("last"))
    pixels = [config.preprocess(Image.open(image.path).convert("RGB")) for image in held_out]
    vectors = embed(np.stack(pixels))
    expected = map_at_r(vectors, np.array([image.label for image in held_out]))
    assert trial.value == pytest.approx(expected)


def map_at_r(vectors: np.ndarray, labels: np.ndarray) -> float:
    """Compute MAP@R query by query (Musgrave et al. 2020, eqs. 3 and 4)."""
    precisions = []
    for i in range(len(labels)):
        others = sorted((j for j in range(len(labels)) if j != i), key=lambda j: -(vectors[i] @ vectors[j]))
        right = [labels[j] == labels[i] for j in others]
        r = sum(right)
        precisions.append(sum(sum(right[: k + 1]) / (k + 1) for k in range(r) if right[k]) / r)
    return float(np.mean(precisions))


def test_final_runs_have_the_chosen_settings_all_classes_and_equal_steps(finished: Path) -> None:
    result = json.loads((finished / "tune.json").read_text())
    chosen = {method["name"]: method["chosen"] for method in result["methods"]}
    for name in ("triplet", "proxy"):
        config = load_config(finished / "test" / name / "seed-1" / "config.yaml")
        assert config.optimizer.lr == chosen[name]["optimizer.lr"]
        assert config.seed == 1
        assert config.split.validation == 0
        steps = {t["steps"] for m in result["methods"] for t in m["history"]}
        assert {Run(finished / "test" / name / "seed-1").metrics()[-1]["step"]} == steps
    assert (
        load_config(finished / "test/triplet/seed-1/config.yaml").loss["margin"]
        == chosen["triplet"]["loss.margin"]
    )
    assert not list(finished.glob("search/**/*.safetensors")), "checkpoints of trials are deleted"
    assert "![Search of triplet](triplet.svg)" in (finished / "tune.md").read_text()


def test_interrupted_search_makes_the_same_choice(finished: Path, hues: Path, tmp_path: Path) -> None:
    saved = 0
    end_epoch = Trainer._end_epoch

    def interrupt(trainer: Trainer, *progress: Any) -> None:
        nonlocal saved
        end_epoch(trainer, *progress)
        saved += 1
        if saved == 2 * 3 + 2:  # in the third trial, after the first of its two epochs
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "_end_epoch", interrupt)
        patch.setattr("train.experiments.tuning_search.run_isolated", lambda measure, *task: measure(*task))
        with pytest.raises(KeyboardInterrupt, match="triplet, trial 3: interrupted; repeat the command"):
            run_tuning(tmp_path, plan(tmp_path, hues), ignore)
    kept = [trial.user_attrs for trial in study(tmp_path, "triplet").trials]
    assert len(kept) == 2
    assert Run(tmp_path / "search/triplet/trial-002/fold-0").has_checkpoint("last")
    lock = tmp_path / "search.log.lock"
    lock.symlink_to("search.log")  # as a killed process would leave it if this were Optuna's lock
    ours = search_only(tmp_path, plan(tmp_path, hues))
    assert lock.is_symlink(), "not waited for until it was broken"
    lock.unlink()
    assert [trial.user_attrs for trial in study(tmp_path, "triplet").trials[:2]] == kept
    theirs = json.loads((finished / "tune.json").read_text())
    assert without_times({**ours, "messages": None}) == without_times({**theirs, "messages": None})


def test_search_loads_no_test_image(hues: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/train").symlink_to(hues / "train")
    for name in ("6", "7"):
        (tmp_path / "data/test" / name).mkdir(parents=True)
        for number in range(3):
            (tmp_path / "data/test" / name / f"{number}.png").write_bytes(b"no image")
    out = tmp_path / "out"
    watching = (*SMALL, "watch={split: test}", "epochs=1")
    methods = ["one:optimizer.lr=0.001", "two:optimizer.lr={choices: [0.001, 1.0e+30]}"]
    result, comparison = run_tuning(out, plan(out, tmp_path / "data", methods, watching, trials=2), ignore)
    assert [trial.error is None for method in result.methods for trial in method.trials] == [
        True,
        True,
        False,
    ]
    assert comparison is not None
    (failed,) = comparison.failed
    assert "can be read" in str(failed.error), "the final run does read them"
    assert [method.final for method in result.methods] == ["one", "one"], "equal choices"
    assert "two has chosen the settings of one: the final runs" in (out / "tune.md").read_text()


def test_failed_trial_counts_and_the_search_goes_on(hues: Path, tmp_path: Path) -> None:
    wild = "wild:loss={name: triplet}; optimizer={name: sgd, lr: {choices: [1.0e+30, 0.01]}}"
    found = search_only(tmp_path, plan(tmp_path, hues, [wild], (*SMALL, "epochs=1"), trials=2))
    (method,) = found["methods"]
    first, second = method["history"]
    assert first["value"] is None
    assert "lower" in first["error"]
    assert "/" not in first["error"], "no folder, as it is deleted"
    assert second["value"] is not None
    assert method["chosen"] == {"optimizer.lr": 0.01}
    assert "trial 1 of 2: optimizer.lr=1.0e+30: failed" in found["messages"][0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a:loss.margin={low: 2, high: 1}"], "method a: loss.margin: expected low below high"),
        (["a:epochs={low: -2, high: 5}"], "method a: epochs: expected 0 or more, got -2"),
        (["a:epoch={low: 1, high: 5}"], "method a: epoch: .* did you mean 'epochs'"),
        (["a:loss={name: triplet, margn: {low: 1, high: 5}}"], "method a at .*loss: .*did you mean 'margin'"),
        (["a:seed=3"], "method a: seed: cannot differ between methods; use --seed"),
        (["a:split.validation={low: 0.1, high: 0.5}"], "method a: split.validation: cannot differ"),
        ([], "no methods to tune"),
        (["a", "--set", "patience=2"], "patience: the final runs hold out no classes"),
        (["a", "--set", "seed=2"], "--set seed"),
        (["a", "--set", "linear_probe=clean"], "a linear probe needs a closed set"),
        (["a", "--baseline", "b"], "--baseline b"),
        (["a", "--space", "optimizer.lr=3"], "--space optimizer.lr: expected a search space, got 3"),
    ],
    ids=str,
)
def test_unusable_settings_are_refused_before_the_first_trial(
    hues: Path, tmp_path: Path, words: list[str], message: str
) -> None:
    settings = [word for setting in SMALL for word in ("--set", setting)]
    method = ["--trials", "1", "--seeds", "1", *(["--method", *words] if words else [])]
    done = lookalike_here(
        "tune", "--data", f"folder:{hues}", "--out", str(tmp_path / "out"), *settings, *method, code=2
    )
    assert re.search(message, done.stderr), done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("settings", "folds", "epoch", "searched", "final"),
    [
        ((), None, "last", (0.25, 0), (0.0, 0)),
        (("split.validation=0",), None, "last", (0.25, 0), (0.0, 0)),
        (("split.validation=0.4",), None, "best", (0.4, 0), (0.4, 0)),
        (("split={folds: 3, fold: 1}",), None, "best", (0.1, 3), (0.1, 3)),
        ((), 4, "best", (0.1, 4), (0.1, 0)),  # run_cross_validation sets the folds of the final runs
    ],
)
def test_search_measures_what_the_final_runs_will(
    tmp_path: Path,
    settings: tuple[str, ...],
    folds: int | None,
    epoch: str,
    searched: tuple[float, int],
    final: tuple[float, int],
) -> None:
    chosen = plan(tmp_path, tmp_path, [TRIPLET], settings, folds=folds)
    assert chosen.epoch == epoch
    configs = chosen.trial_configs("triplet", chosen.first_values("triplet"))
    assert {(config.split.validation, config.split.folds) for config in configs} == {searched}
    assert [config.split.fold for config in configs] == (list(range(folds)) if folds else [final[1] // 3])
    (run,) = chosen.final_sweep({"triplet": {"optimizer.lr": 1e-3}}).configs().values()
    assert (run.split.validation, run.split.folds) == final


def test_missing_optuna_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("train.commands.tune.find_spec", lambda name: None)
    done = lookalike_here("tune", "--data", "digits", "--method", "a", "--out", str(tmp_path), code=1)
    assert "pip install 'lookalike[tune]'" in done.stderr


def test_data_without_a_test_split_is_refused(hues: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no test split"):
        run_tuning(tmp_path, plan(tmp_path, hues / "train"), ignore)


def test_command_reproduces_the_search_and_changes_are_refused(finished: Path, hues: Path) -> None:
    kept = json.loads((finished / "tune.json").read_text())
    before = (finished / "search.log").read_bytes()
    again = json.loads(lookalike_here(*shlex.split(kept["command"])[1:], "--json").stdout)
    assert again["test"] == {
        **json.loads((finished / "test/results.json").read_text()),
        "created": again["test"]["created"],
    }
    assert {**again, "created": kept["created"], "test": None} == {**kept, "test": None}
    assert (finished / "search.log").read_bytes() == before
    for changed in ({"trials": 5}, {"seed": 1}, {"common": {}}, {"overrides": (*SMALL, "epochs=3")}):
        with pytest.raises(InputError, match=r"begun with .*; methods and seeds may be added"):
            plan(finished, hues, **changed)
    with pytest.raises(InputError, match="other settings of triplet"):
        plan(finished, hues, ["triplet:loss.margin=0.3"])
    assert plan(finished, hues, ["new"], seeds=(5,)).seeds == (1, 5)


# ---- cross-validation


def test_without_seeds_it_only_searches(hues: Path, tmp_path: Path) -> None:
    chosen = plan(tmp_path, hues, [TRIPLET], folds=2, trials=1, seeds=())
    result, found = run_tuning(tmp_path, chosen, ignore)
    assert found is None
    assert result.methods[0].best is not None
    assert not (tmp_path / "test").exists()
    assert shlex.split(chosen.command(tmp_path))[-4:-2] == ["--seeds", "0"]
    assert TuningPlan.load(tmp_path).seeds == ()


def test_cross_validation_matches_brute_force(hues: Path, tmp_path: Path) -> None:
    methods = ["plain:loss={name: triplet, negatives: batch}; optimizer.lr=1e-3"]
    options: dict[str, Any] = {"overrides": (*SMALL, "model.init=pca"), "trials": 3, "folds": 2}
    result, found = run_tuning(tmp_path, plan(tmp_path, hues, methods, **options), ignore)
    (trial,) = result.methods[0].trials  # there is nothing to search
    assert len(trial.curves) == 2
    assert found is not None
    dataset = load(f"folder:{hues}")
    vectors, before, held_out = [], [], []
    for fold in range(2):
        run = Run.open(tmp_path / f"test/folds/plain.fold-{fold}/seed-1")
        config = run.config
        assert (config.split.folds, config.split.fold, config.seed) == (2, fold, 1)
        held_out.append({i.label for i in hold_out(dataset.train, config.split, config.seed)[1]})
        pixels = np.stack([config.preprocess(Image.open(i.path).convert("RGB")) for i in dataset.test])
        vectors.append(pixel_embedder(run.trained("best"))(pixels))
        before.append(pixel_embedder(run.untrained())(pixels))
    assert held_out[0] | held_out[1] == {str(n) for n in range(6)}
    assert not held_out[0] & held_out[1]
    labels = np.array([image.label for image in dataset.test])
    joined = np.concatenate(vectors, axis=1)
    joined /= np.linalg.norm(joined, axis=1, keepdims=True)
    separate, concatenated = found.rows
    assert [row.name for row in found.rows] == ["plain", "plain-concatenated"]
    expected = np.mean([nearest_is_right(each, labels) for each in vectors])
    assert separate.recalls == [pytest.approx(expected)]
    untrained = separate.summary("map_at_r", "before")
    assert untrained is not None
    assert untrained.mean == pytest.approx(np.mean([map_at_r(each, labels) for each in before]))
    assert concatenated.recalls == [pytest.approx(nearest_is_right(joined, labels))]
    again = run_tuning(tmp_path, plan(tmp_path, hues, methods, **options), ignore)[1]
    assert again is not None
    assert again.rows == found.rows, "also when read from the reports"


def nearest_is_right(vectors: np.ndarray, labels: np.ndarray) -> float:
    cosines = vectors @ vectors.T
    np.fill_diagonal(cosines, -2)
    return float((labels[cosines.argmax(1)] == labels).mean())


# ---- the results


def result_of(values: Mapping[str, Sequence[float | None]]) -> TuningResult:
    """Return the result of methods whose trials have the values 0, 1, ... of the only setting."""
    methods = [
        MethodResult(name, (), {}, 3, [Trial(n, {"epochs": n}, value) for n, value in enumerate(found)])
        for name, found in values.items()
    ]
    plan = TuningPlan(Experiment("digits"), {}, {}, 3, (0,), "map_at_r", 0, 0, "a")
    return TuningResult(plan, "digits", "", [], [], methods)


def test_methods_that_are_the_same_here_are_noted() -> None:
    values = {"a": [0.5, 0.6, 0.7], "b": [0.5, None, 0.7], "c": [0.5, 0.6, 0.8], "d": [0.5, None, None]}
    notes = "\n".join(result_of(values).notes)
    assert "a and b have equal values" in notes
    assert notes.count("have equal values") == 1, "one shared trial is too few"
    assert "have the best value" not in notes
    tied = "\n".join(result_of({"a": [0.5, 0.5, 0.4], "b": [0.5, 0.6, 0.5]}).notes)
    assert "a: 2 of 3 trials have the best value, and the first of these is chosen." in tied
    assert "b: 2" not in tied
    failed = result_of({"a": [None] * 3}).notes
    assert "a: every trial has failed, so there are no final runs." in failed


# ---- the figure


def test_figure_has_a_panel_for_each_space_and_the_same_bytes_again(tmp_path: Path) -> None:
    spaces = {
        "optimizer.lr": parse_space({"low": 1e-4, "high": 1e-2, "log": True}, ""),
        "loss.negatives": parse_space({"choices": ["batch", "optimal"]}, ""),
    }
    search = Search("m", tmp_path, spaces, {}, 4, 0, "last", "map_at_r", lambda values: [])
    trials = [
        Trial(0, {"optimizer.lr": 1e-3, "loss.negatives": "batch"}, 0.5),
        Trial(1, {"optimizer.lr": 1e-2, "loss.negatives": "batch"}, None, "diverged"),
        Trial(2, {"optimizer.lr": 5e-4, "loss.negatives": "optimal"}, 0.6),
    ]
    for trial in trials:
        search.study().add_trial(search.frozen(trial))
    assert search.finished() == trials
    drawn = search_figure(search.study(), "map_at_r")
    for words in ("optimizer.lr", "loss.negatives", "batch", "optimal", "held-out MAP@R"):
        assert f"<!-- {words} -->" in drawn.replace("'", "")
    assert search_figure(search.study(), "map_at_r") == drawn
    assert not plt.get_fignums(), "closed"


def test_figure_of_one_space_is_drawn(tmp_path: Path) -> None:
    """Its bar of colours has a layout of its own, which matplotlib 3.11 cannot constrain afterwards."""
    spaces = {"optimizer.lr": parse_space({"low": 1e-4, "high": 1e-2, "log": True}, "")}
    search = Search("m", tmp_path, spaces, {}, 2, 0, "last", "map_at_r", lambda values: [])
    for number in range(2):
        search.study().add_trial(search.frozen(Trial(number, {"optimizer.lr": 1e-3 * (number + 1)}, 0.5)))
    assert "<!-- optimizer.lr -->" in search_figure(search.study(), "map_at_r")


# ---- the sampler


def quadratic(values: Mapping[str, Any]) -> float:
    return 1 - (values["x"] - 0.7) ** 2 - (0.3 if values["kind"] != "good" else 0)


def searched(budget: int, score: Callable[[Mapping[str, Any]], float], seed: int = 0) -> list[Trial]:
    search = Search(
        name="m",
        folder=Path(),
        spaces={
            "x": parse_space({"low": 0.0, "high": 1.0}, ""),
            "kind": parse_space({"choices": ["bad", "worse", "good"]}, ""),
        },
        first={"x": 0.5, "kind": "bad"},
        budget=budget,
        seed=seed,
        epoch="last",
        metric="recall_at_1",
        configs=lambda values: [],
    )
    trials: list[Trial] = []
    for number in range(budget):
        values = search.next_settings(trials)
        assert search.next_settings(trials) == values, "depends on the trials alone"
        failed = values["kind"] == "worse"
        trials.append(
            Trial(number, values, None if failed else score(values), "diverged" if failed else None)
        )
    return trials


def test_sampler_concentrates_on_good_settings() -> None:
    for seed in range(2):
        trials = searched(24, quadratic, seed)
        assert trials[0].settings == {"x": 0.5, "kind": "bad"}
        best = best_trial(trials)
        assert best is not None
        assert best.settings["kind"] == "good"
        assert abs(best.settings["x"] - 0.7) < 0.1
        kinds = [trial.settings["kind"] for trial in trials[12:]]
        assert kinds.count("good") > 6, "and away from failures"
        assert len({str(trial.settings) for trial in trials}) == 24, "nothing is tried twice"
    assert searched(5, quadratic, 1)[1].settings != searched(5, quadratic, 2)[1].settings


def test_few_values_are_all_tried() -> None:
    search = Search(
        name="m",
        folder=Path(),
        spaces={"a": parse_space({"choices": ["x", "y"]}, ""), "b": parse_space({"low": 1, "high": 3}, "")},
        first={"a": "x", "b": 1},
        budget=6,
        seed=0,
        epoch="last",
        metric="map_at_r",
        configs=lambda values: [],
    )
    trials: list[Trial] = []
    for number in range(6):
        trials.append(Trial(number, search.next_settings(trials), number / 10))
    assert {tuple(trial.settings.values()) for trial in trials} == {(a, b) for a in "xy" for b in (1, 2, 3)}


def test_trial_whose_process_dies_counts_as_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*task: object) -> Trial:
        raise DeadProcessError("its process was ended by SIGSEGV")

    monkeypatch.setattr("train.experiments.tuning_search.run_isolated", die)
    search = Search("odd", tmp_path, {}, {}, 1, 0, "last", "map_at_r", lambda values: [])
    search.run(load("digits"), lambda message: None)
    (trial,) = search.finished()
    assert (trial.value, trial.error) == (None, "its process was ended by SIGSEGV")
