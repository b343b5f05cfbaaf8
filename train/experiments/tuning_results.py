"""Results of a hyper-parameter search: trials and chosen settings, as tables, JSON and figures."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from retrieval import text
from retrieval.files import now, write_texts
from retrieval.reports.figures import COLOURS, GREY, render_figure
from train import settings
from train.experiments.search import Trial, best_trial
from train.experiments.search_space import Choices, Interval, Space
from train.experiments.sweep_results import SweepResults
from train.loop.choice import TITLES
from train.yaml_files import to_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
            "repeated": sum(trial.repeats is not None for trial in self.trials),
            "best": None if best is None else {"value": best.value, "trial": best.number},
            "chosen": None if best is None else best.settings,
            "final": self.final,
            "history": [trial.to_dict() for trial in self.trials],
        }


@dataclass(frozen=True)
class TuningResult:
    """Searches of all methods.

    Attributes:
        data: Data set, as named by the user.
        command: Command that runs the same search and the final runs.
        metric: Metric on the held-out images that was maximized.
        epoch: Epoch that was measured, "best" or "last".
        trials: Trials of each method.
        folds: Folds of the cross-validation; 0 for one set of held-out classes.
        seed: Seed of the search.
        split: Settings of the held-out images.
        classes: Classes that a trial is trained on and those that are held out.
        images: Images that a trial is trained on and those that are held out.
        methods: Search of each method.
    """

    data: str
    command: str
    metric: str
    epoch: str
    trials: int
    folds: int
    seed: int
    split: Mapping[str, Any]
    classes: tuple[int, int]
    images: tuple[int, int]
    methods: Sequence[MethodResult]

    def to_dict(self) -> dict[str, Any]:
        """Return the content of tune.json; values are in 0..1."""
        return {
            "format": FORMAT_VERSION,
            "created": now(),
            "data": self.data,
            "command": self.command,
            "metric": self.metric,
            "epoch": self.epoch,
            "trials": self.trials,
            "folds": self.folds,
            "seed": self.seed,
            "split": dict(self.split),
            "training": {"classes": self.classes[0], "images": self.images[0]},
            "held_out": {"classes": self.classes[1], "images": self.images[1]},
            "notes": self.notes,
            "methods": [method.to_dict() for method in self.methods],
        }

    @property
    def notes(self) -> list[str]:
        """Remarks for readers, one sentence each."""
        how = f"the mean over {self.folds} folds" if self.folds else "one set of held-out images"
        return [
            f"Each method had {text.pluralize(self.trials, 'trial')}, or one if it has nothing to search. A "
            f"trial was trained on {self.images[0]:,} images of {self.classes[0]:,} classes and measured on "
            f"{self.images[1]:,} held-out images of {self.classes[1]:,} classes ({how}); no test image was "
            "loaded.",
            f"Held-out {TITLES[self.metric]} is of {_EPOCHS[self.epoch]}.",
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

    def save_figure(self, folder: Path, name: str) -> None:
        """Write NAME.svg of a method if a trial of it has succeeded."""
        method = next(method for method in self.methods if method.name == name)
        if method.best is not None:
            write_texts(folder, {f"{name}.svg": search_figure(method, self.metric)})


# ---- rendering


def tuning_table(result: TuningResult, comparison: SweepResults | None) -> str:
    """Return the searches and the comparison on the test split as plain text."""
    cells = _cells(result)
    lines = [*text.align_columns(cells, right=(1, 2, 3, 4)), "", *result.notes, ""]
    return "\n".join([*lines, comparison.to_text() if comparison else "No search has succeeded."])


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
        lines += ["", f"![Search of {method.name}]({method.name}.svg)", ""] if method.best else [""]
    return "\n".join([*lines, "```sh", result.command, "```", ""])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cells(result: TuningResult) -> list[list[str]]:
    head = ["method", "trials", "failed", "seconds", f"held-out {TITLES[result.metric]}", "chosen settings"]
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


def search_figure(method: MethodResult, metric: str) -> str:
    """Return an SVG of a search: the metric by trial, and over each searched setting."""
    panels = 1 + len(method.spaces)
    columns = min(panels, 3)
    size = (4.4 * columns, 3.4 * -(-panels // columns))
    return render_figure(partial(draw_search, method, metric), *size).decode()


def draw_search(method: MethodResult, metric: str, figure: Figure) -> None:
    """Draw the metric by trial with the best so far, and a panel over each searched setting."""
    panels = 1 + len(method.spaces)
    columns = min(panels, 3)
    axes = figure.subplots(-(-panels // columns), columns, squeeze=False).ravel()
    _draw_history(method, axes[0])
    for (name, space), panel in zip(method.spaces.items(), axes[1:], strict=False):
        _draw_slice(method, name, space, panel)
    for panel in axes[panels:]:
        panel.axis("off")
    figure.supylabel(f"held-out {TITLES[metric]} (%)", fontsize=11)
    figure.suptitle(method.name, fontsize=11)


def _draw_history(method: MethodResult, axes: Axes) -> None:
    measured = [(trial.number + 1, 100 * trial.value) for trial in method.trials if trial.value is not None]
    numbers, values = zip(*measured, strict=True)
    leaders = [max(values[: i + 1]) for i in range(len(values))]
    axes.step(numbers, leaders, where="post", color=GREY, lw=1, label="best so far")
    axes.plot(numbers, values, "o", color=COLOURS[0], ms=5, label="trial")
    floor = min(values)
    failed = [trial.number + 1 for trial in method.failed]
    if failed:
        axes.plot(failed, [floor] * len(failed), "x", color=COLOURS[1], ms=6, label="failed")
    _mark_best(method, axes, lambda trial: trial.number + 1)
    axes.locator_params(axis="x", integer=True)
    axes.set_xlabel("trial")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="lower right")


def _draw_slice(method: MethodResult, name: str, space: Space, axes: Axes) -> None:
    measured = [trial for trial in method.trials if trial.value is not None]

    def place(trial: Trial) -> float:
        value = trial.settings[name]
        return float(space.place(value) or 0) if isinstance(space, Choices) else float(value)

    axes.scatter(
        [place(trial) for trial in measured],
        [100 * (trial.value or 0) for trial in measured],
        c=[trial.number for trial in measured],
        cmap="Blues",
        vmin=-len(measured) / 2,  # the first trials are visible too
        edgecolors=COLOURS[0],
        linewidths=0.7,
        s=28,
    )
    _mark_best(method, axes, place)
    if isinstance(space, Choices):
        labels = [to_line(value) for value in space.values]
        axes.set_xticks(range(len(labels)), labels, rotation=20 if max(map(len, labels)) > 8 else 0)
        axes.set_xlim(-0.5, len(labels) - 0.5)
    else:
        if space.log:
            axes.set_xscale("log")
            axes.minorticks_off()
            axes.set_xticks([float(f"{tick:.2g}") for tick in np.geomspace(space.low, space.high, 4)])
            axes.xaxis.set_major_formatter("{x:g}")
        axes.set_xlim(*_beyond(space))
    axes.set_xlabel(name)
    axes.grid(alpha=0.3)


def _beyond(space: Interval) -> tuple[float, float]:
    """Return the ends of an axis that shows all of an interval."""
    if space.log:
        factor = (space.high / space.low) ** 0.05
        return space.low / factor, space.high * factor
    margin = 0.05 * (space.high - space.low)
    return space.low - margin, space.high + margin


def _mark_best(method: MethodResult, axes: Axes, place: Any) -> None:
    best = method.best
    if best is not None and best.value is not None:
        axes.plot(place(best), 100 * best.value, "o", ms=11, mfc="none", mec=COLOURS[1], mew=1.8)
