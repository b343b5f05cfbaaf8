"""Damaged indexes are never passed to FAISS; the search continues without them."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest

from retrieval.files import sha256_of
from retrieval.search import kinds
from retrieval.search.index import Index, build_index, write_index
from retrieval.search.vectors import Vectors
from retrieval.storage.records import IndexSpec
from tests.retrieval.vectors import brute_force, clustered, snapshot

DIM = 16
VECTORS = clustered(12_000, DIM, 1)  # more than are searched exactly
COVERED = 11_000
QUERIES = clustered(20, DIM, 2)
EXPECTED = brute_force(VECTORS, QUERIES, 10)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the folder of one index of each kind over most of the vectors."""
    found = {}
    for kind in kinds.APPROXIMATE:
        folder = tmp_path_factory.mktemp("indexes") / "indexes"
        folder.mkdir()
        built = build_index(Vectors([VECTORS[:COVERED]], DIM), IndexSpec(kind, recall=0.9))
        assert built is not None
        found[kind] = folder / write_index(built, folder).folder
    return found


def _digests(folder: Path) -> tuple[str, str]:
    return sha256_of(folder / "index.faiss"), sha256_of(folder / "card.json")


def _flip(at: float) -> Callable[[bytes], bytes]:
    def flipped(content: bytes) -> bytes:
        place = int(at * (len(content) - 1))
        return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]

    return flipped


def _refuse(*_: Any) -> None:
    raise AssertionError("handed to FAISS")


@pytest.mark.parametrize("kind", kinds.APPROXIMATE)
@pytest.mark.parametrize(
    ("name", "change"),
    [
        *[("index.faiss", _flip(at)) for at in (0.0, 0.001, 0.3, 1.0)],
        ("index.faiss", lambda content: content[:-1]),
        ("index.faiss", lambda content: content + b"\0"),
        ("index.faiss", lambda content: b""),
        ("card.json", _flip(0.5)),
        ("card.json", lambda content: content.replace(b'"effort": ', b'"effort": 1')),
    ],
)
def test_damaged_index_falls_back_to_exact_search(
    folders: dict[str, Path],
    kind: str,
    name: str,
    change: Callable[[bytes], bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder = shutil.copytree(folders[kind], tmp_path / "shop.gallery" / "indexes" / "one")
    digests = _digests(folder)
    (folder / name).write_bytes(change((folder / name).read_bytes()))
    if name == "index.faiss":
        monkeypatch.setattr(faiss, "read_index", _refuse)
    state = snapshot([VECTORS], index=Index(folder, *digests), covered=COVERED)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            scores, rows = state.nearest(QUERIES, 10)
            np.testing.assert_array_equal(rows, EXPECTED[1])
            np.testing.assert_allclose(scores, EXPECTED[0], rtol=0, atol=1e-6)
    (said,) = caplog.messages
    assert "damaged" in said
    assert "lookalike index verify" in said


def _cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def _foreign(content: bytes) -> bytes:
    return b"IxXX" + content


def _boasting(content: bytes) -> bytes:
    """A file whose header claims 2^32 times its size."""
    return content.replace(COVERED.to_bytes(8, "little"), (2**32 * COVERED).to_bytes(8, "little"))


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        *[(kind, change) for kind in kinds.APPROXIMATE for change in (_cut, _foreign)],
        *[(kind, _boasting) for kind in ("sq8", "pq", "hnsw")],  # the others have no such number
    ],
)
def test_unreadable_index_is_not_used(
    folders: dict[str, Path],
    kind: str,
    change: Callable[[bytes], bytes],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A file of another version of FAISS, or a forged one with matching checksums."""
    folder = shutil.copytree(folders[kind], tmp_path / "shop.gallery" / "indexes" / "one")
    (folder / "index.faiss").write_bytes(change((folder / "index.faiss").read_bytes()))
    before = faiss.get_deserialization_vector_byte_limit()
    state = snapshot([VECTORS], index=Index(folder, *_digests(folder)), covered=COVERED)
    np.testing.assert_array_equal(state.nearest(QUERIES, 10)[1], EXPECTED[1])
    assert f"FAISS {faiss.__version__} cannot read it" in caplog.text
    assert faiss.get_deserialization_vector_byte_limit() == before


@pytest.mark.parametrize("kind", kinds.APPROXIMATE)
def test_intact_index_is_used(folders: dict[str, Path], kind: str, caplog: pytest.LogCaptureFixture) -> None:
    index = Index(folders[kind], *_digests(folders[kind]))
    assert index.usable
    assert index.copied().ntotal == index.faiss.ntotal == COVERED
    assert caplog.messages == []
