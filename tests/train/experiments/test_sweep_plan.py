"""Sweep plans: parsing of variants and seeds, sweep.yaml, and merging with a begun sweep."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from retrieval import InputError
from train.experiments.experiment import Experiment
from train.experiments.sweep_plan import SweepPlan, make_sweep_plan, parse_seeds, parse_variants
from train.loop.run_folder import initial_loss

DIGITS = Experiment(
    "digits", None, {"epochs": 3, "loss": {"name": "triplet", "margin": 0.4, "negatives": "batch"}}
)


def test_all_spellings_of_a_variant_are_equivalent(tmp_path: Path) -> None:
    file = tmp_path / "variants.yaml"
    file.write_text("loop: {loss: {negatives: optimal, margin: 0.1}, optimizer: {lr: 1.0e-4}}\n")
    dotted = tmp_path / "dotted.yaml"
    dotted.write_text("loop:\n  loss.negatives: optimal\n  loss.margin: 0.1\n  optimizer.lr: 1e-4\n")
    spellings = [
        parse_variants(["loop:loss.negatives=optimal; loss.margin=0.1;optimizer.lr=1e-4"]),
        parse_variants(["loop:loss.negatives=optimal", "loop:loss.margin=0.1", "loop:optimizer.lr=1e-4"]),
        parse_variants(["loop:loss={name: triplet, negatives: optimal, margin: 0.1}; optimizer={lr: 1e-4}"]),
        parse_variants([], file),
        parse_variants([], dotted),
        parse_variants(["loop:optimizer.lr=1e-4"], file),
    ]
    configs = [DIGITS.config(spelling["loop"]) for spelling in spellings]
    assert configs[0].loss == {"name": "triplet", "margin": 0.1, "negatives": "optimal"}
    assert configs[0].optimizer.lr == 1e-4
    assert configs[0].epochs == 3
    assert configs.count(configs[0]) == len(configs)


def test_loss_with_a_name_replaces_the_experiment_loss(tmp_path: Path) -> None:
    file = tmp_path / "variants.yaml"
    file.write_text("sct: {loss: {name: sct, lam: 0.1}}\nplain:\n")
    found = parse_variants(["sct2:loss={name: sct, lam: 0.1}"], file)
    assert list(found) == ["sct", "plain", "sct2"]
    assert (
        DIGITS.config(found["sct"]).loss == DIGITS.config(found["sct2"]).loss == {"name": "sct", "lam": 0.1}
    )
    assert DIGITS.config(found["plain"]) == DIGITS.config()


def test_part_of_a_loss_with_a_name_replaces_that_part(tmp_path: Path) -> None:
    file = tmp_path / "variants.yaml"
    file.write_text(
        "far: {loss.negatives: {name: symmetric, alpha: 2.5}}\nnested: {loss: {negatives: {name: batch}}}\n"
    )
    found = parse_variants([], file)
    base = {"name": "triplet", "margin": 0.4}
    assert DIGITS.config(found["far"]).loss == {**base, "negatives": {"name": "symmetric", "alpha": 2.5}}
    assert DIGITS.config(found["nested"]).loss == {**base, "negatives": {"name": "batch"}}


def test_key_of_the_default_loss_can_be_changed() -> None:
    config = Experiment("digits").config({"loss.alpha": 0.3})
    assert config.loss == {"name": "multi-similarity", "alpha": 0.3}


def test_semicolon_within_a_value_does_not_end_it() -> None:
    assert parse_variants(['a:wandb="x; y"; epochs=2'])["a"] == {"wandb": "x; y", "epochs": 2}


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("loss.margin=0.3", "cannot name a variant"),
        (":loss.margin=0.3", "cannot name a variant"),
        ("../up:loss.margin=0.3", "cannot name a variant"),
        ("a/b", "cannot name a variant"),
        (".hidden", "cannot name a variant"),
        ("results.json", "cannot name a variant"),
        ("a:", "expected key=value"),
        ("a:epochs", "expected NAME:key=value"),
        ("a:=3", "expected NAME:key=value"),
        ("a:epochs=3;lr", "did you mean|expected an integer|epochs"),
    ],
)
def test_invalid_variant_is_refused(word: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        DIGITS.config(parse_variants([word])["a"])


@pytest.mark.parametrize("text", ["[a, b]", "just words", "a: 3", "a: [loss]", "'x/y': {epochs: 1}", "{", ""])
def test_invalid_variants_file_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "variants.yaml"
    file.write_text(text)
    with pytest.raises(InputError, match=r"--variants .*variants\.yaml"):
        parse_variants([], file)
    with pytest.raises(InputError, match=r"missing\.yaml"):
        parse_variants([], tmp_path / "missing.yaml")


@pytest.mark.parametrize(
    ("text", "seeds"), [("3", (0, 1, 2)), ("0,1,2", (0, 1, 2)), ("7, 5", (7, 5)), ("4,", (4,)), ("1,1", (1,))]
)
def test_seeds_are_a_count_or_a_list(text: str, seeds: tuple[int, ...]) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["0", "-1", "0,-1", "three", "1.5", ",", "0-2"])
def test_invalid_seeds_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="as in 0,1,2"):
        parse_seeds(text)


def test_plan_is_saved_and_extended(tmp_path: Path) -> None:
    first = make_sweep_plan(tmp_path, DIGITS, parse_variants(["a", "b:loss.margin=0.5"]), None, None)
    assert first == SweepPlan(DIGITS, {"a": {}, "b": {"loss.margin": 0.5}}, (0, 1, 2), "a")
    first.save(tmp_path)
    assert make_sweep_plan(tmp_path, Experiment(), {}, None, None) == first
    grown = make_sweep_plan(tmp_path, DIGITS, parse_variants(["c:epochs=9", "b:loss.margin=0.50"]), (7,), "b")
    assert grown.seeds == (0, 1, 2, 7)
    assert list(grown.variants) == ["a", "b", "c"]
    assert grown.baseline == "b"


def test_baselines_are_added_to_a_new_sweep_and_kept(tmp_path: Path) -> None:
    variants = parse_variants(
        [
            "a",
            "b:loss.margin=0.1",
            "c:loss.margin=0.2",
            "mine:loss={name: proxy-anchor}; optimizer.loss_lr=0.01",
        ]
    )
    plan = make_sweep_plan(tmp_path, DIGITS, variants, None, None, with_baselines=True)
    assert plan.added == ("baseline-triplet", "baseline-semi-hard", "baseline-softmax"), "one is in mine"
    assert list(plan.variants) == [*variants, *plan.added]
    assert plan.baseline == "a"
    configs = plan.configs()
    for name in plan.added:
        own = configs[name].model_copy(update={"loss": configs["a"].loss})
        expected = 0.01 if name == "baseline-softmax" else None
        assert own.optimizer.loss_lr == expected
        assert own.model_copy(update={"optimizer": configs["a"].optimizer}) == configs["a"]
        initial_loss(configs[name], 10)
    plan.save(tmp_path)
    assert make_sweep_plan(tmp_path, Experiment(), {}, None, None) == plan
    assert make_sweep_plan(tmp_path, DIGITS, variants, None, None, with_baselines=True) == plan
    with pytest.raises(InputError, match=r"begun with baseline-triplet, .*; leave --no-baselines out"):
        make_sweep_plan(tmp_path, Experiment(), {}, None, None, with_baselines=False)
    words = shlex.split(plan.command(tmp_path))
    assert words.count("--variant") == 4
    assert "--no-baselines" not in words
    assert "--no-baselines" in shlex.split(replace(plan, added=()).command(tmp_path))


def test_sweep_begun_without_baselines_gets_none(tmp_path: Path) -> None:
    make_sweep_plan(tmp_path, DIGITS, {"a": {}}, None, None, with_baselines=False).save(tmp_path)
    again = make_sweep_plan(tmp_path, DIGITS, {}, None, None, with_baselines=True)
    assert (list(again.variants), again.added) == (["a"], ())


def test_baselines_keep_a_rate_of_the_proxies_and_are_no_points_of_a_curve(tmp_path: Path) -> None:
    experiment = Experiment("digits", None, {"optimizer.loss_lr": 0.5})
    variants = parse_variants([f"m{margin}:loss.margin=0.{margin}" for margin in (1, 2, 3)])
    plan = make_sweep_plan(tmp_path, experiment, variants, None, None, with_baselines=True)
    assert len(plan.added) == 4
    assert {config.optimizer.loss_lr for config in plan.configs().values()} == {0.5}
    swept = plan.swept_number()
    assert swept is not None
    assert swept.values == {"m1": 0.1, "m2": 0.2, "m3": 0.3}


def test_invalid_plan_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no variants to compare"):
        make_sweep_plan(tmp_path, DIGITS, {}, None, None)
    with pytest.raises(InputError, match="did you mean 'plain'"):
        make_sweep_plan(tmp_path, DIGITS, {"plain": {}}, None, "plan")
    (tmp_path / "sweep.yaml").write_text("variants: 3")
    with pytest.raises(InputError, match="not a readable sweep"):
        make_sweep_plan(tmp_path, DIGITS, {"plain": {}}, None, None)


def test_sweep_file_and_command_reproduce_the_plan(tmp_path: Path) -> None:
    """The format of sweep.yaml is fixed: a sweep begun by an earlier version can be resumed."""
    changes = parse_variants(
        ["b:loss={name: sct, lam: 0.1}; schedule.at=[3, 5]; wandb=null; optimizer.lr=1e-5"]
    )
    plan = make_sweep_plan(tmp_path, DIGITS, changes, (4,), None)
    plan.save(tmp_path)
    written = yaml.safe_load((tmp_path / "sweep.yaml").read_text())
    assert written["overrides"] == ["epochs=3", "loss={name: triplet, margin: 0.4, negatives: batch}"]
    assert written["variants"] == {
        "b": ["loss={name: sct, lam: 0.1}", "schedule.at=[3, 5]", "wandb=null", "optimizer.lr=1.0e-05"]
    }
    assert SweepPlan.load(tmp_path) == plan
    words = shlex.split(plan.command(tmp_path))
    assert parse_variants([words[words.index("--variant") + 1]]) == plan.variants
    assert plan.command(tmp_path).endswith(f"--baseline b --seeds 4, --out {tmp_path}")


def test_variants_do_not_share_changed_values() -> None:
    wide = DIGITS.config({"loss.margin": 0.9})
    assert (wide.loss["margin"], DIGITS.config().loss["margin"]) == (0.9, 0.4)


def test_last_change_of_a_setting_takes_precedence() -> None:
    found = parse_variants(["a:loss.margin=0.1; loss={name: n-pair}; loss.margin=0.2", "a:epochs=1"])["a"]
    assert list(found.items()) == [("loss", {"name": "n-pair"}), ("loss.margin", 0.2), ("epochs", 1)]


@pytest.mark.parametrize(
    ("variants", "setting", "values"),
    [
        (["a:loss.margin=0.1", "b:loss.margin=1e-1; loss.margin=0.2", "c"], "loss.margin", [0.1, 0.2, 0.4]),
        (["a:batch.per_class=2", "b:batch.per_class=8", "c"], "batch.per_class", [2, 8, 4]),
        (
            ["a:loss={name: raw, mining: {margin: 0.1}}", "b:loss={name: raw, mining: {margin: -0.2}}"],
            None,
            [],
        ),
        (["a:loss.margin=0.1", "b:loss.margin=0.2; epochs=2", "c"], None, []),  # two settings
        (["a:loss.negatives=optimal", "b:loss.negatives=symmetric", "c"], None, []),  # no numbers
        (["a:loss.squared=true", "b:loss.margin=0.2", "c"], None, []),
        (["a:loss.normalize=true", "b:loss.normalize=false", "c"], None, []),  # unset in the third
    ],
)
def test_swept_number_is_the_only_difference(
    variants: list[str], setting: str | None, values: list[float]
) -> None:
    plan = SweepPlan(DIGITS, parse_variants(variants), (0,), "a")
    found = plan.swept_number()
    if setting is None:
        assert found is None
    else:
        assert found is not None
        assert found.setting == setting
        assert found.values == dict(zip("abc", values, strict=True))


def test_swept_number_of_a_published_recipe() -> None:
    """The unchanged recipe has published values, which its changed variants have not."""
    experiment = Experiment("cars196:none", "symm/table2/symm-n-pair-cars196")
    changes = ["a", "b:loss.l2_reg=0.01", "c:loss.l2_reg=0.02"]
    found = SweepPlan(experiment, parse_variants(changes), (0,), "a").swept_number()
    assert found is not None
    assert found.setting == "loss.l2_reg"
