"""The runs of the tables, by the commands of the product."""

from __future__ import annotations

import hashlib
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.experiments.catalogue import Setup, Table, division_name, load_setups, merge
from retrieval.files import atomic_write
from train.experiments.search_space import fill_spaces


@dataclass(frozen=True)
class Job:
    """One table on one setup, and in one division of its classes if the table has divisions.

    Attributes:
        table: The table.
        setup: The setup.
        out: Folder of the results of all jobs.
        division: Number of the division; `None` without.
    """

    table: Table
    setup: Setup
    out: Path
    division: int | None = None

    @property
    def name(self) -> str:
        """Name of the job in the results of its table."""
        return self.setup.name if self.division is None else division_name(self.setup.name, self.division)

    @property
    def folder(self) -> Path:
        """Folder of the results."""
        return self.out / self.table.name / self.name

    @property
    def sweep(self) -> Path:
        """Folder of the runs on the test split."""
        return self.folder / "test" if self.table.trials else self.folder

    def recipe(self) -> dict[str, Any]:
        """Return the settings that all variants share."""
        found = merge(self.setup.settings, self.table.settings, self.table.setups[self.setup.name])
        return found | {"data": found["data"].format(division=self.division)}

    @property
    def digest(self) -> str:
        """Digest of everything that the results depend on, apart from the code."""
        table = self.table
        settings: list[Any] = [table.variants, table.seeds, table.trials, table.folds, table.spaces]
        if table.sizes is not None:
            settings += [table.sizes.classes, table.sizes.images]
        text = json.dumps([self.recipe(), *settings], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def commands(self) -> Iterator[list[str]]:
        """Write the files that a command needs, then yield its words after `lookalike`, one after the other.

        With folds, the final runs are a sweep of what the search has chosen, which holds out no classes.
        """
        recipe, variants = (self.folder.with_suffix(f".{part}.yaml") for part in ("recipe", "variants"))
        _write_yaml(recipe, self.recipe())
        _write_yaml(variants, self.table.variants)
        shared = ["--recipe", str(recipe), "--baseline", self.table.baseline]
        seeds = ["--seeds", str(self.table.seeds)]
        sweep = ["sweep", "--no-baselines", *shared, *seeds, "--variants"]
        if not self.table.trials:
            yield [*sweep, str(variants), "--out", str(self.folder)]
            return
        words = ["tune", "--methods", str(variants), "--trials", str(self.table.trials)]
        for name, space in self.table.spaces.items():
            words += ["--space", f"{name}={yaml.safe_dump(space, default_flow_style=True).strip()}"]
        if not self.table.folds:
            yield [*words, *shared, *seeds, "--out", str(self.folder)]
            return
        yield [*words, *shared, "--folds", str(self.table.folds), "--seeds", "0", "--out", str(self.folder)]
        chosen = self.folder.with_suffix(".chosen.yaml")
        _write_yaml(chosen, self._chosen())
        yield [*sweep, str(chosen), "--out", str(self.sweep)]

    def _chosen(self) -> dict[str, Any]:
        """Return the variants with the values that the search has chosen; failed searches are left out."""
        found = json.loads((self.folder / "tune.json").read_text())
        chosen = {method["name"]: method["chosen"] for method in found["methods"] if method["chosen"]}
        return {
            name: fill_spaces({**self.table.variants[name], **self.table.spaces}, values)
            for name, values in chosen.items()
        }


def jobs(tables: list[Table], out: Path) -> Iterator[Job]:
    """Yield the jobs of some tables: of divisions, the first one of all setups, then the second."""
    setups = load_setups()
    for table in tables:
        for division in range(table.divisions) if table.divisions else (None,):
            for name in table.setups:
                yield Job(table, setups[name], out.resolve(), division)


def run(job: Job, data: Path) -> int:
    """Run or resume a job in the folder of the data; return the exit status."""
    for words in job.commands():
        print(f"(cd {data} && {shlex.join(['lookalike', *words])})", flush=True)
        status = subprocess.run([sys.executable, "-m", "lookalike", *words], cwd=data, check=False).returncode
        if status:
            return status
    return 0


def _write_yaml(file: Path, values: Mapping[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(file) as draft:
        draft.write_text(yaml.dump(dict(values), Dumper=_Plain, sort_keys=False))


class _Plain(yaml.SafeDumper):
    """Dumper without anchors, which readers of the files need not know."""

    def ignore_aliases(self, data: object) -> bool:
        return True
