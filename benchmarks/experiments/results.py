"""Results of the tables: from the folders of sweeps and searches to one compact JSON file a table.

The files hold the values of every seed, so that each number and test of the page can be computed again, and
no path of the machine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import chdir
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.experiments.catalogue import RESULTS, UNTRAINED, Table, load_setups
from benchmarks.experiments.divisions import METRICS
from benchmarks.experiments.geometry import arc_geometry
from benchmarks.experiments.runs import Job, run
from retrieval import metrics
from retrieval.errors import InputError
from retrieval.files import write_texts
from train import data
from train.config import ProbeLabels
from train.data import DataSet
from train.experiments.linear_probe import check_closed_set, probe_images
from train.experiments.references import OFF_THE_SHELF, evaluate_reference
from train.experiments.targets import open_target
from train.loop.run_folder import Run
from train.settings import parse_config

FORMAT = 1
_KINDS = {"features": OFF_THE_SHELF}  # the other baselines have the same name there
_METRICS = ("recall_at_1", "map_at_r", "nmi", "f1", "linear_probe")
_LAST_RECORDS = 5  # of metrics.jsonl: the number after training
_CURVE_POINTS = 20
_DIGITS = 5


def collect(jobs: Iterable[Job], data_folder: Path) -> dict[str, Any]:
    """Return the results of the finished runs of one table.

    Args:
        jobs: The table on each of its setups.
        data_folder: Folder of the data sets.
    """
    setups = {}
    with chdir(data_folder):
        for job in jobs:
            if (job.sweep / "results.json").is_file():
                setups[job.name] = _setup(job)
    return {"format": FORMAT, "setups": setups}


def collect_networks(table: Table, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the results of a table in the form of the other tables: the runs on the test classes.

    A method counts in a division once all its seeds are measured there; a run whose loss was not a number
    counts with what its network is worth.

    Args:
        table: A table of networks that are trained from scratch.
        records: Lines of its file; of two of the same run the first one counts.
    """
    plan = next((line for line in records if line["kind"] == "plan"), None)
    setups = load_setups()
    cells = {}
    for division in range(table.divisions):
        for setup in table.setups:
            own = [
                line
                for line in records
                if line["kind"] == "run" and (line["setup"], line["division"]) == (setup, division)
            ]
            job = Job(table, setups[setup], Path(), division)
            variants = {name: _network(table, own, name) for name in table.variants}
            variants = {name: one for name, one in variants.items() if one}
            first = table.untrained[0]
            untrained = [line for line in own if line["variant"] == first]
            if variants:
                cells[job.name] = {
                    "settings": job.digest,
                    "untrained": {first: _mean(untrained)} if untrained else {},
                    "variants": variants,
                }
    return {"format": FORMAT, "plan": plan, "setups": cells}


def _network(table: Table, runs: Sequence[Mapping[str, Any]], name: str) -> dict[str, Any]:
    """Return the results of a method in a division; empty if a seed is missing."""
    own = [line for line in runs if line["variant"] == name]
    by_seed = {line["seed"]: line for line in reversed(own) if not line["choosing"]}
    if len(by_seed) < table.seeds:
        return {}
    tested = [by_seed[seed] for seed in sorted(by_seed)]
    diagnostics = {key: [line[key] for line in tested] for key in table.diagnostics}
    tried = [line for line in own if line["choosing"]]
    return {
        "seeds": sorted(by_seed),
        "last": {key: [line[key] for line in tested] for key in METRICS},
        "diagnostics": {key: values for key, values in diagnostics.items() if None not in values},
        "chosen": {"optimizer.lr": tested[0]["lr"]},
        "trials": [{"optimizer.lr": line["lr"], "value": line["map_at_r"]} for line in tried],
    }


def _mean(runs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    return {key: sum(line[key] for line in runs) / len(runs) for key in METRICS}


def is_collected(job: Job, folder: Path = RESULTS) -> bool:
    """Return whether the results of a table have those of a division, by the same settings."""
    found = load(job.table.name, folder)
    return found is not None and found["setups"].get(job.name, {}).get("settings") == job.digest


def complete(job: Job, data_folder: Path, folder: Path = RESULTS) -> int:
    """Run a division and add it to the results of its table, unless they have it; return the exit status."""
    if is_collected(job, folder):
        return 0
    if job.table.sizes is not None:
        from benchmarks.experiments.sizes import measure

        with chdir(data_folder):
            ours: dict[str, Any] = {"format": FORMAT, "setups": {job.name: measure(job)}}
        status = 0
    else:
        status = run(job, data_folder)
    if status == 0:
        if job.table.sizes is None:
            ours = collect([job], data_folder)
        kept = load(job.table.name, folder) or {"setups": {}}
        save(job.table.name, ours | {"setups": kept["setups"] | ours["setups"]}, folder)
    return status


def save(name: str, results: Mapping[str, Any], folder: Path = RESULTS) -> Path:
    """Write the results of a table; return the file."""
    folder.mkdir(parents=True, exist_ok=True)
    write_texts(folder, {f"{name}.json": _text(_rounded(results)) + "\n"})
    return folder / f"{name}.json"


def load(name: str, folder: Path = RESULTS) -> dict[str, Any] | None:
    """Read the results of a table; `None` if there are none."""
    file = folder / f"{name}.json"
    found: dict[str, Any] | None = json.loads(file.read_text()) if file.is_file() else None
    return found


def _setup(job: Job) -> dict[str, Any]:
    found = json.loads((job.sweep / "results.json").read_text())
    dataset = data.load(job.recipe()["data"])
    chosen = _chosen(job)
    variants = {}
    for row in found["variants"]:
        name = row["name"]
        runs = [one for one in found["runs"] if one["variant"] == name and one["status"] == "done"]
        if runs:
            variants[name] = _variant(job, dataset, name, runs) | chosen.get(name, {})
    return {
        **({} if job.division is None else {"settings": job.digest}),
        "protocol": found["protocol"],
        "untrained": _untrained(job, dataset),
        "train": {"images": len(dataset.train), "classes": len({image.label for image in dataset.train})},
        "failed": sorted({run["variant"] for run in found["runs"] if run["status"] == "failed"}),
        "variants": variants,
    }


def _untrained(job: Job, dataset: DataSet) -> dict[str, dict[str, float]]:
    """Return the metrics of the baselines without training; empty for a network that is trained."""
    config = parse_config(job.recipe())
    if config.model.trainable != 0:
        return {}
    labels = _probe_labels(dataset)
    found = {}
    for name in UNTRAINED:
        values = evaluate_reference(_KINDS.get(name, name), config, dataset, linear_probe=labels)
        assert values is not None, "there are fewer images than dimensions"
        found[name] = {key: values[key] for key in _METRICS if key in values}
        if labels is not None:
            found[name]["probe_clean"] = found[name].pop("linear_probe")
    return found


def _probe_labels(dataset: DataSet) -> ProbeLabels | None:
    """Return the labels of a linear probe for a closed set, or `None`."""
    try:
        check_closed_set(dataset)
    except InputError:
        return None
    return "clean"


def _variant(job: Job, dataset: DataSet, name: str, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {"seeds": [run["seed"] for run in runs]}
    for which in ("before", "last"):
        scores = [run["scores"].get(which, {}) for run in runs]
        keys = [key for key in _METRICS if all(key in score for score in scores)]
        values[which] = {key: [score[key] for score in scores] for key in keys}
    times = [run["seconds_per_step"] for run in runs if run["seconds_per_step"]]
    values["seconds_per_step"] = float(np.median(times)) if times else None
    folders = [job.sweep / name / f"seed-{run['seed']}" for run in runs]
    records = [Run(folder).metrics() for folder in folders]
    values["diagnostics"] = _diagnostics(job, records)
    if job.table.figure is not None:
        values["curve"] = _curve(job.table.figure, records)
    if job.table.probes and folders[0].is_dir():
        values["last"] |= _both_probes(folders, dataset)
    if job.table.geometry:
        values["geometry"] = _geometry(job, folders[0], dataset)
    return values


def _diagnostics(job: Job, records: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, list[float]]:
    """Return the mean of the last records of each diagnostic, for each run."""
    found = {}
    for key in ("mean_similarity", *job.table.diagnostics):
        numbers = [[one[key] for one in run if key in one][-_LAST_RECORDS:] for run in records]
        if all(numbers):
            found[key] = [float(np.mean(run)) for run in numbers]
    return found


def _curve(key: str, records: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, list[float]]:
    """Return the course of a diagnostic: means over runs and over equal parts of the training."""
    runs = [[(one["step"], one[key]) for one in run if key in one] for run in records]
    if not all(runs):
        return {}
    length = min(map(len, runs))
    parts = np.array_split(np.arange(length), min(_CURVE_POINTS, length))
    numbers = np.array([run[:length] for run in runs], float).mean(0)  # [records, 2]
    means = [numbers[part].mean(0) for part in parts]
    return {"step": [float(mean[0]) for mean in means], "value": [float(mean[1]) for mean in means]}


def _both_probes(folders: Sequence[Path], dataset: DataSet) -> dict[str, list[float]]:
    """Return the accuracy of linear classifiers learnt from the true and from the wrong labels, in 0..1."""
    found: dict[str, list[float]] = {"probe_clean": [], "probe_noisy": []}
    for folder in folders:
        run = Run.open(folder)
        candidate = open_target(folder, "last").candidates[0]
        embedded = {}
        for split, images in (("train", dataset.train), ("test", dataset.test)):
            paths = [image.path for image in images]
            embedded[split] = candidate.embed(paths, paths, split, show_progress=False).vectors
        truth = np.array([image.label for image in dataset.test])
        given = {image.path: image.label for image in dataset.train}
        learnt = [given]
        if run.config.noise.rate:
            drawn, _ = probe_images(run.config.to_dict(), dataset, "noisy")
            learnt.append({image.path: image.label for image in drawn})
        labels = [np.array([names[path] for path in given]) for names in learnt]
        accuracy = [metrics.linear_probe(embedded["train"], one, embedded["test"], truth) for one in labels]
        found["probe_clean"].append(accuracy[0])
        found["probe_noisy"].append(accuracy[-1])
    return found


def _geometry(job: Job, folder: Path, dataset: DataSet) -> dict[str, float]:
    """Measure the training images of one run, in batches like those of training."""
    candidate = open_target(folder, "last").candidates[0]
    paths = [image.path for image in dataset.train]
    vectors = candidate.embed(paths, paths, "train", show_progress=False).vectors
    _, labels = np.unique([image.label for image in dataset.train], return_inverse=True)
    batch = Run.open(folder).config.batch
    return arc_geometry(vectors, labels, batch.classes, batch.per_class, seed=0)


def _chosen(job: Job) -> dict[str, dict[str, Any]]:
    """Return the chosen settings of each variant and Recall@1 on the held-out classes of every trial."""
    file = job.folder / "tune.json"
    if not file.is_file():
        return {}
    return {
        method["name"]: {
            "chosen": method["chosen"],
            "trials": [{**trial["settings"], "value": trial["value"]} for trial in method["history"]],
        }
        for method in json.loads(file.read_text())["methods"]
    }


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else value


def _text(results: Mapping[str, Any]) -> str:
    """Return JSON text with every list of numbers on one line, or every division, of which there are many."""
    if not all("settings" in one for one in results["setups"].values()):
        return _short_lists(json.dumps(results, indent=1))
    lines = [f"  {json.dumps(name)}: {json.dumps(one)}" for name, one in results["setups"].items()]
    text = json.dumps({**results, "setups": {}}, indent=1)
    return text.replace('"setups": {}', '"setups": {\n' + ",\n".join(lines) + "\n }")


def _short_lists(text: str) -> str:
    """Return JSON text with every list of numbers on one line."""
    return re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", lambda found: f"[{' '.join(found[1].split())}]", text)
