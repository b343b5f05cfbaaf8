"""Galleries of each kind, and a catalogue of images with what is known of them, to fill them with."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from retrieval import Embedder, Gallery
from retrieval.galleries.database import DatabaseView
from retrieval.galleries.searchable import SearchableGallery
from retrieval.stores.address import PASSWORD
from retrieval.stores.opening import parse_address
from tests.conftest import draw
from tests.retrieval.stores.databases import KINDS as DATABASES
from tests.retrieval.stores.databases import Database
from tests.serve.model import write_model

# Kinds of galleries by name, with their databases of `tests.retrieval.stores.databases`.
KINDS = {
    **{"files": None, "memory": "memory", "postgresql": "postgres"},
    **{"qdrant": "qdrant-edge", "milvus": "milvus"},
}
COUNT = 40
BRANDS = ["acme", "Äcme", "b'b", "zoo", None]


@dataclass(frozen=True)
class Kind:
    """A kind of gallery under test.

    Attributes:
        name: Name, of `KINDS`.
        database: Its database; `None` for files.
    """

    name: str
    database: Database | None

    @property
    def refuses(self) -> frozenset[str]:
        """What it does not have: "like", or to compare "text order"."""
        return frozenset() if self.database is None else self.database.refuses

    def create(self, folder: Path, model: Embedder) -> Gallery:
        """Create an empty gallery."""
        return Gallery.create(folder, model, store=self.database and self.database.new_collection())


@pytest.fixture(scope="session", params=KINDS)
def kind(request: pytest.FixtureRequest, databases: Callable[[str], Database]) -> Iterator[Kind]:
    """Each kind of gallery; the environment has the password of its database."""
    name = KINDS[request.param]
    assert name is None or name in DATABASES
    found = Kind(request.param, None if name is None else databases(name))
    with pytest.MonkeyPatch.context() as patch:
        if found.database is not None:
            patch.setenv(PASSWORD, parse_address(found.database.new_collection()).password)
        yield found


METADATA = ("price", "Brand", "added")


class Row(NamedTuple):
    """An image of the catalogue: its values by column, `None` for a missing one, and its unit vector."""

    values: dict[str, Any]
    vector: np.ndarray

    @property
    def key(self) -> str:
        return str(self.values["key"])

    @property
    def metadata(self) -> dict[str, Any]:
        return {name: self.values[name] for name in METADATA if self.values[name] is not None}


class Catalogue(NamedTuple):
    """Images of three classes, two of them the same, and a table with their metadata."""

    folder: Path
    table: Path
    rows: list[Row]

    def add_to(self, gallery: Gallery) -> Any:
        """Add all images with their metadata."""
        return gallery.add([self.folder], metadata=self.table)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Embedder:
    return Embedder(write_model(tmp_path_factory.mktemp("model") / "model.onnx"))


@pytest.fixture
def catalogue(tmp_path: Path, model: Embedder) -> Catalogue:
    """Images that the test may change."""
    return draw_catalogue(tmp_path / "images", model)


def draw_catalogue(folder: Path, model: Embedder) -> Catalogue:
    """Write the images and the table of a catalogue; vectors are computed one image at a time."""
    rows = []
    for n in range(COUNT):
        path = folder / "rgb"[n % 3] / f"{n}.png"
        path.parent.mkdir(exist_ok=True, parents=True)
        image = draw(0 if n == 3 else n, hue=n % 3)
        image.save(path)
        name = f"{path.parent.name}/{path.name}"
        values = {
            "key": f"item {n}" if n % 4 == 0 else name,
            "path": name,
            "label": path.parent.name,
            "width": image.width,
            "height": image.height,
            "price": None if n % 7 == 0 else (n - 10) * (0.5 if n % 2 else 1),
            "Brand": BRANDS[n % 5],
            "added": None if n % 5 == 0 else f"2024-05-{1 + n % 28:02}T0{n % 9}:00:00+02:00",
        }
        rows.append(Row(values, model.embed([image])[0]))
    table = folder / "table.csv"
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["id", "path", *METADATA])
        writer.writeheader()
        writer.writerows({"id": row.key, "path": row.values["path"], **row.metadata} for row in rows)
    return Catalogue(folder, table, rows)


@pytest.fixture(scope="module")
def filled(
    kind: Kind, model: Embedder, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[SearchableGallery, Catalogue]]:
    """A gallery of a catalogue, and the catalogue; tests only read them."""
    folder = tmp_path_factory.mktemp(kind.name)
    catalogue = draw_catalogue(folder / "images", model)
    gallery = kind.create(folder / "gallery", model)
    catalogue.add_to(gallery)
    yield gallery, catalogue
    close(gallery)


@pytest.fixture
def gallery(kind: Kind, model: Embedder, catalogue: Catalogue, tmp_path: Path) -> Iterator[Gallery]:
    """A gallery of `catalogue`, both of the test's own."""
    found = kind.create(tmp_path / "gallery", model)
    catalogue.add_to(found)
    yield found
    close(found)


def close(gallery: SearchableGallery) -> None:
    """Close the connections of a gallery in a database."""
    if isinstance(gallery, DatabaseView):
        gallery.engine.close()
