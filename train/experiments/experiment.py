"""Experiment: settings that several runs share, and plan files that keep them for a resumed command."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml

from retrieval.errors import InputError
from retrieval.files import atomic_write
from train import settings
from train.config import Config
from train.settings import Changes

_T = TypeVar("_T")


@dataclass(frozen=True)
class Experiment:
    """Settings that all variants share, as given to --data, --recipe and --set."""

    data: str | None = None
    recipe: str | None = None
    overrides: Changes = field(default_factory=dict)

    def config(self, changes: Changes | None = None) -> Config:
        """Return the settings of a variant.

        Args:
            changes: Settings that the variant changes. `loss.margin` changes one key of the experiment's
                loss, `loss` replaces it.

        Raises:
            InputError: An unknown setting, or a value that it does not accept.
        """
        return settings.configure(
            self.data, self.recipe, settings.merge_changes(self.overrides, changes or {})
        )

    def notes(self) -> list[str]:
        """Return sentences about the values of automatic settings, before any variant."""
        notes: list[str] = []
        settings.configure(self.data, self.recipe, self.overrides, notes)
        return notes

    def completed(self, kept: Experiment) -> Experiment:
        """Return the experiment with its empty parts taken from another."""
        return Experiment(
            self.data or kept.data, self.recipe or kept.recipe, self.overrides or kept.overrides
        )

    def words(self) -> list[str]:
        """Return the options of the command line that give it."""
        words = ["--data", self.data] if self.data else []
        words += ["--recipe", self.recipe] if self.recipe else []
        return [*words, *option_words("--set", self.overrides)]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for a plan file, with each change as `key=value`."""
        return {
            "data": self.data,
            "recipe": self.recipe,
            "overrides": list(settings.format_changes(self.overrides)),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Experiment:
        """Inverse of `to_dict`; other keys are left alone."""
        return cls(values["data"], values["recipe"], settings.parse_changes(values["overrides"]))


def option_words(option: str, changes: Changes) -> list[str]:
    """Return a repeated option of the command line, once for each change."""
    return [word for text in settings.format_changes(changes) for word in (option, text)]


def seed_words(seeds: Sequence[int]) -> list[str]:
    """Return the option of the command line for seeds."""
    numbers = ",".join(map(str, seeds))
    if len(seeds) == 1:
        return ["--seeds", f"{numbers},"]  # one number alone would be a count
    return ["--seeds", numbers or "0"]


def save_plan(file: Path, values: Mapping[str, Any]) -> None:
    """Write a plan file."""
    with atomic_write(file) as draft:
        draft.write_text(yaml.safe_dump(dict(values), sort_keys=False))


def load_plan(file: Path, what: str, parse: Callable[[Mapping[str, Any]], _T]) -> _T | None:
    """Read a plan file; `None` if there is none.

    Args:
        file: Plan file.
        what: Name of the plan for error messages, such as "sweep".
        parse: Builds the plan from the values of the file.

    Raises:
        InputError: The file cannot be read as a plan.
    """
    if not file.is_file():
        return None
    try:
        return parse(yaml.safe_load(file.read_text()))
    except (yaml.YAMLError, InputError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{file}: not a readable {what} ({error}); choose another --out") from error
