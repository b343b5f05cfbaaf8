"""Results of a hyper-parameter search: trials and chosen settings, as tables, JSON and figures."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retrieval import text
from retrieval.files import now, write_texts
from retrieval.reports.figures import figure_bytes
from train import settings
from train.data import LabelledImage
from train.experiments.search_space import Space
from train.experiments.sweep_results import SweepResults
from train.experiments.tuning_plan import TuningPlan
from train.experiments.tuning_search import Trial, best_trial
from train.loop.choice import TITLES
from train.yaml_files import to_line

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from optuna import Study

FORMAT_VERSION = 1
_FEWEST_VALUES = 2
_EPOCHS = {
    "last": "the last epoch, as in the final runs, which hold out no classes and make as many steps",
    "best": "the best epoch on the held-out images, as in the final runs",
}


@dataclass(frozen=True)
class MethodResult:
    """Search of one method.

    Attributes:
        name: Name of the method.
        changes: Its settings as `key=value`, some with a space.
        spaces: Space by setting, with those that all methods share.
        budget: Number of trials to make.
        trials: The finished trials.
        final: Variant of its final runs: its own name, or that of an earlier method with equal chosen
            settings; `None` before the final runs and without a successful trial.
    """

    name: str
    changes: tuple[str, ...]
    spaces: Mapping[str, Space]
    budget: int
    trials: Sequence[Trial]
    final: str | None = None

    @property
    def best(self) -> Trial | None:
        """The best trial; `None` if none has succeeded."""
        return best_trial(self.trials)

    @property
    def ties(self) -> int:
        """Number of trials with the value of the best one."""
        best = self.best
        return 0 if best is None else sum(trial.value == best.value for trial in self.trials)

    @property
    def drawn(self) -> bool:
        """Whether it has a figure: a successful trial with settings that were searched."""
        return self.best is not None and bool(self.spaces)

    @property
    def seconds(self) -> float:
        """Time of all trials."""
        return round(sum(trial.seconds for trial in self.trials), 3)

    @property
    def failed(self) -> list[Trial]:
        """The failed trials."""
        return [trial for trial in self.trials if trial.value is None]

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        best = self.best
        return {
            "name": self.name,
            "changes": list(self.changes),
            "space": {name: space.to_dict() for name, space in self.spaces.items()},
            "budget": {"trials": self.budget, "done": len(self.trials), "seconds": self.seconds},
            "failed": len(self.failed),
            "best": None if best is None else {"value": best.value, "trial": best.number},
            "chosen": None if best is None else best.settings,
            "final": self.final,
            "history": [asdict(trial) for trial in self.trials],
        }


@dataclass(frozen=True)
class TuningResult:
    """Searches of all methods.

    Attributes:
        plan: Plan of the search, for the images of the data set.
        data: Data set, as named by the user.
        command: Command that runs the same search and the final runs.
        kept: Images that a trial is trained on.
        held_out: Images that it is measured on.
        methods: Search of each method.
    """

    plan: TuningPlan
    data: str
    command: str
    kept: Sequence[LabelledImage]
    held_out: Sequence[LabelledImage]
    methods: Sequence[MethodResult]

    def to_dict(self) -> dict[str, Any]:
        """Return the content of tune.json; values are in 0..1."""
        plan = self.plan
        return {
            "format": FORMAT_VERSION,
            "created": now(),
            "data": self.data,
            "command": self.command,
            **{key: getattr(plan, key) for key in ("metric", "epoch", "trials", "folds", "seed")},
            "split": plan.split.model_dump(),
            "training": {"classes": _classes(self.kept), "images": len(self.kept)},
            "held_out": {"classes": _classes(self.held_out), "images": len(self.held_out)},
            "notes": self.notes,
            "methods": [method.to_dict() for method in self.methods],
        }

    @property
    def notes(self) -> list[str]:
        """Remarks for readers, one sentence each."""
        plan, kept, held_out = self.plan, self.kept, self.held_out
        how = f"the mean over {plan.folds} folds" if plan.folds else "one set of held-out images"
        return [
            f"Each method had {text.pluralize(plan.trials, 'trial')}, or one for each of its settings if "
            f"these are fewer. A trial was trained on {len(kept):,} images of {_classes(kept):,} classes and "
            f"measured on {len(held_out):,} held-out images of {_classes(held_out):,} classes ({how}); no "
            "test image was loaded.",
            f"Held-out {TITLES[plan.metric]} is of {_EPOCHS[plan.epoch]}.",
            *(
                f"{method.name} has chosen the settings of {method.final}: the final runs are those of both."
                for method in self.methods
                if method.final not in (None, method.name)
            ),
            *(
                f"{method.name}: every trial has failed, so there are no final runs."
                for method in self.methods
                if len(method.failed) == method.budget
            ),
            *(
                f"{method.name}: {method.ties} of {len(method.trials)} trials have the best value, and the "
                f"first of these is chosen{_of_start(plan)}."
                for method in self.methods
                if method.ties > 1
            ),
            *(
                f"{one.name} and {other.name} have equal values with all equal settings: here they are "
                "probably one method, for example because a class has only two images in a batch."
                for one, other in combinations(self.methods, 2)
                if _are_alike(one, other)
            ),
        ]

    def save(self, folder: Path, comparison: SweepResults | None = None) -> None:
        """Write tune.json and tune.md."""
        markdown = tuning_markdown(self, comparison)
        write_texts(folder, {"tune.json": json.dumps(self.to_dict(), indent=2), "tune.md": markdown})


def _of_start(plan: TuningPlan) -> str:
    """Return what equal values mean where the start counts as an epoch."""
    if plan.epoch != "best":
        return ""
    return (
        "; an experiment that no epoch improves has the value of its start: to tell the settings apart, "
        "measure the last epoch, with --set split.validation=0"
    )


def _classes(images: Sequence[LabelledImage]) -> int:
    return len({image.label for image in images})


# ---- rendering


def tuning_table(result: TuningResult, comparison: SweepResults | None) -> str:
    """Return the searches and the comparison on the test split as plain text."""
    cells = _cells(result)
    lines = [*text.align_columns(cells, right=(1, 2, 3, 4)), "", *result.notes, ""]
    none = "No search has succeeded." if result.plan.seeds else "No final runs."
    return "\n".join([*lines, comparison.to_text() if comparison else none])


def tuning_markdown(result: TuningResult, comparison: SweepResults | None) -> str:
    """Return a Markdown page: search, chosen settings, failures, figures, and the command."""
    head, *rows = _cells(result)
    lines = [f"# Tuning on {result.data}", "", _line(head), _line(["---", *["---:"] * 4, "---"])]
    lines += [*map(_line, rows), ""]
    lines += [paragraph for note in result.notes for paragraph in (note, "")]
    if comparison is not None:
        lines += ["## Test split", "", "See [test/results.md](test/results.md).", ""]
        lines += ["```text", comparison.to_text(), "```", ""]
    for method in result.methods:
        lines += [f"## {method.name}", ""]
        lines += [f"- `{name}`: `{to_line(space.to_dict())}`" for name, space in method.spaces.items()]
        fixed = ", ".join(f"`{change}`" for change in method.changes)
        lines += [f"- settings: {fixed or 'nothing changed'}"]
        lines += [f"- trial {trial.number + 1} failed: {trial.error}" for trial in method.failed]
        lines += ["", f"![Search of {method.name}]({method.name}.svg)", ""] if method.drawn else [""]
    return "\n".join([*lines, "```sh", result.command, "```", ""])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cells(result: TuningResult) -> list[list[str]]:
    head = [
        "method",
        "trials",
        "failed",
        "seconds",
        f"held-out {TITLES[result.plan.metric]}",
        "chosen settings",
    ]
    rows = []
    for method in result.methods:
        best, done = method.best, len(method.trials)
        rows.append(
            [
                method.name,
                f"{done}" if done == method.budget else f"{done}/{method.budget}",
                f"{len(method.failed)}",
                f"{method.seconds:.0f}",
                f"{100 * best.value:.1f}" if best is not None and best.value is not None else "-",
                ", ".join(settings.format_changes(best.settings)) if best is not None else "-",
            ]
        )
    return [head, *rows]


def _are_alike(one: MethodResult, other: MethodResult) -> bool:
    """Return whether two methods have equal values, of at least two kinds, with all shared settings."""
    ours, theirs = ({to_line(t.settings): t.value for t in each.trials if t.value} for each in (one, other))
    shared = ours.keys() & theirs.keys()
    varied = len({ours[key] for key in shared}) >= _FEWEST_VALUES
    return varied and all(ours[key] == theirs[key] for key in shared)


def search_figure(study: Study, metric: str) -> str:
    """Return an SVG of a search: the metric over each searched setting, by Optuna."""
    from matplotlib import pyplot, rc_context
    from optuna.visualization.matplotlib import plot_slice

    def draw() -> Figure:
        warnings.simplefilter("ignore")  # the function is experimental, and one value has no range
        with rc_context({"figure.constrained_layout.use": True}):  # set later, a bar of colours has no height
            plot_slice(study, target_name=f"held-out {TITLES[metric]}")
        figure = pyplot.gcf()
        figure.suptitle(study.study_name)
        for axes in figure.axes:
            axes.tick_params("x", which="both", rotation=90)  # numbers of a logarithmic axis are long
        pyplot.close(figure)  # which would keep it
        return figure

    return figure_bytes(draw).decode()
