"""FAISS indexes over a gallery's vectors: building, extending, storing and opening them."""

from __future__ import annotations

import json
import logging
import os
import threading
import uuid
import weakref
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from retrieval.errors import InputError, LookalikeError
from retrieval.faiss_backend import CPU, CpuBackend
from retrieval.files import atomic_write, sha256_of
from retrieval.search import kinds, training, tuning
from retrieval.search.selection import Selection
from retrieval.search.tuning import Ground, IndexTrial
from retrieval.search.vectors import Vectors
from retrieval.storage.records import ActiveIndex, IndexSpec
from retrieval.text import printable

KINDS = kinds.NAMES
RECALL = 0.99
EXACT_UP_TO = 50_000
CHECKED_AT_ONCE = 1 << 28  # bytes
_MAX_DEAD = 0.3  # share of dead vectors beyond which an index is built again: they slow every search
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
        is_extended: Whether it is the previous index with more vectors.
    """

    index: faiss.Index
    last: int
    card: dict[str, Any]
    is_extended: bool = False


@dataclass(frozen=True)
class IndexWork:
    """What was done to the index of a gallery, and why.

    Attributes:
        done: "built", "extended", "removed", or "nothing".
        reason: Why, as in "there is no index"; empty if there was nothing to do.
    """

    done: str
    reason: str


@dataclass(frozen=True)
class Coverage:
    """How an index covers the vectors of a gallery.

    Attributes:
        inside: Number of live vectors in the index.
        outside: Number of live vectors that are not in it.
        dead: Number of vectors in the index that are not live any more.
    """

    inside: int
    outside: int
    dead: int

    @classmethod
    def of(cls, vectors: Vectors, live: np.ndarray | None, card: Mapping[str, Any]) -> Coverage:
        """Return how the index of a card covers vectors.

        Args:
            vectors: Vectors of the gallery.
            live: bool [rows], False for rows of dead vectors; `None` for none.
            card: Facts about the index.
        """
        covered = bisect_right(
            range(len(vectors)), card["last"], key=lambda row: vectors.numbers_of(np.array([row]))[0]
        )
        inside = covered if live is None else int(np.count_nonzero(live[:covered]))
        all_live = len(vectors) if live is None else int(np.count_nonzero(live))
        return cls(inside, all_live - inside, card["vectors"] - inside)

    @property
    def live(self) -> int:
        """Number of live vectors."""
        return self.inside + self.outside


@dataclass(frozen=True)
class Targets:
    """What is asked of an index: `IndexSpec` with its defaults filled in, and checked.

    Attributes:
        kind: Index kind, "auto" or "flat".
        recall: Share of the 10 nearest neighbours.
        memory: Bytes; `None` for no limit.
    """

    kind: str
    recall: float
    memory: int | None

    @classmethod
    def of(cls, spec: IndexSpec | None) -> Targets:
        """Return the targets of a specification.

        Raises:
            InputError: An unknown kind, or a recall or memory out of range.
        """
        spec = spec or IndexSpec()
        kind = kinds.check_name("auto" if spec.kind is None else spec.kind)
        recall = RECALL if spec.recall is None else spec.recall
        if not 0 < recall <= 1:
            raise InputError(f"recall must be above 0 and at most 1, such as 0.99; got {recall}")
        if spec.memory is not None and spec.memory <= 0:
            raise InputError(f"memory must be a number of bytes above 0; got {spec.memory}")
        return cls(kind, recall, spec.memory)

    @property
    def card(self) -> dict[str, Any]:
        """The targets as facts about an index."""
        return {"recall_wanted": self.recall, "memory_wanted": self.memory}

    def fits(self, kind: str, dim: int, count: int) -> bool:
        """Return whether a kind, or `flat`, of so many vectors fits into the memory."""
        return self.memory is None or kinds.memory_needed(kind, dim, count) <= self.memory

    def is_exact(self, dim: int, count: int) -> bool:
        """Return whether exact search without an index is asked for, or best for so few vectors.

        Raises:
            InputError: The kind needs more memory.
        """
        if self.kind != "auto" and not self.fits(self.kind, dim, count):
            needed = kinds.memory_needed(self.kind, dim, count)
            raise InputError(
                f"an index of kind {self.kind} needs {needed:,} bytes here; allow more memory, or use auto"
            )
        few = count <= EXACT_UP_TO and self.fits("flat", dim, count)
        return not count or self.kind == "flat" or (self.kind == "auto" and few)

    def rebuild_reason(self, card: Mapping[str, Any], dim: int, coverage: Coverage) -> str:
        """Return why an index cannot be extended to all live vectors; empty if it can.

        Args:
            card: Facts about the index.
            dim: Dimension D.
            coverage: How it covers the vectors.
        """
        kind, entries = card["kind"], card["vectors"] + coverage.outside
        if self.kind not in ("auto", kind):
            return f"its kind is {kind}"
        for name, value in self.card.items():
            if card[name] != value:
                return f"it was built for another {name.partition('_')[0]}"
        if not self.fits(kind, dim, entries):
            return f"it would need {kinds.memory_needed(kind, dim, entries):,} bytes"
        if coverage.live > _MAX_GROWTH * card["chosen_for"]:
            return f"it was chosen for {card['chosen_for']:,} vectors"
        if coverage.dead > _MAX_DEAD * card["vectors"]:
            return f"{coverage.dead:,} of its {card['vectors']:,} vectors are dead"
        return ""


def work_needed(
    index: Index | None,
    vectors: Vectors,
    spec: IndexSpec | None = None,
    *,
    live: np.ndarray | None = None,
    tolerated: int = 0,
) -> str:
    """Return why the index of a gallery has to be built, extended or removed; empty if it is as asked for.

    Args:
        index: Index of the gallery, if any.
        vectors: Vectors of the gallery.
        spec: Kind, recall and memory; `None` for the defaults.
        live: bool [rows], False for rows of dead vectors; `None` for none.
        tolerated: Number of live vectors that may be outside the index.

    Raises:
        InputError: An unknown kind, a recall or memory out of range, or a kind that needs more memory.
    """
    targets = Targets.of(spec)
    count = len(vectors) if live is None else int(np.count_nonzero(live))
    exact = targets.is_exact(vectors.dim, count)
    if index is None:
        return "" if exact else "there is no index"
    if not index.usable:
        return "it is damaged"
    if exact and targets.kind == "flat":
        return "exact search is asked for"
    coverage = Coverage.of(vectors, live, index.card)
    reason = targets.rebuild_reason(index.card, vectors.dim, coverage)
    if not reason and coverage.outside > tolerated:
        return f"{coverage.outside:,} vectors are not in it"
    return reason


class Index:
    """An index on disk, read and checked on first use; memory-mapped, so that processes share it.

    Its files are held open from the start, so a writer that deletes them does not affect it. A file beyond
    256 MB is used once its size is right, while its checksum is computed in the background.

    Attributes:
        checking: Thread that computes the checksum of a large file; `None` before the first use.

    Args:
        folder: Folder with `index.faiss` and `card.json`.
        sha256, card_sha256: SHA-256 of the two files.

    Raises:
        LookalikeError: A file is missing.
    """

    def __init__(self, folder: Path, sha256: str, card_sha256: str) -> None:
        self.folder, self._sha256, self._card_sha256 = folder, sha256, card_sha256
        self._repair = f"rebuild it with `lookalike index verify {folder.parents[1]} --repair`"
        self._found_damaged = threading.Event()
        self.checking: threading.Thread | None = None
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
        if self._size <= CHECKED_AT_ONCE:
            self._check(self._file, self._sha256, "index.faiss")
        elif self._size != self.card["bytes"]:
            raise self._damage("index.faiss")
        else:
            self.checking = threading.Thread(target=self._check_later, name="index check", daemon=True)
            self.checking.start()
        return self._read(faiss.IO_FLAG_MMAP_IFC | faiss.IO_FLAG_READ_ONLY)

    def propose(self, queries: np.ndarray, k: int, selector: Any = None, widen: float = 1.0) -> np.ndarray:
        """Return numbers of vectors that may be among the k nearest allowed ones; see `kinds.candidates`."""
        effort, oversample = self.card["effort"], self.card["oversample"]
        return kinds.candidates(self.faiss, queries, k, effort, oversample, selector, widen)

    def copied(self) -> Any:
        """Return a copy of the FAISS index in memory, for additions, which crash on a memory-mapped index."""
        self._check(self._file, self._sha256, "index.faiss")
        return self._read(0)

    @property
    def usable(self) -> bool:
        """Whether the index is intact, as far as is known; damage is logged."""
        return self._opens and not self._found_damaged.is_set()

    @cached_property
    def _opens(self) -> bool:
        try:
            return bool(self.card) and self.faiss is not None
        except LookalikeError as error:
            self._warn(error)
            return False

    def _check_later(self) -> None:
        try:
            self._check(self._file, self._sha256, "index.faiss")
        except (LookalikeError, OSError) as error:
            self._found_damaged.set()
            self._warn(error)

    def _warn(self, error: Exception) -> None:
        _log.warning("%s; until then the search is exact", printable(str(error)))

    @property
    def _size(self) -> int:
        return self._file.stat().st_size

    def _read(self, flags: int) -> Any:
        with _reading:  # no vector is larger than its file, whatever length a damaged file claims
            before = faiss.get_deserialization_vector_byte_limit()
            faiss.set_deserialization_vector_byte_limit(self._size)
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
            raise self._damage(name)

    def _damage(self, name: str) -> LookalikeError:
        return LookalikeError(f"{self.folder / name}: damaged; {self._repair}")


def build_index(
    vectors: Vectors,
    spec: IndexSpec | None = None,
    *,
    live: np.ndarray | None = None,
    previous: Index | None = None,
    backend: CpuBackend = CPU,
    show_progress: bool = False,
) -> BuiltIndex | None:
    """Build an index over vectors; `None` if exact search is requested or best.

    "auto" builds no index for up to 50,000 vectors that fit into the memory; above, it tries the kinds
    (`tuning.run_trials`) and takes the best that reaches the recall over all vectors as well. Above 50,000
    vectors, a requested kind is tried in the same way, so that it fails early if it cannot reach the recall.
    A previous index is extended without training it again, unless queries from the new vectors take several
    times the effort, the number of vectors has grown several times, or many of its vectors are dead.

    Memory: the index itself, and up to 1.6 GB for the training vectors and the sample; the vectors are read
    in blocks.

    Args:
        vectors: Vectors to index.
        spec: Kind, recall and memory; `None` for the defaults.
        live: bool [rows], False for rows of dead vectors; `None` for none.
        previous: Index so far, over older ones of these vectors.
        backend: Where vectors are compared in bulk.
        show_progress: Report progress on stderr.

    Raises:
        InputError: An unknown kind, a recall or memory out of range, or a kind that needs more memory.
        LookalikeError: No kind reaches the recall within the memory; the message has the table of trials.
    """
    targets = Targets.of(spec)
    extended = _extend(previous, vectors, live, targets, backend, show_progress) if previous else None
    if extended is not None:
        return extended
    count = len(vectors) if live is None else int(np.count_nonzero(live))
    if targets.is_exact(vectors.dim, count):
        return None
    ground = tuning.prepare(vectors, live, backend=backend, show_progress=show_progress)
    names, recall = [targets.kind], targets.recall
    tried: Sequence[IndexTrial] = ()
    if targets.kind == "auto" or count > EXACT_UP_TO:
        names = [*tuning.CANDIDATES] if targets.kind == "auto" else names
        tried = tuning.run_trials(
            ground, names, recall=recall, memory=targets.memory, show_progress=show_progress
        )
        names = list(dict.fromkeys(trial.kind for trial in tuning.best_first(tried, recall)))
    for name in names:
        if name == "flat":
            return None
        index, trials = _build(kinds.APPROXIMATE[name], ground, recall, show_progress)
        good = tuning.best_first(trials, recall)
        if good:
            choice = {"chosen_for": count, "tried": [_plain(trial) for trial in tried]}
            return BuiltIndex(index, _last(vectors), {**_plain(good[0]), **targets.card, **choice})
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
    size = (folder / "index.faiss").stat().st_size
    facts = {"vectors": built.index.ntotal, "last": built.last, "bytes": size}
    facts |= {"dim": built.index.d, "metric": "cosine"}
    with atomic_write(folder / "card.json") as draft:
        draft.write_text(json.dumps({**built.card, **facts}, indent=2))
    digests = sha256_of(folder / "index.faiss"), sha256_of(folder / "card.json")
    count = built.index.ntotal
    return ActiveIndex(folder.name, digests[0], built.card["kind"], count, built.last, digests[1])


def _extend(
    previous: Index,
    vectors: Vectors,
    live: np.ndarray | None,
    targets: Targets,
    backend: CpuBackend,
    show_progress: bool,
) -> BuiltIndex | None:
    """Add the missing vectors to an index; `None` if it has to be built again."""
    try:
        card = previous.card
        state = Coverage.of(vectors, live, card)
        if targets.rebuild_reason(card, vectors.dim, state):
            return None
        index = previous.copied()
    except LookalikeError:  # damaged: build it again from the vectors
        return None
    rows = np.arange(len(vectors)) if live is None else np.flatnonzero(live)
    new = rows[state.inside :]
    held_out, _ = tuning.hold_out_queries(vectors, rows, new, backend=backend)
    if state.dead:
        alive = Selection(np.ones(len(vectors), bool) if live is None else live)
        held_out = replace(held_out, selector=alive.numbers(len(vectors), vectors.numbers_of))
    rest = np.setdiff1d(new, held_out.rows, assume_unique=True)
    training.add_rows(index, vectors, rest, backend=backend, show_progress=show_progress)
    if len(held_out.rows) >= _MIN_QUERIES:
        kind, recall = kinds.APPROXIMATE[card["kind"]], card["recall_wanted"]
        good = tuning.best_first([*tuning.sweep_efforts(kind, index, held_out, recall)], recall)
        if not good or good[0].effort > _MAX_EFFORT_GROWTH * card["effort"]:
            return None
        never_less = {name: max(card[name], getattr(good[0], name)) for name in ("effort", "oversample")}
        card = {**card, **_plain(good[0]), **never_less}
    training.add_rows(index, vectors, held_out.rows)
    return BuiltIndex(index, max(_last(vectors), card["last"]), card, is_extended=True)


def _last(vectors: Vectors) -> int:
    return int(vectors.numbers_of(np.array([len(vectors) - 1]))[0]) if len(vectors) else 0


def _plain(trial: IndexTrial) -> dict[str, Any]:
    return {name: round(x, 4) if isinstance(x, float) else x for name, x in asdict(trial).items()}


def _build(
    kind: kinds.Kind, ground: Ground, recall: float, show_progress: bool
) -> tuple[faiss.Index, list[IndexTrial]]:
    """Train and fill an index; its recall is measured before the held-out queries are added."""
    index = training.train_index(kind, ground.training)
    training.add_rows(index, ground.vectors, ground.rows, backend=ground.backend, show_progress=show_progress)
    trials = list(tuning.sweep_efforts(kind, index, ground.held_out, recall))
    training.add_rows(index, ground.vectors, ground.held_out.rows)
    return index, trials
