"""Tests of the errors of the file system that a user sees."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from retrieval.errors import InputError, describe_os_error
from retrieval.files import atomic_write, check_folder
from tests.conftest import lookalike_here


def test_a_file_in_place_of_a_folder_is_explained(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").touch()
    with pytest.raises(NotADirectoryError) as caught:
        (tmp_path / "photo.jpg" / "run").mkdir()
    described = describe_os_error(caught.value)
    assert described == f"{tmp_path / 'photo.jpg' / 'run'}: not a directory; choose another name"


def test_full_disk_names_the_file_that_was_to_be_written() -> None:
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "from.onnx", None, "to.onnx")
    described = describe_os_error(error)
    assert described == "to.onnx: no space left on device; make room, then run the same command again"


def test_error_of_an_atomic_write_names_the_file_and_not_its_draft(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as missing, atomic_write(tmp_path / "no" / "a.html") as draft:
        draft.touch()
    assert str(missing.value).endswith(f": {str(tmp_path / 'no' / 'a.html')!r}")
    with pytest.raises(OSError, match="No space") as full, atomic_write(tmp_path / "a.html") as draft:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # as writing to a full disk does
    assert str(describe_os_error(full.value)).startswith(f"{tmp_path / 'a.html'}: no space left")
    with pytest.raises(FileNotFoundError) as other, atomic_write(tmp_path / "a.html") as draft:
        (tmp_path / "read.csv").read_text()
    assert other.value.filename == str(tmp_path / "read.csv")
    with pytest.raises(OSError, match=r"^encoder error$"), atomic_write(tmp_path / "a.html") as draft:
        raise OSError("encoder error")


def test_other_errors_are_left_to_the_traceback() -> None:
    assert describe_os_error(ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")) is None
    assert describe_os_error(TimeoutError("timed out")) is None


def test_folders_are_checked_before_long_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_folder(tmp_path / "new" / "report")
    (tmp_path / "photo.jpg").touch()
    with pytest.raises(InputError, match=r"photo\.jpg: it is a file, not a folder"):
        check_folder(tmp_path / "photo.jpg" / "report")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(InputError, match="no files can be written there"):
        check_folder(tmp_path / "new")


def test_evaluate_refuses_a_file_as_its_folder_at_once(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").touch()
    done = lookalike_here("evaluate", "run", "--data", "digits", "--out", str(tmp_path / "photo.jpg"), code=2)
    assert (
        done.stderr
        == f"lookalike: {tmp_path / 'photo.jpg'}: it is a file, not a folder; choose another name\n"
    )
