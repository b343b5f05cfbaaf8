"""Our other packages, found by the place of their files where a stranger's module has the name of one.

Their names are common words. A script often has a train.py beside it, which comes first on the import path;
and our modules import each other by these names, so ours must be the ones in `sys.modules`.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec, spec_from_file_location

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
# Our packages, each with those that its modules import.
PACKAGES: dict[str, tuple[str, ...]] = {
    "retrieval": (),
    "train": ("retrieval",),
    "serve": ("retrieval",),
    "export": ("retrieval", "train"),
}


def secure(package: str) -> None:
    """Make sure that imports of a package of ours, and of those that it imports, find ours.

    A stranger's module that has been imported goes on working: what it has, and ours lacks, is found under
    the common name as well. One that has not been imported yet is not executed: it may be a program.

    Raises:
        ImportError: A sub-module of a stranger's package was imported by the name of one of ours.
    """
    for name in (*PACKAGES[package], package):
        file = os.path.join(ROOT, name, "__init__.py")
        stranger = sys.modules.get(name)
        if stranger is not None:
            places, origin = list(getattr(stranger, "__path__", ())), getattr(stranger, "__file__", None)
        else:
            spec = PathFinder.find_spec(name)
            if spec is None:  # not by the path: by the finder of an editable installation
                continue
            places, origin = list(spec.submodule_search_locations or ()), spec.origin
        if not origin or os.path.realpath(origin) != os.path.realpath(file):
            _replace(name, file, stranger, places, origin)


def _replace(
    name: str, file: str, stranger: ModuleType | None, places: list[str], origin: str | None
) -> None:
    """Put our package in the place of a stranger's module, imported or only found.

    Args:
        name: The common name.
        file: The `__init__.py` of ours.
        stranger: The imported module.
        places: Folders of a stranger's package.
        origin: The stranger's file; a folder without `__init__.py` has none.
    """
    for loaded, module in list(sys.modules.items()):
        if loaded.startswith(f"{name}.") and _has(loaded):
            place = os.path.realpath(getattr(module, "__file__", None) or "")
            if not place.startswith(os.path.join(ROOT, "")):
                raise ImportError(
                    f"{place}: imported as {loaded!r}, which is the name of a module of Lookalike; rename it"
                )
    folder = os.path.dirname(file)
    spec = spec_from_file_location(name, file, submodule_search_locations=[folder, *places])
    assert spec is not None
    assert spec.loader is not None
    ours = module_from_spec(spec)
    sys.modules[name] = ours
    try:
        spec.loader.exec_module(ours)
    except BaseException:
        del sys.modules[name]
        if stranger is not None:
            sys.modules[name] = stranger
        raise
    own: Callable[[str], Any] | None = vars(ours).get("__getattr__")

    def find(attribute: str) -> Any:
        if own is not None:
            try:
                return own(attribute)
            except AttributeError:
                pass
        if stranger is not None and not attribute.startswith("__") and not _has(f"{name}.{attribute}"):
            return getattr(stranger, attribute)
        hint = f"; {origin} has the same name: rename it, or import it before lookalike"
        raise AttributeError(
            f"module {name!r} of Lookalike has no attribute {attribute!r}{hint if origin else ''}"
        )

    vars(ours)["__getattr__"] = find


def _has(module: str) -> bool:
    """Return whether there is a module of ours of that name."""
    place = os.path.join(ROOT, *module.split("."))
    return os.path.isdir(place) or os.path.isfile(f"{place}.py")
