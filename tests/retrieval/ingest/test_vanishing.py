"""Ten thousand files that are deleted after they were listed, most of them before they are read."""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from retrieval import Gallery
from retrieval.ingest import sync
from retrieval.upkeep.verify import verify
from tests.conftest import draw, lookalike_here
from tests.serve.model import write_model

COUNT, AT_ONCE = 10_000, 7_000


def keys_of(folder: Path) -> set[str]:
    gallery = Gallery(folder)
    ids = gallery.select(where="id > 0")
    return {item.key for item in gallery.items(ids).values()}


@pytest.mark.slow
def test_files_that_vanish_while_they_are_indexed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read before is there, the others are counted, and the next run forgets what is gone."""
    shop, gone, folder = tmp_path / "shop", tmp_path / "shop" / "gone", tmp_path / "g"
    (shop / "kept").mkdir(parents=True)
    gone.mkdir()
    for number in range(20):
        draw(number, (32, 24)).save(shop / "kept" / f"{number}.png")
    words = [str(folder), str(shop)]
    lookalike_here("index", "build", *words, "--model", str(write_model(tmp_path / "model.onnx")))
    files = [gone / f"{number:05}.png" for number in range(COUNT)]
    for number, file in enumerate(files):
        os.link(shop / "kept" / f"{number % 20}.png", file)

    def delete(some: list[Path]) -> None:
        for file in some:
            file.unlink()

    find_gone, deleting = sync.find_gone, list[Future[None]]()

    def find_and_lose(*given: Any) -> None:
        """All files are listed now."""
        find_gone(*given)
        delete(files[::-1][:AT_ONCE])
        deleting.append(threads.submit(delete, files[: COUNT - AT_ONCE]))

    monkeypatch.setattr(sync, "find_gone", find_and_lose)
    with ThreadPoolExecutor(1) as threads:
        done = lookalike_here("index", "sync", *words, "--max-bad", "1", code=3)
        deleting[0].result()
    monkeypatch.undo()
    assert len(done.stderr.splitlines()) + len(done.stdout.splitlines()) < 100
    kept = {f"kept/{number}.png" for number in range(20)}
    keys = keys_of(folder)
    assert kept <= keys
    read = {Path(key).name for key in keys - kept}
    assert read <= {file.name for file in files[: COUNT - AT_ONCE]}
    assert f"{COUNT - len(read)} file" in done.stderr.replace(",", "")
    assert not verify(folder).problems
    lookalike_here("index", "sync", *words, "--max-removed", "100%")
    assert keys_of(folder) == kept
    assert Gallery(folder).contents.bad_files() == []
