"""Pages of the Python API: the public names of each public module, which mkdocstrings describes."""

from __future__ import annotations

import re
from inspect import formatannotation
from pkgutil import resolve_name

from pydantic import BaseModel

# What scripts import, and what for.
MODULES = {
    "lookalike": "Embed images, build and search galleries",
    "lookalike.metrics": "Measure embeddings",
    "lookalike.losses": "Losses for any training loop",
    "lookalike.datasets": "Data sets",
    "serve.client": "Client of a server, and its answers",
}


def pages() -> dict[str, str]:
    """Return an overview and a page for each module, by their places on the site."""
    rows = [f"| [`{module}`](python/{module}.md) | {what} |" for module, what in MODULES.items()]
    introduction = [
        "# Python",
        "",
        "What scripts import; these names are meant to stay. only `lookalike.losses` needs torch.",
        "",
        "| module | for |",
        "|---|---|",
        *rows,
    ]
    return {"python.md": "\n".join(introduction)} | {
        f"python/{module}.md": _page(module, what) for module, what in MODULES.items()
    }


def _page(name: str, what: str) -> str:
    """Return the page of a module: its docstring, then each public name."""
    module = resolve_name(name)
    public = [one for one in module.__all__ if f"{name}.{one}" not in MODULES]
    parts = [
        f"# {name}",
        f"*{what}.*",
        f"::: {name}\n    options: {{members: false, show_root_heading: false}}",
    ]
    for one in public:
        parts += [f"::: {name}.{one}", *_fields(getattr(module, one))]
    return "\n\n".join(parts) + "\n"


def _fields(value: object) -> list[str]:
    """Return the fields of a pydantic model as a list, which mkdocstrings leaves out."""
    if not (isinstance(value, type) and issubclass(value, BaseModel)):
        return []
    lines = []
    for name, field in value.model_fields.items():
        kind = re.sub(r"\b[a-z_.]+\.", "", formatannotation(field.annotation))  # without modules
        lines.append(f"- `{name}: {kind}` {field.description or ''}")
    return ["\n".join(lines)]
