"""YAML text: files and values of settings, with numbers such as 1e-4."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from retrieval.errors import InputError

# libyaml's parser is ten times as fast; a build of PyYAML without it has the same constructor and resolver.
_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Base):  # type: ignore[misc]
    """YAML loader that reads 1e-4 as a number (YAML 1.1, and so PyYAML, takes it for a string)."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def read_yaml(file: Path, where: str) -> Any:
    """Read a YAML file.

    Args:
        file: Path of the file.
        where: Name of the file in error messages.

    Raises:
        InputError: A file that cannot be read or is not YAML.
    """
    try:
        return parse_yaml(file.read_text(), where)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{where}: cannot be read ({getattr(error, 'strerror', None) or error})") from error


def parse_yaml(text: str, where: str) -> Any:
    """Parse YAML text.

    Raises:
        InputError: The text is not YAML.
    """
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise InputError(f"{where}: not valid YAML ({' '.join(str(error).split())})") from error


def to_line(value: Any) -> str:
    """Return a plain value as YAML on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000, sort_keys=False)
    return text.removesuffix("\n...\n").strip()
