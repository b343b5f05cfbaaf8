"""The runs of the tables, by the commands of the product."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.experiments.catalogue import Setup, Table, load_setups, merge
from retrieval.files import atomic_write


@dataclass(frozen=True)
class Job:
    """One table on one setup.

    Attributes:
        table: The table.
        setup: The setup.
        folder: Folder of the results.
    """

    table: Table
    setup: Setup
    folder: Path

    @property
    def sweep(self) -> Path:
        """Folder of the runs on the test split."""
        return self.folder / "test" if self.table.trials else self.folder

    def recipe(self) -> dict[str, Any]:
        """Return the settings that all variants share."""
        return merge(self.setup.settings, self.table.settings, self.table.setups[self.setup.name])

    def arguments(self) -> list[str]:
        """Write the recipe and the variants beside the folder; return the words after `lookalike`."""
        recipe, variants = (self.folder.with_suffix(f".{part}.yaml") for part in ("recipe", "variants"))
        _write_yaml(recipe, self.recipe())
        _write_yaml(variants, self.table.variants)
        words = ["sweep", "--no-baselines", "--variants", str(variants)]
        if self.table.trials:
            words = ["tune", "--methods", str(variants), "--trials", str(self.table.trials)]
            for name, space in self.table.spaces.items():
                words += ["--space", f"{name}={yaml.safe_dump(space, default_flow_style=True).strip()}"]
        words += ["--recipe", str(recipe), "--baseline", self.table.baseline]
        return [*words, "--seeds", str(self.table.seeds), "--out", str(self.folder)]


def jobs(tables: list[Table], out: Path) -> Iterator[Job]:
    """Yield the jobs of some tables."""
    setups = load_setups()
    for table in tables:
        for name in table.setups:
            yield Job(table, setups[name], out.resolve() / table.name / name)


def run(job: Job, data: Path) -> int:
    """Run or resume a job in the folder of the data; return the exit status."""
    words = job.arguments()
    print(f"(cd {data} && {shlex.join(['lookalike', *words])})", flush=True)
    return subprocess.run([sys.executable, "-m", "lookalike", *words], cwd=data, check=False).returncode


def _write_yaml(file: Path, values: Mapping[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(file) as draft:
        draft.write_text(yaml.dump(dict(values), Dumper=_Plain, sort_keys=False))


class _Plain(yaml.SafeDumper):
    """Dumper without anchors, which readers of the files need not know."""

    def ignore_aliases(self, data: object) -> bool:
        return True
