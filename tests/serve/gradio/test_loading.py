"""Import of Gradio without its stubs."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import inspect, pathlib
before = inspect.getfile
read = pathlib.Path.read_text
parsed = []
pathlib.Path.read_text = lambda self, *a, **k: (parsed.append(self.name), read(self, *a, **k))[1]
from serve.gradio.loading import import_gradio
import_gradio()
import gradio
assert inspect.getfile is before
assert inspect.getfile(gradio.Textbox).endswith("textbox.py")
assert gradio.Textbox(label="x").label == "x"
print(sum(name.endswith(("textbox.py", "textbox.pyi")) for name in parsed))
"""


@pytest.mark.slow
def test_gradio_does_not_read_its_own_sources() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.stdout == "0\n", done.stderr
