"""FAISS indexes over a gallery's vectors: chosen, built, kept on disk, and asked for candidates."""

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
from retrieval.search.tuning import Trial
from retrieval.search.vectors import Vectors
from retrieval.storage.records import ActiveIndex, IndexSpec

KINDS = kinds.NAMES
RECALL = 0.99
EXACT_UP_TO = 50_000
_STALE = 4  # times as many vectors as when the kind was chosen: choose again
_DRIFTED = 4  # times the effort that was enough before: train again
_ENOUGH = 100  # queries that say something about the new vectors
_log = logging.getLogger("lookalike.retrieval")
_reading = threading.Lock()  # what FAISS may read at most is set for the whole process


@dataclass(frozen=True)
class Built:
    """An index in memory, with what is to be known about it.

    Attributes:
        index: over the first `index.ntotal` rows.
        card: kind, effort, oversample, recall (measured), recall_wanted, memory_wanted, chosen_for (vectors
            there were when the kind was chosen), ms, bytes_per_vector and tried, the trials as plain values.
    """

    index: faiss.Index
    card: dict[str, Any]


class Index:
    """An index on disk, read and checked when it is first asked; memory-mapped, so that processes share it.

    Its files are held open from the beginning: what a writer puts in their place does not matter to it.

    Args:
        folder: with `index.faiss` and `card.json`.
        sha256, card_sha256: of the two files.

    Raises:
        LookalikeError: one of them is missing.
    """

    def __init__(self, folder: Path, sha256: str, card_sha256: str) -> None:
        self.folder, self._sha256, self._card_sha256 = folder, sha256, card_sha256
        self._repair = f"`lookalike index verify {folder.parents[1]} --repair` builds it again"
        self._file, self._card_file = (self._held(name) for name in ("index.faiss", "card.json"))

    @cached_property
    def card(self) -> dict[str, Any]:
        """What is known about it; see `Built`."""
        self._check(self._card_file, self._card_sha256, "card.json")
        return json.loads(self._card_file.read_text())

    @cached_property
    def faiss(self) -> Any:
        """The FAISS index, read-only.

        Raises:
            LookalikeError: the file is not as it was written, which FAISS might load without complaint, or
                FAISS cannot read it.
        """
        return self._read(faiss.IO_FLAG_MMAP_IFC | faiss.IO_FLAG_READ_ONLY)

    def propose(
        self, queries: np.ndarray, k: int, allowed: np.ndarray | None = None, widen: float = 1.0
    ) -> np.ndarray:
        """Rows that may be among the k best of the allowed ones; see `kinds.candidates`."""
        effort, oversample = self.card["effort"], self.card["oversample"]
        return kinds.candidates(self.faiss, queries, k, effort, oversample, allowed, widen)

    def copied(self) -> Any:
        """The FAISS index in memory of its own, which takes additions: a mapped one would end the process."""
        return self._read(0)

    @cached_property
    def usable(self) -> bool:
        """Whether it is as it was written; where it is not, the log says so."""
        try:
            return bool(self.card) and self.faiss is not None
        except LookalikeError as error:
            _log.warning("%s; until then all vectors are compared", error)
            return False

    def _read(self, flags: int) -> Any:
        self._check(self._file, self._sha256, "index.faiss")
        with _reading:  # no vector in a file is larger than the file, whatever is written there
            before = faiss.get_deserialization_vector_byte_limit()
            faiss.set_deserialization_vector_byte_limit(self._file.stat().st_size)
            try:
                return faiss.read_index(str(self._file), flags)
            except RuntimeError as error:
                what = f"FAISS {faiss.__version__} cannot read it"
                raise LookalikeError(f"{self.folder / 'index.faiss'}: {what}; {self._repair}") from error
            finally:
                faiss.set_deserialization_vector_byte_limit(before)

    def _held(self, name: str) -> Path:
        """The path of an open file, which stays when its name in the folder is gone."""
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
    previous: Index | None = None,
    show_progress: bool = False,
) -> Built | None:
    """Build an index over vectors; `None` if exact search is requested or best.

    `auto` takes no index for up to 50,000 vectors that fit the memory; above, it tries the kinds out
    (`tuning.trials`) and takes the fastest that reaches the recall over all vectors as well.
    An index that is there already is extended without training it again, unless queries from among the new
    vectors take several times the effort, or there are several times as many vectors.

    Args:
        vectors: Vectors to index.
        spec: Kind, recall and memory; `None` for the defaults.
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
        raise InputError(f"recall is a share above 0 and up to 1, such as 0.99; got {recall}")
    if memory is not None and memory <= 0:
        raise InputError(f"memory is a number of bytes above 0; got {memory}")
    targets = {"recall_wanted": recall, "memory_wanted": memory}
    extended = _extend(previous, vectors, kind, targets, show_progress) if previous else None
    if extended is not None:
        return extended
    room = float("inf") if memory is None else memory
    needed = kinds.memory_needed("flat" if kind == "auto" else kind, vectors.dim, len(vectors))
    tried: Sequence[Trial] = ()
    if kind != "auto" and needed > room:
        raise InputError(f"an index of kind {kind} needs {needed:,} bytes here: allow as much, or use auto")
    if kind == "auto" and len(vectors) <= EXACT_UP_TO and needed <= room:
        return None
    if kind == "auto":
        tried = tuning.trials(vectors, recall=recall, memory=memory, show_progress=show_progress)
    for name in tuning.fastest_first(tried, recall) if tried else [kind]:
        if name == "flat" or not len(vectors):
            return None
        index, trials = _build(kinds.APPROXIMATE[name], vectors, recall, show_progress)
        best = tuning.cheapest(trials, recall)
        if best is not None:
            choice = {"chosen_for": len(vectors), "tried": [_plain(trial) for trial in tried]}
            return Built(index, {**_plain(best), **targets, **choice})
    what = f"an index of kind {name} does not reach recall {recall:g} here"
    hint = "ask for less, or for another kind; tried:"
    raise LookalikeError("\n".join([f"{what}: {hint}", *tuning.table(trials)]))


def write_index(built: Built, parent: Path) -> ActiveIndex:
    """Write an index into a new folder below `parent`, and return its record.

    Raises:
        LookalikeError: The index cannot be written.
    """
    folder = parent / uuid.uuid4().hex
    folder.mkdir()
    with atomic_write(folder / "index.faiss") as draft:
        try:
            faiss.write_index(built.index, str(draft))
        except RuntimeError as error:  # FAISS's own, whatever the operating system says
            detail = "the disk is full, or the folder cannot be written"
            raise LookalikeError(f"{folder}: the index was not written: {detail}; make room") from error
    facts = {"vectors": built.index.ntotal, "dim": built.index.d, "metric": "cosine"}
    with atomic_write(folder / "card.json") as draft:
        draft.write_text(json.dumps({**built.card, **facts}, indent=2))
    digests = sha256_of(folder / "index.faiss"), sha256_of(folder / "card.json")
    return ActiveIndex(folder.name, digests[0], built.card["kind"], built.index.ntotal, digests[1])


def _extend(
    previous: Index, vectors: Vectors, kind: str, targets: Mapping[str, Any], show_progress: bool
) -> Built | None:
    """The index with the rows it lacks; `None` if it is not what is wanted, or finds the new ones badly."""
    try:
        index, card = previous.copied(), previous.card
    except LookalikeError:  # damaged: the vectors are there to build it anew
        return None
    wanted = kind in ("auto", card["kind"]) and all(card[name] == value for name, value in targets.items())
    needed = kinds.memory_needed(card["kind"], vectors.dim, len(vectors))
    fits = card["memory_wanted"] is None or needed <= card["memory_wanted"]
    if not wanted or not fits or len(vectors) > _STALE * card["chosen_for"]:
        return None
    exam = tuning.examine(vectors, old=index.ntotal)
    tuning.add(index, vectors, exam.rows, index.ntotal, show_progress=show_progress)
    if len(exam.rows) >= _ENOUGH:
        trials = list(tuning.sweep(kinds.APPROXIMATE[card["kind"]], index, exam, card["recall_wanted"]))
        best = tuning.cheapest(trials, card["recall_wanted"])
        if best is None or best.effort > _DRIFTED * card["effort"]:
            return None
        never_less = {name: max(card[name], getattr(best, name)) for name in ("effort", "oversample")}
        card = {**card, **_plain(best), **never_less}
    index.add_with_ids(exam.queries, exam.rows)
    return Built(index, card)


def _plain(trial: Trial) -> dict[str, Any]:
    return {name: round(x, 4) if isinstance(x, float) else x for name, x in asdict(trial).items()}


def _build(
    kind: kinds.Kind, vectors: Vectors, recall: float, show_progress: bool
) -> tuple[faiss.Index, list[Trial]]:
    """Train and fill an index, examined before the queries of its examination go in as well."""
    random = np.random.default_rng(0)
    rows = random.choice(len(vectors), kinds.trained_on(len(vectors)), replace=False)
    index = kinds.trained(kind, vectors.take(np.sort(rows)), len(vectors))
    exam = tuning.examine(vectors)
    tuning.add(index, vectors, exam.rows, show_progress=show_progress)
    trials = list(tuning.sweep(kind, index, exam, recall))
    index.add_with_ids(exam.queries, exam.rows)
    return index, trials
