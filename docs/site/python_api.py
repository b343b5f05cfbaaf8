"""Pages of the Python API: the public names of each public module, which mkdocstrings describes."""

from __future__ import annotations

from importlib import import_module

# What scripts import, and what for.
MODULES = {
    "retrieval": "Embed images, build and search galleries",
    "retrieval.metrics": "Measure embeddings",
    "train.losses": "Losses for any training loop",
    "train.data": "Data sets",
    "serve.client": "Client of a server",
}


def pages() -> dict[str, str]:
    """Return an overview and a page for each module, by their places on the site."""
    rows = [f"| [`{module}`](python/{module}.md) | {what} |" for module, what in MODULES.items()]
    introduction = [
        "# Python",
        "",
        "What scripts import; these names are meant to stay. `retrieval` and `serve.client` need no torch.",
        "",
        "| module | for |",
        "|---|---|",
        *rows,
    ]
    return {"python.md": "\n".join(introduction)} | {
        f"python/{module}.md": _page(module, what) for module, what in MODULES.items()
    }


def _page(module: str, what: str) -> str:
    """Return the page of a module: its docstring, then each public name."""
    names = [name for name in import_module(module).__all__ if f"{module}.{name}" not in MODULES]
    own = f"::: {module}\n    options: {{members: false, show_root_heading: false}}"
    parts = [f"# {module}", f"*{what}.*", own]
    return "\n\n".join([*parts, *(f"::: {module}.{name}" for name in names)]) + "\n"
