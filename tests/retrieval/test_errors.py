"""Errors: what of them passes from a process to another one."""

from __future__ import annotations

import pickle
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from retrieval import ImageError, InputError, LookalikeError, load_image
from retrieval.errors import pointing
from serve.client import ApiError


def test_error_of_an_image_passes_a_pool_of_processes(tmp_path: Path) -> None:
    """An error that cannot be read back breaks the pool, with all that it still had to do."""
    missing = str(tmp_path / "missing.png")
    with ProcessPoolExecutor(1) as pool:
        errors = [task.exception() for task in [pool.submit(load_image, missing) for _ in range(2)]]
    for error in errors:
        assert isinstance(error, ImageError)
        assert (error.source, error.reason, str(error)) == (
            missing,
            ImageError.MISSING,
            f"{missing}: there is no such file",
        )


def test_errors_keep_what_they_know() -> None:
    with pytest.raises(InputError) as failed, pointing("#/where"):
        raise InputError("where: no")
    whole = ApiError("busy", 503, "try later", "urn:1", 2.0, {"reason": "x"})
    for error in (failed.value, whole):
        found: LookalikeError = pickle.loads(pickle.dumps(error))
        assert (type(found), str(found), vars(found)) == (type(error), str(error), vars(error))
