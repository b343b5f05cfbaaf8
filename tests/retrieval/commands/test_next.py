"""Tests of the command that is named at the end of another one."""

from __future__ import annotations

import io
import shlex
from contextlib import redirect_stderr
from pathlib import Path

import pytest

from retrieval.cli import main, print_next
from tests.conftest import lookalike_here


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_is_told_what_comes_next(tmp_path: Path, shop: Path, model_file: Path) -> None:
    gallery = tmp_path / "my shop.gallery"
    with redirect_stderr(_Terminal()) as terminal, pytest.raises(SystemExit) as exited:
        main(["index", "build", str(gallery), str(shop), "--model", str(model_file)])
    assert not exited.value.code
    last = shlex.split(terminal.getvalue().splitlines()[-1])
    assert last == ["next:", "lookalike", "serve", str(gallery)]
    assert lookalike_here("index", "info", str(gallery)).stdout


def test_a_script_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    print_next("serve", "shop.gallery")
    assert capsys.readouterr().err == ""
