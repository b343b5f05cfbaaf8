"""A text encoder learned from the titles of a gallery's images, and measured on titles that are held out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from retrieval.cli import print_status
from retrieval.errors import InputError, LookalikeError
from retrieval.gallery import Gallery
from retrieval.metrics.statistics import bootstrap_intervals
from retrieval.model.archive import IMAGE, TEXT, TOKENIZER, write_archive
from retrieval.model.embedder import Embedder
from retrieval.progress import Progress
from retrieval.text import align_columns, pluralize
from train.layers.flow import MOST_FITTED, Fit
from train.layers.letters import Bags, LetterEncoder, Letters, coefficients

STRENGTHS = (0.1, 0.3, 1.0)
FIRST = 10  # hits that a person looks at
TIMES_CHANCE = 5
"""How much more often than by chance a held-out title has to find an image of its own among the first ten."""
FEWEST_TITLES = 20
MOST_TITLES = 5000
_MOST_SEARCHED = 20_000
_FOLDS = 5
_CHUNK = 256  # titles that search at a time
_ITEMS = 1000  # read at a time
_LABEL = "label"
_MAX_DIFFERENCE = 1e-4
SEED = 0


@dataclass(frozen=True, eq=False)
class Titles:
    """Images with the texts that describe them; images of the same words have one title.

    Attributes:
        texts: Titles [T].
        title: Title of each image, int64 [N]; -1 without one.
        vectors: Unit vectors, float32 [N, D].
    """

    texts: Sequence[str]
    title: np.ndarray
    vectors: np.ndarray

    @property
    def images(self) -> np.ndarray:
        """Number of images of each title, int64 [T]."""
        return np.bincount(self.title[self.title >= 0], minlength=len(self.texts))

    @property
    def targets(self) -> np.ndarray:
        """Mean vector of each title, as seen from the mean of all its images, float64 [T, D]."""
        titled = self.title >= 0
        sums = np.zeros((len(self.texts), self.vectors.shape[1]))
        np.add.at(sums, self.title[titled], self.vectors[titled])
        found: np.ndarray = sums / self.images[:, None] - sums.sum(0) / titled.sum()
        return found


@dataclass(frozen=True)
class Found:
    """What titles find that were held out.

    Attributes:
        recall: Share of the titles that find an image of theirs among the first ten.
        low, high: Its 95% interval, by the bootstrap over titles: other titles like these.
        mrr: Mean reciprocal rank of the first image of theirs.
        chance: Share if images are in random order.
        chance_mrr: Mean reciprocal rank if images are in random order.
    """

    recall: float
    low: float
    high: float
    mrr: float
    chance: float
    chance_mrr: float

    @property
    def is_proven(self) -> bool:
        """Whether the interval is above `TIMES_CHANCE` times chance."""
        return self.low > TIMES_CHANCE * self.chance


@dataclass(frozen=True, eq=False)
class TextSide:
    """Learned text encoder that a model file gets."""

    encoder: LetterEncoder
    titles: Sequence[str]

    def write(self, own: Embedder, out: Path, note: Mapping[str, Any]) -> None:
        """Write a model archive: the images of a model file, and the texts of the encoder.

        Args:
            own: Model; an earlier text encoder is replaced.
            out: File to write.
            note: Origin of the encoder, `titles` of the provenance.

        Raises:
            LookalikeError: The archive computes other vectors than the encoder.
        """
        data = own.path.read_bytes() if own.archive is None else own.archive.read(IMAGE)
        proto = onnx.load_model_from_string(data)
        properties = {entry.key: entry.value for entry in proto.metadata_props}
        kept = {name: value for name, value in own.provenance.items() if name != "text_proof"}
        properties["lookalike.provenance"] = json.dumps({**kept, "titles": note})
        onnx.helper.set_model_props(proto, properties)
        members = {
            IMAGE: proto.SerializeToString(),
            TEXT: self.encoder.graph(),
            TOKENIZER: self.encoder.letters.contents,
        }
        write_archive(out, members)
        some = self.titles[:_CHUNK]
        found = Embedder.open(out, own.runtime).embed_texts(some)
        difference = float(np.abs(found - self.encoder(some)).max())
        if not difference <= _MAX_DIFFERENCE:
            raise LookalikeError(f"{out}: not kept, its embeddings of texts differ by {difference:.2e}")


def fit_titles(gallery: Gallery, columns: Sequence[str]) -> Fit:
    """Return the text encoder learned from titles, and what titles find that were held out.

    Args:
        gallery: Gallery.
        columns: Metadata columns whose texts, one after another, are the title of an image; "label" is that
            of the labels.

    Raises:
        InputError: There is no such column, there are too few titles, or `tokenizers` is not installed.
    """
    letters, titles = read_titles(gallery, columns)
    count = int((titles.title >= 0).sum())
    print_status(f"{gallery.folder}: {pluralize(len(titles.texts), 'title')} of {pluralize(count, 'image')}")
    bags = Bags(letters, titles.texts)
    searched = _searched(titles)
    parts = np.random.default_rng(SEED).permutation(len(titles.texts)) % _FOLDS
    images = np.bincount(titles.title[searched][titles.title[searched] >= 0], minlength=len(titles.texts))
    ranks = _held_out(titles, bags, searched, parts)
    chosen = _chosen(ranks)
    found, strength = _found(chosen, images, len(searched)), STRENGTHS[_best(ranks)]
    refusal: str | None = None
    if not found.is_proven:
        refusal = f"held-out titles do not certainly find images {TIMES_CHANCE} times as often as by chance"
    lines = _lines(found, len(titles.texts), len(searched))
    own, present = gallery.embedder, None
    if own.has_text and "titles" not in own.provenance:  # an encoder that has not learned from them
        now = _ranks(titles, searched, own.embed_texts(titles.texts), np.arange(len(titles.texts)))
        present = _found(now, images, len(searched))
        lines.append(f"by the text encoder that the model has: {100 * present.recall:.1f}")
        low = bootstrap_intervals(((chosen < FIRST).astype(float) - (now < FIRST))[:, None])[0, 0]
        if refusal is None and not low > 0:
            refusal = "it does not certainly find more than the text encoder that the model has"
    origin = {"columns": list(columns), "titles": len(titles.texts), "images": count}
    facts = {
        "gallery": str(gallery.folder),
        **origin,
        "searched": len(searched),
        "strength": strength,
        "times_chance": TIMES_CHANCE,
        "found": asdict(found),
        "present": present and asdict(present),
        "accepted": refusal is None,
    }

    def learn() -> TextSide:
        encoder = LetterEncoder.learn(letters, bags, titles.targets, titles.images, strength)
        return TextSide(encoder, titles.texts)

    return Fit(
        command="teach",
        done="taught",
        facts=facts,
        lines=lines,
        refusal=refusal,
        note={**origin, "examples": titles.texts[:3], "strength": strength, "found": asdict(found)},
        counts={"titles": len(titles.texts)},
        learn=learn,
    )


def read_titles(gallery: Gallery, columns: Sequence[str]) -> tuple[Letters, Titles]:
    """Read titles and vectors of a gallery; see `fit_titles`.

    Of more than 50,000 images a random sample is read, and of more than 5,000 titles, too.
    """
    there = [_LABEL, *gallery.contents.columns()]
    for column in columns:
        if column not in there:
            raise InputError(f"{gallery.folder}: no column {column!r}; it has {', '.join(there)}")
    stored = gallery.embeddings(limit=MOST_FITTED)
    ids = stored.ids.tolist()
    raw: list[str] = []
    for start in range(0, len(ids), _ITEMS):
        items = gallery.items(ids[start : start + _ITEMS])
        for id in ids[start : start + _ITEMS]:
            item = items.get(id)
            facts = {} if item is None else {_LABEL: item.label, **item.metadata}
            raw.append(" ".join(str(facts[name]) for name in columns if facts.get(name) is not None))
    letters = Letters(raw)
    cleaned = {text: letters.cleaned(text) for text in set(raw)}
    texts = sorted({text for text in cleaned.values() if text})
    if len(texts) < FEWEST_TITLES:
        what = f"{gallery.folder}: {pluralize(len(texts), 'different title')} in {', '.join(columns)}"
        raise InputError(f"{what}; it takes {FEWEST_TITLES} at least to learn and to measure")
    if len(texts) > MOST_TITLES:
        texts = sorted(np.random.default_rng(SEED).choice(texts, MOST_TITLES, replace=False).tolist())
    number = {text: at for at, text in enumerate(texts)}
    title = np.array([number.get(cleaned[text], -1) for text in raw], np.int64)
    return letters, Titles(texts, title, stored.vectors)


# ---- measurement


def _searched(titles: Titles) -> np.ndarray:
    """Return the images that are searched, int64 [n], sorted by title, those without one at the end."""
    rows = np.random.default_rng(SEED).permutation(len(titles.title))[:_MOST_SEARCHED]
    order = np.where(titles.title[rows] < 0, len(titles.texts), titles.title[rows])
    found: np.ndarray = rows[np.argsort(order, kind="stable")]
    return found


def _held_out(titles: Titles, bags: Bags, searched: np.ndarray, parts: np.ndarray) -> np.ndarray:
    """Return the rank of each title, learned without its part, by each strength: float64 [strengths, T]."""
    ranks = np.full((len(STRENGTHS), len(titles.texts)), np.nan)
    targets, images = titles.targets, titles.images
    with Progress("learning without a part", _FOLDS, "parts") as progress:
        for part in range(_FOLDS):
            training, held = np.flatnonzero(parts != part), np.flatnonzero(parts == part)
            features, _ = bags.features(training)
            likeness = features[held] @ features[training].T
            learned = coefficients(features[training], targets[training], images[training], STRENGTHS)
            for number, found in enumerate(learned):
                ranks[number, held] = _ranks(titles, searched, likeness @ found, held)
            progress.update(1)
    return ranks


def _ranks(titles: Titles, searched: np.ndarray, vectors: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """Search all images by texts.

    Args:
        titles: Titles.
        searched: Images that are searched, sorted by title.
        vectors: Vectors of the texts, [q, D].
        queries: Their titles, int [q].

    Returns:
        Number of images before the first one of the title, float64 [q]; nan if none of its own is searched.
    """
    images, of_image = titles.vectors[searched], titles.title[searched]
    titled = of_image >= 0
    there, starts = np.unique(of_image[titled], return_index=True)
    place = np.searchsorted(there, queries).clip(max=len(there) - 1)
    ranks = np.empty(len(queries))
    for start in range(0, len(queries), _CHUNK):
        some = slice(start, start + _CHUNK)
        scores = vectors[some].astype(np.float32) @ images.T
        best = np.maximum.reduceat(scores[:, titled], starts, axis=1)
        own = np.take_along_axis(best, place[some, None], 1)
        ranks[some] = (scores > own).sum(1)
    ranks[there[place] != queries] = np.nan
    return ranks


def _chosen(ranks: np.ndarray) -> np.ndarray:
    """Return the rank of each title by the strength that the other half of the titles chose."""
    halves = np.random.default_rng(SEED).permutation(ranks.shape[1]) % 2
    best = [_best(ranks[:, halves != half]) for half in (0, 1)]
    found: np.ndarray = ranks[np.take(best, halves), np.arange(ranks.shape[1])]
    return found


def _best(ranks: np.ndarray) -> int:
    return int(np.nanmean(1 / (1 + ranks), 1).argmax())


def _found(ranks: np.ndarray, images: np.ndarray, searched: int) -> Found:
    """Return what ranks, float64 [T], say of titles with some images each, int [T]."""
    known = ~np.isnan(ranks)
    hit = (ranks[known] < FIRST).astype(float)
    low, high = bootstrap_intervals(hit[:, None])[0].tolist()
    mrr = float((1 / (1 + ranks[known])).mean())
    return Found(float(hit.mean()), low, high, mrr, *chances(images[known], searched))


def chances(images: np.ndarray, searched: int) -> tuple[float, float]:
    """Return the mean recall and reciprocal rank of titles if images are in random order.

    Args:
        images: Images of each title, int [T], at least 1.
        searched: Number of all images.
    """
    sizes, times = np.unique(images, return_counts=True)
    left = searched - np.arange(searched)
    recall = reciprocal = 0.0
    for size, count in zip(sizes.tolist(), times.tolist(), strict=True):
        none = np.cumprod(np.maximum(1 - size / left, 0))  # of the first 1, 2, ... images
        first = -np.diff(none, prepend=1)
        recall += count * (1 - none[min(FIRST, searched) - 1])
        reciprocal += count * (first / np.arange(1, searched + 1)).sum()
    return recall / times.sum(), reciprocal / times.sum()


def _lines(found: Found, titles: int, images: int) -> list[str]:
    spread = f"{100 * found.recall:.1f} ({100 * found.low:.1f} to {100 * found.high:.1f})"
    rows = [
        ("", "by its text (95% interval)", "by chance"),
        (f"titles with an image among the first {FIRST} of {images:,}", spread, f"{100 * found.chance:.1f}"),
        ("mean reciprocal rank", f"{100 * found.mrr:.1f}", f"{100 * found.chance_mrr:.1f}"),
    ]
    return [
        f"{pluralize(titles, 'title')}, each held out while the others were learned from",
        *align_columns(rows),
    ]
