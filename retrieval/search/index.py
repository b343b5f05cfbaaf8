"""FAISS indexes over a gallery's vectors: building, extending, storing and opening them."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
import uuid
import weakref
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from retrieval.errors import InputError, LookalikeError
from retrieval.files import atomic_write, sha256_of
from retrieval.machine import lazy_faiss as faiss
from retrieval.machine.faiss_backend import CPU, CpuBackend
from retrieval.search import kinds, training, tuning
from retrieval.search.inverted_lists import PART_BYTES, Lists, Workplace, remove_vectors
from retrieval.search.lru_cache import LRUCache
from retrieval.search.selection import Selection
from retrieval.search.tuning import HeldOutQueries, IndexTrial
from retrieval.search.vectors import Vectors
from retrieval.storage.records import ActiveIndex, IndexSpec
from retrieval.text import printable

KINDS = kinds.NAMES
RECALL = 0.99
EXACT_UP_TO = 50_000
CHECKED_AT_ONCE = 1 << 28  # bytes
_KEPT = 8  # parameters of FAISS that are kept, with their selectors
_MAX_DEAD = 0.3  # share of dead vectors beyond which an index is built again: they slow every search
_MAX_GROWTH = 4  # growth of the gallery since the kind was chosen, beyond which it is chosen again
_MAX_EFFORT_GROWTH = 4  # growth of the required effort, beyond which the index is trained again
# Facts of a card that are numbers.
_NUMBERS = (
    *("effort", "oversample", "recall", "recall_wanted", "chosen_for", "ms"),
    *("vectors", "last", "bytes", "dim"),
)
_MIN_QUERIES = 100  # number of queries from which the recall of new vectors can be measured
_log = logging.getLogger("lookalike.retrieval")
_reading = threading.Lock()  # FAISS's limit on what it reads is set for the whole process


@dataclass(frozen=True)
class BuiltIndex:
    """A new index, with its card.

    Attributes:
        index: FAISS index whose ids are vector numbers.
        last: Highest vector number that it covers.
        card: kind, effort, oversample, recall (measured), recall_wanted, memory_wanted, chosen_for (number of
            vectors when the kind was chosen), ms, bytes_per_vector, and tried: the trials as plain values.
        is_extended: Whether it is the previous index with more vectors.
        file: File that it is mapped from, if it was built on disk.
    """

    index: faiss.Index
    last: int
    card: dict[str, Any]
    is_extended: bool = False
    file: Path | None = None


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
        dim: Leading dimensions that the index holds; 0 for all.
    """

    kind: str
    recall: float
    memory: int | None
    dim: int = 0

    @classmethod
    def of(cls, spec: IndexSpec | None) -> Targets:
        """Return the targets of a specification.

        Raises:
            InputError: An unknown kind, or a recall, memory or dimension out of range.
        """
        spec = spec or IndexSpec()
        kind = kinds.check_name("auto" if spec.kind is None else spec.kind)
        recall = RECALL if spec.recall is None else spec.recall
        if not 0 < recall <= 1:
            raise InputError(f"recall must be above 0 and at most 1, such as 0.99; got {recall}")
        if spec.memory is not None and spec.memory <= 0:
            raise InputError(f"memory must be a number of bytes above 0; got {spec.memory}")
        dim = spec.dim or 0
        if dim < 0:
            raise InputError(f"the index has a number of dimensions above 0, or 0 for all; got {dim}")
        if dim and kind == "flat":
            raise InputError("flat compares whole vectors, not leading dimensions; choose another kind")
        return cls(kind, recall, spec.memory, dim)

    @property
    def card(self) -> dict[str, Any]:
        """The targets as facts about an index."""
        return {"recall_wanted": self.recall, "memory_wanted": self.memory}

    def workplace(self, folder: Path) -> Workplace:
        """Return where to build an index on disk: with half of the memory limit, or 1 GiB if that is less."""
        return Workplace(folder, min(PART_BYTES, (self.memory or 2 * PART_BYTES) // 2))

    def fits(self, kind: str, dim: int, count: int) -> bool:
        """Return whether a kind, or `flat`, of so many vectors fits into the memory."""
        return self.memory is None or self.memory_needed(kind, dim, count) <= self.memory

    def memory_needed(self, kind: str, dim: int, count: int) -> int:
        """Return the bytes that a kind, or `flat`, needs for so many vectors."""
        return kinds.memory_needed(kind, dim if kind == "flat" else self.index_dim(dim), count)

    def index_dim(self, dim: int) -> int:
        """Return the dimension of an index of vectors of a dimension."""
        return min(self.dim or dim, dim)

    def is_exact(self, dim: int, count: int) -> bool:
        """Return whether exact search without an index is asked for, or best for so few vectors.

        Raises:
            InputError: The kind needs more memory.
        """
        if self.kind != "auto" and not self.fits(self.kind, dim, count):
            needed = self.memory_needed(self.kind, dim, count)
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
            return f"it would need {self.memory_needed(kind, dim, entries):,} bytes"
        if card["dim"] != self.index_dim(dim):
            return f"it has {card['dim']} dimensions"
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
    256 MB is used once its size is right, while its checksum is computed in the background. If its lists stay
    on disk, only what precedes them is checked: reading them all would displace what searches need. A damaged
    list can hide neighbours, and no more: numbers that do not exist are ignored, and scores computed from the
    stored vectors, which have checksums.

    Attributes:
        checking: Thread that computes the checksum of a large file; `None` before the first use.
        missing: Names of the files that are not there; it is not usable without them.

    Args:
        folder: Folder with `index.faiss` and `card.json`.
        sha256, card_sha256: SHA-256 of the two files.

    Raises:
        LookalikeError: A file cannot be opened, though it is there.
    """

    def __init__(self, folder: Path, sha256: str, card_sha256: str) -> None:
        self.folder, self._sha256, self._card_sha256 = folder, sha256, card_sha256
        self._repair = f"rebuild it with `lookalike index verify {folder.parents[1]} --repair`"
        self._found_damaged = threading.Event()
        self._parameters = LRUCache[tuple[int, float, int], tuple[int, Any, Any]](_KEPT)
        self.checking: threading.Thread | None = None
        self.missing: list[str] = []
        self._file, self._card_file = (self._open_file(name) for name in ("index.faiss", "card.json"))

    @cached_property
    def card(self) -> dict[str, Any]:
        """Facts about the index; see `BuiltIndex`.

        Raises:
            LookalikeError: The file is damaged.
        """
        self._check(self._card_file, self._card_sha256, "card.json")
        card: dict[str, Any] = {}
        with suppress(ValueError, RecursionError):
            card = json.loads(self._card_file.read_text())
        if not _is_card(card):  # though it has the checksum that the database says: from somebody else
            raise self._damage("card.json")
        return card

    @property
    def known_card(self) -> dict[str, Any] | None:
        """Facts about the index; `None` if the file is damaged, which is logged."""
        try:
            return self.card
        except LookalikeError as error:
            self._warn(error)
            return None

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
        elif "head" in self.card:
            if _sha256_of_head(self._file, self.card["head"]["bytes"]) != self.card["head"]["sha256"]:
                raise self._damage("index.faiss")
        else:
            self.checking = threading.Thread(target=self._check_later, name="index check", daemon=True)
            self.checking.start()
        return self._read()

    def propose(self, queries: np.ndarray, k: int, selector: Any = None, widen: float = 1.0) -> np.ndarray:
        """Return numbers of vectors that may be among the k nearest allowed ones; see `kinds.candidates`."""
        key = k, widen, id(selector)
        kept = self._parameters.get(key)
        if kept is None:
            effort, oversample = self.card["effort"], self.card["oversample"]
            given = kinds.parameters(self.faiss, k, effort, oversample, selector, widen)
            kept = *given, selector  # kept as well, so that no other one has its number
            self._parameters.put(key, kept)
        return kinds.search(self.faiss, queries, *kept[:2])

    def copied(self) -> Any:
        """Return a copy of the FAISS index in memory, for additions, which crash on a memory-mapped index."""
        self._check(self._file, self._sha256, "index.faiss")
        return self._read(0)

    def emptied(self) -> tuple[Any, Lists]:
        """Return the FAISS index without its vectors, for additions, and the lists that have them."""
        self._check(self._file, self._sha256, "index.faiss")
        index = self._read(faiss.IO_FLAG_MMAP_IFC)
        lists = Lists.of(self._file, index.invlists)
        remove_vectors(index)
        return index, lists

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

    def _read(self, flags: int | None = None) -> Any:
        try:
            return _read_index(self._file, flags)
        except RuntimeError as error:
            what = f"FAISS {faiss.__version__} cannot read it"
            raise LookalikeError(f"{self.folder / 'index.faiss'}: {what}; {self._repair}") from error

    def _open_file(self, name: str) -> Path:
        """Open a file, and return a path that stays valid after the file is deleted."""
        try:
            descriptor = os.open(self.folder / name, os.O_RDONLY)
        except (FileNotFoundError, NotADirectoryError):
            self.missing.append(name)
            return Path(os.devnull)  # which has no checksum of an index
        except OSError as error:
            raise LookalikeError(f"{self.folder / name}: cannot be read ({error.strerror})") from error
        weakref.finalize(self, os.close, descriptor)
        return Path(f"/dev/fd/{descriptor}")

    def _check(self, file: Path, sha256: str, name: str) -> None:
        if sha256_of(file) != sha256:
            raise self._damage(name)

    def _damage(self, name: str) -> LookalikeError:
        what = "missing" if name in self.missing else "damaged"
        return LookalikeError(f"{self.folder / name}: {what}; {self._repair}")


def _is_card(card: object) -> bool:
    """Return whether a JSON value has the facts about an index that are used."""
    if not isinstance(card, dict):
        return False
    numbers = [card.get(name, -1) for name in _NUMBERS]
    memory, head = card.get("memory_wanted"), card.get("head", {"bytes": 0, "sha256": ""})
    return (
        card.get("kind") in kinds.APPROXIMATE
        and all(type(number) in (int, float) and 0 <= number < 2**63 for number in numbers)
        and (memory is None or type(memory) is int)
        and isinstance(head, dict)
        and (type(head.get("bytes")), type(head.get("sha256"))) == (int, str)
    )


def _read_index(file: Path, flags: int | None = None) -> Any:
    """Return the index of a file, by default mapped and read-only."""
    if flags is None:
        flags = faiss.IO_FLAG_MMAP_IFC | faiss.IO_FLAG_READ_ONLY
    with _reading:  # no vector is larger than its file, whatever length a damaged file claims
        before = faiss.get_deserialization_vector_byte_limit()
        faiss.set_deserialization_vector_byte_limit(file.stat().st_size)
        try:
            return faiss.read_index(str(file), flags)
        finally:
            faiss.set_deserialization_vector_byte_limit(before)


def build_index(
    vectors: Vectors,
    spec: IndexSpec | None = None,
    *,
    live: np.ndarray | None = None,
    previous: Index | None = None,
    work: Path | None = None,
    backend: CpuBackend = CPU,
    show_progress: bool = False,
) -> BuiltIndex | None:
    """Build an index over vectors; `None` if exact search is requested or best.

    "auto" builds no index for up to 50,000 vectors that fit into the memory; above, it tries the kinds
    (`tuning.run_trials`) and takes the best that reaches the recall over all vectors as well. Above 50,000
    vectors, a requested kind is tried in the same way, so that it fails early if it cannot reach the recall.
    A previous index is extended without training it again, unless queries from the new vectors take several
    times the effort, the number of vectors has grown several times, or many of its vectors are dead.

    Memory: up to 1.6 GB for the training vectors and the sample, two numbers of 8 bytes for each vector, and
    up to twice the index, since its lists grow; or, if they stay on disk, at most 1 GiB of them. Vectors are
    read in blocks.

    Args:
        vectors: Vectors to index.
        spec: Kind, recall and memory; `None` for the defaults.
        live: bool [rows], False for rows of dead vectors; `None` for none.
        previous: Index so far, over older ones of these vectors.
        work: Folder for the parts of an index whose lists stay on disk; `None` to build every kind in memory.
        backend: Where vectors are compared in bulk.
        show_progress: Report progress on stderr.

    Raises:
        InputError: An unknown kind, a recall, memory or dimension out of range, or a kind that needs more
            memory.
        LookalikeError: No kind reaches the recall within the memory; the message has the table of trials.
    """
    targets = Targets.of(spec)
    site = _Site(vectors, live, None if work is None else targets.workplace(work), backend, show_progress)
    extended = _extend(previous, site, targets) if previous else None
    if extended is not None:
        return extended
    count = len(vectors) if live is None else int(np.count_nonzero(live))
    if targets.is_exact(vectors.dim, count):
        return None
    dim = targets.index_dim(vectors.dim)
    ground = tuning.prepare(vectors, live, dim=dim, backend=backend, show_progress=show_progress)
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
        kind = kinds.APPROXIMATE[name]
        filled = site.fill(kind, training.train_index(kind, ground.training), ground.rows, ground.held_out)
        trials = list(tuning.sweep_efforts(kind, filled.index, filled.held_out, recall))
        good = tuning.best_first(trials, recall)
        if good:
            choice = {"chosen_for": count, "tried": [_plain(trial) for trial in tried]}
            card = {**_plain(good[0]), **targets.card, **choice}
            return BuiltIndex(filled.completed(), _last(vectors), card, file=filled.file)
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
            if built.file is not None:
                built.file.replace(draft)
            else:
                faiss.write_index(built.index, str(draft))
        except RuntimeError as error:  # FAISS does not pass on the system's error
            detail = "the disk is full, or the folder cannot be written"
            raise LookalikeError(f"{folder}: the index was not written; {detail}") from error
    size = (folder / "index.faiss").stat().st_size
    facts: dict[str, Any] = {"vectors": built.index.ntotal, "last": built.last, "bytes": size}
    facts |= {"dim": built.index.d, "metric": "cosine"}
    if kinds.is_on_disk(built.card["kind"]):
        head = size - kinds.disk_needed(built.card["kind"], built.index.d, built.index.ntotal)
        facts["head"] = {"bytes": head, "sha256": _sha256_of_head(folder / "index.faiss", head)}
    with atomic_write(folder / "card.json") as draft:
        draft.write_text(json.dumps({**built.card, **facts}, indent=2))
    digests = sha256_of(folder / "index.faiss"), sha256_of(folder / "card.json")
    count = built.index.ntotal
    return ActiveIndex(folder.name, digests[0], built.card["kind"], count, built.last, digests[1])


def _sha256_of_head(file: Path, size: int) -> str:
    """Return the SHA-256 of the first bytes of a file."""
    with file.open("rb") as stream:
        return hashlib.sha256(stream.read(size)).hexdigest()


@dataclass(frozen=True)
class _Filled:
    """An index with vectors, whose recall can be measured.

    Attributes:
        index: FAISS index.
        held_out: Queries, which it lacks or which a selector leaves out.
        file: File that it is mapped from, if it is on disk; it then has the queries.
    """

    index: faiss.Index
    held_out: HeldOutQueries
    file: Path | None = None

    def completed(self) -> faiss.Index:
        """Return the index, with the queries."""
        if self.file is None:
            training.add_rows(self.index, self.held_out.vectors, self.held_out.rows)
        return self.index


@dataclass(frozen=True)
class _Site:
    """Vectors to index, and how to fill an index with them; see `build_index`."""

    vectors: Vectors
    live: np.ndarray | None
    workplace: Workplace | None
    backend: CpuBackend
    show_progress: bool

    def fill(
        self,
        kind: kinds.Kind,
        index: faiss.Index,
        rows: np.ndarray,
        held_out: HeldOutQueries,
        before: Lists | None = None,
    ) -> _Filled:
        """Add rows, int64 [n], in memory, or on disk together with the queries.

        Args:
            kind: Index kind.
            index: Trained index.
            rows: Rows to add.
            held_out: Queries, which are not among the rows.
            before: Lists of the vectors before them, for an index on disk.
        """
        if not kind.on_disk or self.workplace is None:
            training.add_rows(
                index, self.vectors, rows, backend=self.backend, show_progress=self.show_progress
            )
            return _Filled(index, held_out)
        file = self.workplace.build(
            index,
            self.vectors,
            [rows, held_out.rows],
            before=before,
            backend=self.backend,
            show_progress=self.show_progress,
        )
        queries = faiss.IDSelectorBatch(self.vectors.numbers_of(held_out.rows))
        others = faiss.IDSelectorNot(queries)
        if held_out.selector is not None:
            others = faiss.IDSelectorAnd(held_out.selector, others)
        return _Filled(_read_index(file), replace(held_out, selector=others), file)


def _extend(previous: Index, site: _Site, targets: Targets) -> BuiltIndex | None:
    """Add the missing vectors to an index; `None` if it has to be built again."""
    vectors, live, before = site.vectors, site.live, None
    try:
        card = previous.card
        state = Coverage.of(vectors, live, card)
        if targets.rebuild_reason(card, vectors.dim, state):
            return None
        kind, recall = kinds.APPROXIMATE[card["kind"]], card["recall_wanted"]
        if kind.on_disk and site.workplace is not None:
            index, before = previous.emptied()
        else:
            index = previous.copied()
    except LookalikeError:  # damaged: build it again from the vectors
        return None
    rows = np.arange(len(vectors)) if live is None else np.flatnonzero(live)
    new = rows[state.inside :]
    held_out, _ = tuning.hold_out_queries(vectors, rows, new, backend=site.backend)
    if state.dead:
        alive = Selection(np.ones(len(vectors), bool) if live is None else live)
        held_out = replace(held_out, selector=alive.numbers(len(vectors), vectors.numbers_of))
    filled = site.fill(kind, index, held_out.others(new), held_out, before)
    if len(held_out.rows) >= _MIN_QUERIES:
        good = tuning.best_first([*tuning.sweep_efforts(kind, filled.index, filled.held_out, recall)], recall)
        if not good or good[0].effort > _MAX_EFFORT_GROWTH * card["effort"]:
            return None
        never_less = {name: max(card[name], getattr(good[0], name)) for name in ("effort", "oversample")}
        card = {**card, **_plain(good[0]), **never_less}
    last = max(_last(vectors), card["last"])
    return BuiltIndex(filled.completed(), last, card, is_extended=True, file=filled.file)


def _last(vectors: Vectors) -> int:
    return int(vectors.numbers_of(np.array([len(vectors) - 1]))[0]) if len(vectors) else 0


def _plain(trial: IndexTrial) -> dict[str, Any]:
    return {name: round(x, 4) if isinstance(x, float) else x for name, x in asdict(trial).items()}
