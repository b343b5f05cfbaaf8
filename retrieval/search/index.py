"""FAISS indexes over a gallery's vectors: building, extending, storing and opening them."""

from __future__ import annotations

import json
import logging
import os
import threading
import uuid
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from retrieval.errors import InputError, LookalikeError
from retrieval.files import atomic_write, sha256_of
from retrieval.search import kinds, tuning
from retrieval.search.tuning import IndexTrial
from retrieval.search.vectors import Vectors
from retrieval.storage.records import ActiveIndex, IndexSpec
from retrieval.text import printable

KINDS = kinds.NAMES
RECALL = 0.99
EXACT_UP_TO = 50_000
_MAX_GROWTH = 4  # growth of the gallery since the kind was chosen, beyond which it is chosen again
_MAX_EFFORT_GROWTH = 4  # growth of the required effort, beyond which the index is trained again
_MIN_QUERIES = 100  # number of queries from which the recall of new vectors can be measured
_log = logging.getLogger("lookalike.retrieval")
_reading = threading.Lock()  # FAISS's limit on what it reads is set for the whole process


@dataclass(frozen=True)
class BuiltIndex:
    """A new index in memory, with its card.

    Attributes:
        index: FAISS index whose ids are vector numbers.
        last: Highest vector number that it covers.
        card: kind, effort, oversample, recall (measured), recall_wanted, memory_wanted, chosen_for (number of
            vectors when the kind was chosen), ms, bytes_per_vector, and tried: the trials as plain values.
    """

    index: faiss.Index
    last: int
    card: dict[str, Any]


class Index:
    """An index on disk, read and checked on first use; memory-mapped, so that processes share it.

    Its files are held open from the start, so a writer that deletes them does not affect it.

    Args:
        folder: Folder with `index.faiss` and `card.json`.
        sha256, card_sha256: SHA-256 of the two files.

    Raises:
        LookalikeError: A file is missing.
    """

    def __init__(self, folder: Path, sha256: str, card_sha256: str) -> None:
        self.folder, self._sha256, self._card_sha256 = folder, sha256, card_sha256
        self._repair = f"rebuild it with `lookalike index verify {folder.parents[1]} --repair`"
        self._file, self._card_file = (self._open_file(name) for name in ("index.faiss", "card.json"))

    @cached_property
    def card(self) -> dict[str, Any]:
        """Facts about the index; see `BuiltIndex`.

        Raises:
            LookalikeError: The file is damaged.
        """
        self._check(self._card_file, self._card_sha256, "card.json")
        card: dict[str, Any] = json.loads(self._card_file.read_text())
        return card

    @cached_property
    def faiss(self) -> Any:
        """The FAISS index, read-only.

        Raises:
            LookalikeError: The file is damaged (which FAISS might not notice), or FAISS cannot read it.
        """
        return self._read(faiss.IO_FLAG_MMAP_IFC | faiss.IO_FLAG_READ_ONLY)

    def propose(self, queries: np.ndarray, k: int, selector: Any = None, widen: float = 1.0) -> np.ndarray:
        """Return numbers of vectors that may be among the k nearest allowed ones; see `kinds.candidates`."""
        effort, oversample = self.card["effort"], self.card["oversample"]
        return kinds.candidates(self.faiss, queries, k, effort, oversample, selector, widen)

    def copied(self) -> Any:
        """Return a copy of the FAISS index in memory, for additions, which crash on a memory-mapped index."""
        return self._read(0)

    @cached_property
    def usable(self) -> bool:
        """Whether the index is intact; damage is logged."""
        try:
            return bool(self.card) and self.faiss is not None
        except LookalikeError as error:
            _log.warning("%s; until then the search is exact", printable(str(error)))
            return False

    def _read(self, flags: int) -> Any:
        self._check(self._file, self._sha256, "index.faiss")
        with _reading:  # no vector is larger than its file, whatever length a damaged file claims
            before = faiss.get_deserialization_vector_byte_limit()
            faiss.set_deserialization_vector_byte_limit(self._file.stat().st_size)
            try:
                return faiss.read_index(str(self._file), flags)
            except RuntimeError as error:
                what = f"FAISS {faiss.__version__} cannot read it"
                raise LookalikeError(f"{self.folder / 'index.faiss'}: {what}; {self._repair}") from error
            finally:
                faiss.set_deserialization_vector_byte_limit(before)

    def _open_file(self, name: str) -> Path:
        """Open a file, and return a path that stays valid after the file is deleted."""
        try:
            descriptor = os.open(self.folder / name, os.O_RDONLY)
        except OSError as error:
            raise LookalikeError(f"{self.folder / name}: missing; {self._repair}") from error
        weakref.finalize(self, os.close, descriptor)
        return Path(f"/dev/fd/{descriptor}")

    def _check(self, file: Path, sha256: str, name: str) -> None:
        if sha256_of(file) != sha256:
            raise LookalikeError(f"{self.folder / name}: damaged; {self._repair}")


def build_index(
    vectors: Vectors,
    spec: IndexSpec | None = None,
    *,
    live: np.ndarray | None = None,
    previous: Index | None = None,
    show_progress: bool = False,
) -> BuiltIndex | None:
    """Build an index over vectors; `None` if exact search is requested or best.

    "auto" builds no index for up to 50,000 vectors that fit into the memory; above, it measures the kinds
    (`tuning.run_trials`) and takes the fastest that reaches the recall over all vectors as well.
    A previous index is extended without training it again, unless queries from the new vectors take several
    times the effort, or the number of vectors has grown several times.

    Args:
        vectors: Vectors to index.
        spec: Kind, recall and memory; `None` for the defaults.
        live: Rows to index, bool [rows]; `None` for all.
        previous: Index so far, over the first rows of `vectors`.
        show_progress: Report progress on stderr.

    Raises:
        InputError: An unknown kind, a recall or memory out of range, or a kind that needs more memory.
        LookalikeError: No kind reaches the recall within the memory; the message has the table of trials.
    """
    spec = spec or IndexSpec()
    kind = "auto" if spec.kind is None else spec.kind
    recall = RECALL if spec.recall is None else spec.recall
    memory = spec.memory
    kinds.check_name(kind)
    if not 0 < recall <= 1:
        raise InputError(f"recall must be above 0 and at most 1, such as 0.99; got {recall}")
    if memory is not None and memory <= 0:
        raise InputError(f"memory must be a number of bytes above 0; got {memory}")
    targets = {"recall_wanted": recall, "memory_wanted": memory}
    extended = _extend(previous, vectors, live, kind, targets, show_progress) if previous else None
    if extended is not None:
        return extended
    room = float("inf") if memory is None else memory
    needed = kinds.memory_needed("flat" if kind == "auto" else kind, vectors.dim, len(vectors))
    tried: Sequence[IndexTrial] = ()
    if kind != "auto" and needed > room:
        raise InputError(
            f"an index of kind {kind} needs {needed:,} bytes here; allow more memory, or use auto"
        )
    if kind == "auto" and len(vectors) <= EXACT_UP_TO and needed <= room:
        return None
    if kind == "auto":
        tried = tuning.run_trials(vectors, recall=recall, memory=memory, show_progress=show_progress)
    for name in tuning.fastest_first(tried, recall) if tried else [kind]:
        if name == "flat" or not len(vectors):
            return None
        index, trials = _build(kinds.APPROXIMATE[name], vectors, live, recall, show_progress)
        best = tuning.fastest(trials, recall)
        if best is not None:
            choice = {"chosen_for": len(vectors), "tried": [_plain(trial) for trial in tried]}
            return BuiltIndex(index, _last(vectors), {**_plain(best), **targets, **choice})
    what = f"an index of kind {name} does not reach recall {recall:g} here"
    hint = "lower the recall, or choose another kind; tried:"
    raise LookalikeError("\n".join([f"{what}; {hint}", *tuning.trial_table(trials)]))


def write_index(built: BuiltIndex, parent: Path) -> ActiveIndex:
    """Write an index into a new folder below `parent`, and return its record.

    Raises:
        LookalikeError: The index cannot be written.
    """
    folder = parent / uuid.uuid4().hex
    folder.mkdir()
    with atomic_write(folder / "index.faiss") as draft:
        try:
            faiss.write_index(built.index, str(draft))
        except RuntimeError as error:  # FAISS does not pass on the system's error
            detail = "the disk is full, or the folder cannot be written"
            raise LookalikeError(f"{folder}: the index was not written; {detail}") from error
    facts = {"vectors": built.index.ntotal, "last": built.last, "dim": built.index.d, "metric": "cosine"}
    with atomic_write(folder / "card.json") as draft:
        draft.write_text(json.dumps({**built.card, **facts}, indent=2))
    digests = sha256_of(folder / "index.faiss"), sha256_of(folder / "card.json")
    count = built.index.ntotal
    return ActiveIndex(folder.name, digests[0], built.card["kind"], count, built.last, digests[1])


def _extend(
    previous: Index,
    vectors: Vectors,
    live: np.ndarray | None,
    kind: str,
    targets: Mapping[str, Any],
    show_progress: bool,
) -> BuiltIndex | None:
    """Add the missing rows to an index; `None` if it has other targets, or finds the new rows badly."""
    try:
        index, card = previous.copied(), previous.card
        old = int(np.searchsorted(vectors.numbers_of(np.arange(len(vectors))), card["last"], "right"))
    except LookalikeError:  # damaged: build it again from the vectors
        return None
    is_same = kind in ("auto", card["kind"]) and all(card[name] == value for name, value in targets.items())
    needed = kinds.memory_needed(card["kind"], vectors.dim, len(vectors))
    fits = card["memory_wanted"] is None or needed <= card["memory_wanted"]
    if not is_same or not fits or len(vectors) > _MAX_GROWTH * card["chosen_for"]:
        return None
    held_out = tuning.hold_out_queries(vectors, live, old)
    tuning.add_rows(index, vectors, held_out.rows, live, old, show_progress=show_progress)
    if len(held_out.rows) >= _MIN_QUERIES:
        trials = list(
            tuning.sweep_efforts(kinds.APPROXIMATE[card["kind"]], index, held_out, card["recall_wanted"])
        )
        best = tuning.fastest(trials, card["recall_wanted"])
        if best is None or best.effort > _MAX_EFFORT_GROWTH * card["effort"]:
            return None
        never_less = {name: max(card[name], getattr(best, name)) for name in ("effort", "oversample")}
        card = {**card, **_plain(best), **never_less}
    index.add_with_ids(held_out.queries, vectors.numbers_of(held_out.rows))
    return BuiltIndex(index, _last(vectors), card)


def _last(vectors: Vectors) -> int:
    return int(vectors.numbers_of(np.array([len(vectors) - 1]))[0])


def _plain(trial: IndexTrial) -> dict[str, Any]:
    return {name: round(x, 4) if isinstance(x, float) else x for name, x in asdict(trial).items()}


def _build(
    kind: kinds.Kind, vectors: Vectors, live: np.ndarray | None, recall: float, show_progress: bool
) -> tuple[faiss.Index, list[IndexTrial]]:
    """Train and fill an index; its recall is measured before the held-out queries are added."""
    random = np.random.default_rng(0)
    rows = random.choice(len(vectors), kinds.training_size(len(vectors)), replace=False)
    index = kinds.train_index(kind, vectors.take(np.sort(rows)), len(vectors))
    held_out = tuning.hold_out_queries(vectors, live)
    tuning.add_rows(index, vectors, held_out.rows, live, show_progress=show_progress)
    trials = list(tuning.sweep_efforts(kind, index, held_out, recall))
    index.add_with_ids(held_out.queries, vectors.numbers_of(held_out.rows))
    return index, trials
