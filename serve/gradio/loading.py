"""Import of Gradio, which takes seconds: without the stubs of its components, and beside other threads."""

from __future__ import annotations

import ast
import inspect
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_STUBBED = "gradio.component_meta"  # has the metaclass of components


def import_gradio() -> None:
    """Import Gradio without the stubs of its components, which take half of the time.

    For every component, Gradio parses its own sources and writes a `.pyi` file for editors beside them. It
    leaves out components whose file `inspect` cannot find.
    """
    find = inspect.getfile

    def find_others(object: Any) -> str:
        if type(object).__module__ == _STUBBED:
            raise OSError("no stub is written for it")
        return find(object)

    inspect.getfile = find_others
    try:
        import gradio  # noqa: F401
    finally:
        inspect.getfile = find


@contextmanager
def one_parser() -> Iterator[None]:
    """Let one thread at a time make syntax trees.

    Gradio's import and the headers of NumPy's files make them, and CPython 3.11 counts their depth in one
    place for all threads: "AST constructor recursion depth mismatch".
    """
    parse, lock = ast.parse, threading.Lock()

    def parse_alone(*arguments: Any, **options: Any) -> Any:
        with lock:
            return parse(*arguments, **options)

    ast.parse = parse_alone
    try:
        yield
    finally:
        ast.parse = parse
