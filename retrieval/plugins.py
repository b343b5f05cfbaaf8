"""Plug-ins: losses, metrics, backbones, stores and embedders of other packages, or of one's own files.

A package declares each as an entry point of the group of its kind, such as `lookalike.losses`. It is imported
only for a name that Lookalike itself does not know. A file of one's own, given by `lookalike --import FILE`
or in the variable LOOKALIKE_IMPORT, registers what it has. See docs/plugins.md.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retrieval.errors import InputError, LookalikeError, did_you_mean

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

# Kinds, as in the names of their groups, and what one is called.
KINDS = {
    "losses": "loss",
    "negatives": "source of negatives",
    "miners": "miner",
    "regularizers": "regularizer",
    "metrics": "metric",
    "backbones": "backbone",
    "stores": "kind of store",
    "embedders": "embedder",
}
VARIABLE = "LOOKALIKE_IMPORT"

_registered: dict[str, dict[str, tuple[Any, str]]] = {kind: {} for kind in KINDS}  # with where it is from
_imported: set[str] = set()


def register_plugin(kind: str, name: str, plugin: Any) -> None:
    """Register a plug-in of a file of one's own, in place of an entry point.

    Args:
        kind: One of `KINDS`, such as "metrics".
        name: Its name.
        plugin: What an entry point of the kind refers to.

    Raises:
        ValueError: An unknown kind.
        InputError: The name is taken.
    """
    if kind not in KINDS:
        raise ValueError(f"there is no kind of plug-in {kind!r}; {did_you_mean(kind, KINDS)}")
    where = str(getattr(sys.modules.get(getattr(plugin, "__module__", "")), "__file__", "a program"))
    if name in _registered[kind]:
        raise InputError(f"{KINDS[kind]} {name!r}: registered twice, the second time by {where}")
    _registered[kind][name] = plugin, where


def find_plugin(kind: str, name: str) -> Any | None:
    """Return a plug-in, which is imported now; `None` if there is none of that name.

    Raises:
        InputError: Two distributions give the name, or a file of LOOKALIKE_IMPORT cannot be imported.
        LookalikeError: Its module cannot be imported.
    """
    import_files()
    if name in _registered[kind]:
        return _registered[kind][name][0]
    given = _entry_points(kind).get(name, ())
    if len(given) > 1:
        both = " and ".join(map(_origin, given))
        raise InputError(f"{KINDS[kind]} {name!r}: given by {both}; uninstall all but one")
    for point in given:
        try:
            return point.load()
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            hint = f"repair {_origin(point)}, or uninstall it"
            what = f"{KINDS[kind]} {name!r}: the plug-in {point.value} cannot be imported ({reason}); {hint}"
            raise LookalikeError(what) from error
    return None


def plugin_names(kind: str) -> dict[str, str]:
    """Return the names of the plug-ins of a kind, each with its distribution or file; imports no package."""
    import_files()
    files = {name: where for name, (_, where) in _registered[kind].items()}
    return {name: " and ".join(map(_origin, points)) for name, points in _entry_points(kind).items()} | files


def import_files(files: Iterable[str | Path] = ()) -> None:
    """Import the files of LOOKALIKE_IMPORT, and further ones, which join it: processes import them as well.

    Raises:
        InputError: A file does not exist, or fails.
    """
    named = [path for path in os.environ.get(VARIABLE, "").split(os.pathsep) if path]
    named += [path for file in files if (path := os.path.abspath(file)) not in named]
    for path in named:
        if path not in _imported:
            _import(path)
    if named:
        os.environ[VARIABLE] = os.pathsep.join(named)


def _import(path: str) -> None:
    name = f"lookalike_import_{Path(path).stem}"
    spec = spec_from_file_location(name, path)
    if not os.path.isfile(path) or spec is None or spec.loader is None or name in sys.modules:
        what = (
            "a file of this name was imported before"
            if name in sys.modules
            else "there is no such Python file"
        )
        raise InputError(f"--import {path}: {what}")
    module = module_from_spec(spec)
    sys.modules[name] = module
    _imported.add(path)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        _imported.discard(path)
        del sys.modules[name]
        if isinstance(error, LookalikeError):
            raise
        raise InputError(f"--import {path}: it fails ({type(error).__name__}: {error})") from error


@cache
def _entry_points(kind: str) -> dict[str, tuple[EntryPoint, ...]]:
    from importlib.metadata import entry_points  # slow to import

    found: dict[str, tuple[EntryPoint, ...]] = {}
    for point in sorted(entry_points(group=f"lookalike.{kind}"), key=lambda one: (one.name, _origin(one))):
        found[point.name] = *found.get(point.name, ()), point
    return found


def _origin(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else point.value
