"""Catalogue of the experiments: one YAML file per table in docs/experiments, which share setups.yaml.

A table trains the same variants on one or more setups (data, backbone and head), by `lookalike sweep`, or by
`lookalike tune` if it has `trials`. Its claims name pairs of variants: first the one that should be better.

A table with `divisions` repeats this for several divisions of the classes of some data sets: its `sets` name
the images, whose lists are IMAGES-division-0.csv and so on, and the setups, which differ in the backbone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retrieval.errors import InputError, did_you_mean
from train.yaml_files import read_yaml

UNTRAINED = ("features", "pca", "pca-whitened", "lda")  # baselines that are measured in every table of heads
RULES = (
    "by-size",
    "one",
    "other-sets",
)  # choices among the variants of a table with sizes, on training classes
ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "experiments"
RESULTS = FOLDER / "results"
_SETUPS = "setups.yaml"


@dataclass(frozen=True)
class Claim:
    """An expectation, of a paper or ours: `better` has a larger `metric` than `than`.

    Attributes:
        source: Paper with table, figure or section; "ours" for a combination that no paper has.
        says: The claim in one sentence.
        better: Variant.
        than: The variant that it is compared with.
        metric: Key of a metric, or "mean_similarity" (collapse: the mean cosine within a batch).
        lower: Whether the smaller value is the better one.
        setups: Setups that the claim is tested on.
    """

    source: str
    says: str
    better: str
    than: str
    metric: str
    lower: bool
    setups: tuple[str, ...]


@dataclass(frozen=True)
class Sizes:
    """Sizes of the parts of the training classes that a table learns from.

    Attributes:
        classes: Numbers of classes; `None` for all.
        images: Largest numbers of images of each class.
        groups: Title of a group of sizes -> the most images that it has in all; `None` for the last.
    """

    classes: tuple[int | None, ...]
    images: tuple[int, ...]
    groups: Mapping[str, int | None]

    def group(self, images: int) -> str:
        """Return the group of a number of images."""
        return next(title for title, most in self.groups.items() if most is None or images <= most)


@dataclass(frozen=True)
class Table:
    """One table: variants, each trained with several seeds on each setup.

    Attributes:
        name: Name of the YAML file and of the results.
        title: Title of the section.
        text: What was measured and how it differs from the paper, in Markdown.
        settings: Settings of all runs, nested.
        setups: Name of the setup -> settings that differ on it.
        variants: Name -> settings, with search spaces if the table is tuned.
        seeds: Number of seeds.
        trials: Trials of each variant in a search; `None` for fixed settings.
        spaces: Search spaces that all variants share, by setting.
        baseline: Variant that the table's differences refer to.
        claims: What the papers expect.
        diagnostics: Names of numbers of metrics.jsonl that the table shows.
        probes: Whether both linear probes are measured, from clean and from noisy labels.
        geometry: Whether the distances of LoOp's points are measured.
        figure: Diagnostic whose course over training is drawn; `None` for a figure of Recall@1 only.
        folds: Folds of the training classes that a search is measured on; 0 for one set of held-out classes.
        divisions: Number of divisions of the classes; 0 for the one of the setup's own list.
        sets: Data set of the divisions, as in the tables -> names of its setups.
        from_scratch: Whether its networks are trained from scratch, all at once on one device (`networks`).
        untrained: Baselines that are measured without training; the first one is that of the figure.
        sizes: Sizes of the parts to learn from; `None` for all training images.
    """

    name: str
    title: str
    text: str
    settings: Mapping[str, Any]
    setups: Mapping[str, Mapping[str, Any]]
    variants: Mapping[str, Mapping[str, Any]]
    seeds: int
    trials: int | None
    spaces: Mapping[str, Any]
    baseline: str
    claims: tuple[Claim, ...]
    diagnostics: tuple[str, ...]
    probes: bool
    geometry: bool
    figure: str | None
    folds: int = 0
    divisions: int = 0
    sets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    from_scratch: bool = False
    untrained: tuple[str, ...] = UNTRAINED
    sizes: Sizes | None = None

    @property
    def has_rules(self) -> bool:
        """Whether rules choose among its variants on training classes."""
        return any(name in RULES for claim in self.claims for name in (claim.better, claim.than))

    @property
    def command(self) -> str:
        """Commands that repeat the table."""
        if self.from_scratch:
            return (
                "python -m benchmarks.experiments pack --data data --out arrays\n"
                "python -m benchmarks.experiments networks --data arrays --out out\n"
                f"make experiments TABLES={self.name} DATA=data OUT=out"
            )
        return f"make experiments TABLES={self.name} DATA=data OUT=out"


@dataclass(frozen=True)
class Setup:
    """Data, backbone and head.

    Attributes:
        name: Its name in the tables.
        title: Its name on the page.
        settings: Settings of a run, nested.
    """

    name: str
    title: str
    settings: Mapping[str, Any]


def division_name(setup: str, division: int) -> str:
    """Return the name of a setup in one division of its classes, in the results."""
    return f"{setup}-division-{division}"


def load_setups(folder: Path = FOLDER) -> dict[str, Setup]:
    """Read setups.yaml."""
    values = read_yaml(folder / _SETUPS, _SETUPS)
    return {name: Setup(name, one["title"], one["settings"]) for name, one in values.items()}


def load_tables(folder: Path = FOLDER) -> dict[str, Table]:
    """Read all tables, in the order that their files give."""
    files = sorted(file for file in folder.glob("*.yaml") if file.name != _SETUPS)
    places = {file: read_yaml(file, file.name) for file in files}
    ordered = sorted(files, key=lambda file: places[file].get("order", 0))
    return {file.stem: _table(file.stem, places[file]) for file in ordered}


def choose_tables(names: tuple[str, ...], folder: Path = FOLDER) -> list[Table]:
    """Return the named tables, or all without names.

    Raises:
        InputError: An unknown name.
    """
    tables = load_tables(folder)
    for name in names:
        if name not in tables:
            raise InputError(f"{name}: no such table; {did_you_mean(name, tables)}")
    return [tables[name] for name in names or tables]


def _table(name: str, values: Mapping[str, Any]) -> Table:
    sets = values.get("sets", {})
    setups = {setup: changes or {} for setup, changes in values.get("setups", {}).items()}
    setups |= {
        setup: {"data": f"csv:{one['images']}-division-{{division}}.csv"}
        for one in sets.values()
        for setup in one["setups"]
    }
    untrained = tuple(values.get("untrained", UNTRAINED))
    sizes = values.get("sizes")
    known = [*values["variants"], *(untrained if sets else ()), *(RULES if sizes else ())]
    known += [f"{name}-last" for name in values["variants"]] if sizes else []
    claims = [
        Claim(
            source=one["source"],
            says=one["says"],
            better=better,
            than=than,
            metric=one.get("metric", "recall_at_1"),
            lower=one.get("lower", False),
            setups=tuple(one.get("setups", setups)),
        )
        for one in values.get("claims", [])
        for better, than in one["pairs"].items()
    ]
    for claim in claims:
        for variant in (claim.better, claim.than):
            if variant not in known:
                raise InputError(f"{name}.yaml: {variant}: no such variant; {did_you_mean(variant, known)}")
    return Table(
        name=name,
        title=values["title"],
        text=values["text"],
        settings=values["settings"],
        setups=setups,
        variants=values["variants"],
        seeds=values["seeds"],
        trials=values.get("trials"),
        spaces=values.get("spaces", {}),
        baseline=values["baseline"],
        claims=tuple(claims),
        diagnostics=tuple(values.get("diagnostics", ())),
        probes=values.get("probes", False),
        geometry=values.get("geometry", False),
        figure=values.get("figure"),
        folds=values.get("folds", 0),
        divisions=values.get("divisions", 0),
        sets={title: tuple(one["setups"]) for title, one in sets.items()},
        from_scratch=values.get("from_scratch", False),
        untrained=untrained,
        sizes=sizes and Sizes(tuple(sizes["classes"]), tuple(sizes["images"]), sizes["groups"]),
    )


def merge(*sections: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested settings as one, the last one first; a `loss` replaces an earlier loss."""
    merged: dict[str, Any] = {}
    for section in sections:
        for key, value in section.items():
            old = merged.get(key)
            if isinstance(old, Mapping) and isinstance(value, Mapping) and key != "loss":
                merged[key] = merge(old, value)
            else:
                merged[key] = value
    return merged
