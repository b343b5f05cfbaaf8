"""The manifest of a gallery: the facts about it as a whole, stored in the table `meta`."""

from __future__ import annotations

import json
import re
import sqlite3
import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retrieval.errors import InputError, LookalikeError
from retrieval.files import write_texts
from retrieval.model.precision import Precision
from retrieval.storage.records import PICTURE, IndexSpec
from retrieval.storage.schema import FORMAT_VERSION

_INDEX_SPEC = "index_wish"  # its name in the database
COPY = "gallery.json"
_CONSTANT = {"metric": "cosine"}
DTYPES = ("float32", "float16")
_UNITS = ("product", "variant", "objects", "detector")


def _new_uuid() -> str:
    return str(uuid.uuid4())


@dataclass(frozen=True)
class Manifest:
    """Facts about a gallery as a whole.

    Attributes:
        fingerprint: SHA-256 of the model file whose vectors the gallery holds; "embedding:NAME" for vectors
            of an external embedding.
        dim: Dimension of the vectors.
        embedding: Name of the external embedding that the vectors come from; `None` for a gallery with its
            own model file.
        decode_policy: Version of the rules by which images were decoded, see `retrieval.images.load`.
        probes_sha256: SHA-256 of the file with the model's vectors of the probe images.
        provider: Execution provider that computed these vectors, by ONNX Runtime's name; `None` if unknown.
        precision: Precision of the model on a GPU, and the measurement behind it; `None`, which is fp32, if
            it was not measured.
        rebuilt_from: uuid of the gallery that this one replaces, if it is a rebuild.
        projected_from: uuid of the gallery that this one replaces, if a layer changed its vectors, which
            kept their numbers.
        bridged: Highest number of a vector that a map made from one of the model before, while not all images
            are embedded with this model; see `retrieval.upkeep.bridge`.
        index_spec: Specification of the index; the default for the next one.
        dtype: Type of the stored numbers, one of `DTYPES`.
        product: Column of the product that an image is a view of; `None` if images are not of products.
        variant: Column of the variant of the product, such as its colour; `None` if products have none.
        objects: Parts of each picture are items beside it; see `retrieval.ingest.picture_parts`.
        detector: SHA-256 of the detector whose boxes the parts are; `None` for tiles.
        revision: Number of changes of these facts since the gallery was created.
        uuid: Random id of the gallery.
        format_version: Version of the gallery format.
    """

    fingerprint: str
    dim: int
    embedding: str | None = None
    decode_policy: int | None = None
    probes_sha256: str | None = None
    provider: str | None = None
    precision: Precision | None = None
    rebuilt_from: str | None = None
    projected_from: str | None = None
    bridged: int | None = None
    index_spec: IndexSpec = IndexSpec()  # noqa: RUF009
    dtype: str = "float32"
    product: str | None = None
    variant: str | None = None
    objects: bool = False
    detector: str | None = None
    revision: int = 0
    uuid: str = field(default_factory=_new_uuid)
    format_version: int = FORMAT_VERSION

    @property
    def has_model(self) -> bool:
        """Whether the gallery has a model file to embed images with."""
        return self.embedding is None

    @property
    def allows_tf32(self) -> bool:
        """Whether the model may round to TF32 on a GPU."""
        return self.precision is not None and self.precision.allows_tf32

    @property
    def parts(self) -> str | None:
        """How pictures are divided: "tiles" or "detector SHA-256"; `None` if they are not."""
        return None if not self.objects else "tiles" if self.detector is None else f"detector {self.detector}"

    @property
    def units(self) -> dict[str, Any]:
        """What hits are besides images: facts of products and of parts of pictures, if not empty."""
        return _given({name: getattr(self, name) or None for name in _UNITS})

    def is_product(self, column: str | None) -> bool:
        """Return whether a column is that of the products."""
        return column is not None and self.product is not None and column.lower() == self.product.lower()

    def variant_of(self, column: str | None) -> str | None:
        """Return the column of the variants in groups by a column; `None` if they have none."""
        return self.variant if self.is_product(column) else None

    def rows(self) -> dict[str, str]:
        """Return the facts as rows of the table `meta`: JSON by name."""
        facts = {
            "format_version": self.format_version,
            "gallery_uuid": self.uuid,
            "fingerprint": self.fingerprint,
            "dim": self.dim,
            "embedding": self.embedding,
            "decode_policy": self.decode_policy,
            "probes_sha256": self.probes_sha256,
            "provider": self.provider,
            "precision": self.precision and self.precision.as_dict(),
            "rebuilt_from": self.rebuilt_from,
            "projected_from": self.projected_from,
            "bridged": self.bridged,
            "dtype": self.dtype,
            **self.units,
            "revision": self.revision,
            _INDEX_SPEC: _given(vars(self.index_spec)) or None,
            **_CONSTANT,
        }
        return {name: json.dumps(value) for name, value in _given(facts).items()}


def check_dtype(storage: str | None) -> None:
    """Raise an `InputError` for an unknown type of stored numbers; `None` is any."""
    if storage not in (None, *DTYPES):
        raise InputError(f"storage {storage!r}: unknown; known: {', '.join(DTYPES)}")


def known_units(found: Mapping[str, object], columns: Collection[str]) -> dict[str, Any]:
    """Return `Manifest.units` as a file from elsewhere names them, as far as a gallery can have them.

    Args:
        found: What the file says.
        columns: Columns of the gallery's items.
    """
    known, named = [*columns], (found.get("product"), found.get("variant"))
    product, variant = (name if name in known else None for name in named)
    objects = found.get("objects") is True and PICTURE in known
    detector = str(found.get("detector", ""))
    facts = {
        "product": product,
        "variant": variant if product is not None and variant != product else None,
        "objects": objects or None,
        "detector": detector if objects and re.fullmatch("[0-9a-f]{64}", detector) else None,
    }
    return _given(facts)


def parse_manifest(folder: Path | str, rows: Iterable[tuple[str, str]]) -> Manifest:
    """Return the manifest from the rows of the table `meta`.

    Raises:
        InputError: The gallery has another format.
        LookalikeError: The rows are damaged.
    """
    try:
        facts: dict[str, Any] = {name: json.loads(value) for name, value in rows}
        version = int(facts["format_version"])
        if version != FORMAT_VERSION:
            hint = "update lookalike" if version > FORMAT_VERSION else "build the gallery again"
            what = f"gallery format {version} is not supported (this version reads {FORMAT_VERSION})"
            raise InputError(f"{folder}: {what}; {hint}")
        return Manifest(
            fingerprint=str(facts["fingerprint"]),
            dim=int(facts["dim"]),
            embedding=facts.get("embedding"),
            decode_policy=facts.get("decode_policy"),
            probes_sha256=facts.get("probes_sha256"),
            provider=facts.get("provider"),
            precision=Precision.from_dict(precision) if (precision := facts.get("precision")) else None,
            rebuilt_from=facts.get("rebuilt_from"),
            projected_from=facts.get("projected_from"),
            bridged=facts.get("bridged"),
            index_spec=IndexSpec(**facts.get(_INDEX_SPEC, {})),
            dtype=str(facts["dtype"]),
            product=facts.get("product"),
            variant=facts.get("variant"),
            objects=bool(facts.get("objects")),
            detector=facts.get("detector"),
            revision=int(facts.get("revision", 0)),
            uuid=str(facts["gallery_uuid"]),
            format_version=version,
        )
    except (KeyError, TypeError, ValueError, RecursionError, OverflowError) as error:
        raise LookalikeError(
            f"{folder}: the gallery's database is damaged; restore it from a copy"
        ) from error


def write_manifest(db: sqlite3.Connection, manifest: Manifest, previous: Manifest | None = None) -> None:
    """Write the facts that differ from a previous manifest, inside a transaction."""
    before, after = {} if previous is None else previous.rows(), manifest.rows()
    changed = [(name, value) for name, value in after.items() if before.get(name) != value]
    db.executemany("DELETE FROM meta WHERE key = ?", [(name,) for name in before if name not in after])
    db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", changed)


def write_copy(folder: Path, manifest: Manifest) -> None:
    """Write the copy of the manifest, from which a lost database is rebuilt."""
    write_texts(folder, {COPY: json.dumps(manifest.rows(), indent=2)})


def read_copy(folder: Path) -> Manifest | None:
    """Return the manifest from its copy; `None` if that is missing or damaged."""
    try:
        rows = json.loads((folder / COPY).read_text())
        return parse_manifest(folder, rows.items())
    except (OSError, ValueError, AttributeError, RecursionError, LookalikeError):
        return None


def is_outdated(folder: Path, manifest: Manifest) -> bool:
    """Return whether the copy of a manifest is of an earlier revision, since a process was killed.

    The next writer renews it. A copy that differs otherwise is damaged.
    """
    copy = read_copy(folder)
    return copy is not None and copy.uuid == manifest.uuid and copy.revision < manifest.revision


def _given(facts: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if value is not None}
