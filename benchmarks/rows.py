"""Rows of `make bench`: work, and another way to do it.

The other way is a library that people use, or a limit: the part of the work that cannot be left out. The rows
take some contenders of the other modules of this folder, at sizes that are quick to measure.
"""

from __future__ import annotations

import importlib.util
import os
import resource
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np

from benchmarks._servers import processes_seconds
from benchmarks.table import Absent, Pair, Row, Work, compare

_PML = "pytorch-metric-learning"


def measured(groups: Iterable[str], seconds: float) -> Iterator[Row | Absent]:
    """Measure the rows of some groups one after the other, each for some seconds."""
    import faiss
    import torch

    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    for group in groups:
        with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
            for pair in GROUPS[group](Path(name), stack):
                yield pair if isinstance(pair, Absent) else compare(group, pair, seconds)


def _beside(
    library: str, what: str, ours: Work, other: Callable[[], Work], goal: float | None = None
) -> Pair | Absent:
    """Return a pair with another library; `other` imports that and returns its work."""
    if importlib.util.find_spec(_MODULES[library]) is None:
        return Absent(what, library)
    return Pair(what, library, ours, other(), goal)


_MODULES = {_PML: "pytorch_metric_learning", "POT": "ot", "torchvision": "torchvision"}


def losses(*_: Any) -> Iterator[Pair | Absent]:
    """Losses of 512 and 2,048 embeddings of 512: against the matrix products that all need, and libraries."""
    from benchmarks import losses as module

    contenders = {one.label: one for one in module.CONTENDERS}
    for size in (512, 2048):
        x, y = module.batch(size, 512, "cpu")
        for label in _LOSSES:
            spec, peer = contenders[label].spec, contenders[label].peer
            loss = module.build(spec, size // 4, 512)
            ours = module.training_step(loss, x, y)
            what, goal = label if size == 512 else f"{label}, 2,048", module.goal(spec, size, 512)
            yield Pair(what, "X Xᵀ and its gradient", ours, module.limit_step(x), goal)
            if label == "soft-triple":
                yield Pair(
                    what, "Z Cᵀ and its gradients, 10 centers C a class", ours, module.own_limit(loss, x), 2
                )
            if peer is not None and size == 512:
                yield _beside(_PML, label, ours, partial(_pml_step, peer, x, y), 1)
    transport = module.Transport()
    yield _beside("POT", "transport, 50 classes of 4", transport.ours, lambda: transport.peer, 1 / 15)


def _pml_step(peer: Callable[[Any], Any], x: Any, y: Any) -> Work:
    import pytorch_metric_learning as pml
    from pytorch_metric_learning import distances, losses, miners  # noqa: F401

    from benchmarks.losses import training_step

    return training_step(peer(pml), x, y)


_LOSSES = ("triplet semi-hard", "triplet hard", "sct", "multi-similarity", "margin", "contrastive")
_LOSSES += (
    "lifted-generalized",
    "fast-ap",
    "raw semi-hard",
    "hphn-triplet",
    "soft-triple",
    "triplet optimal",
    "hphn-triplet optimal",
    "triplet symmetric",
    "wasserstein",
)


def evaluation(*_: Any) -> Iterator[Pair | Absent]:
    """12,000 x 256 embeddings with 5.3 images of a class."""
    from benchmarks import evaluation as module

    data, what = module.clustered(12_000, 256), "8 neighbours of 12,000 images"
    neighbours, metrics = module.our_neighbours(data), module.our_metrics(data)
    yield Pair(what, "matrix product", neighbours, partial(module.product, data), 1.5)
    yield Pair(what, "FAISS", neighbours, module.bare_faiss(data), 1.05)
    yield _beside(_PML, what, neighbours, partial(module.pml_neighbours, data), 1.05)
    what = "Recall@K, R-precision, MAP@R of 12,000"
    yield _beside(_PML, what, metrics, partial(module.pml_metrics, data), 1)


def search(folder: Path, *_: Any) -> Iterator[Pair | Absent]:
    """Hits among 100,000 or 1,000,000 x 128 vectors on disk, with facts: key, path, label, two columns."""
    # Not the graph over a million: it takes two minutes to build.
    for count, kinds in ((100_000, ("flat", "hnsw", "ivf-sq8")), (1_000_000, ("ivf-sq8",))):
        yield from _searches(folder / str(count), count, kinds)


def _searches(folder: Path, count: int, kinds: Iterable[str]) -> Iterator[Pair]:
    from benchmarks import filters
    from benchmarks import search as module
    from retrieval import Gallery
    from retrieval.search.filters import Filters, State
    from retrieval.storage.lookups import create_lookups
    from retrieval.storage.manifest import Manifest
    from retrieval.storage.records import IndexSpec
    from retrieval.storage.store import Store

    Store.create(folder, Manifest("", 128, embedding="benchmark"))
    gallery, queries = Gallery(folder), module.draw(100, 128, 0)
    filters.fill(gallery, 0, count, 128)
    with gallery.store.writing():
        create_lookups(gallery.store)
    for kind in kinds:
        with gallery.store.writing():
            gallery.build_index(IndexSpec(kind, recall=0.95))
        gallery = Gallery(folder)
        stored = gallery.state.stored
        exact = module.flat(stored)
        name = kind if count == 100_000 else f"{kind}, {count:,}"
        bare = module.bare(gallery.index, stored) if gallery.index else partial(exact.search, k=10)
        each, once = partial(_search, gallery, queries[:20], 1), partial(_search, gallery, queries, 100)
        twenty = partial(_each, bare, queries[:20])
        yield Pair(f"20 searches, {name}", "FAISS", partial(each, None), twenty, 2.0)
        yield Pair(f"100 searches at once, {name}", "FAISS", partial(once, None), partial(bare, queries), 1.5)
        unread = partial(each, None, read=False)
        yield Pair(f"20 searches, {name}, facts not read", "FAISS", unread, twenty, 1.5)
        state = State(gallery.store.state(), gallery.state)
        for share in filters.SHARES:
            where = f"price < {share}"
            chosen = Filters(gallery.store).selection(where, state)
            alone = _flat(stored.take(chosen.rows))
            ways = {
                "FAISS with a selector": filters.bare(gallery, exact, chosen.allowed),
                "FAISS over the selected alone": partial(alone.search, k=10),
            }
            times = {way: filters.timed(partial(_each, find, queries[:20]))[1] for way, find in ways.items()}
            better = min(times, key=times.__getitem__)
            other = partial(_each, ways[better], queries[:20])
            yield Pair(f"20 searches in {share:.0%}, {name}", better, partial(each, where), other, 1.5)


def _flat(vectors: np.ndarray) -> Any:
    """Return FAISS's exact index of vectors."""
    import faiss

    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    return index


def _search(gallery: Any, queries: np.ndarray, size: int, where: str | None, *, read: bool = True) -> None:
    for start in range(0, len(queries), size):
        found = gallery.search_vectors(queries[start : start + size], 10, where=where)
        if read:
            for hits in found:
                for hit in hits:
                    hit.key, hit.path, hit.label, hit.metadata["price"], hit.metadata["sku"]


def _each(find: Callable[[np.ndarray], Any], queries: np.ndarray) -> None:
    for query in queries:
        find(query[None])


def images(folder: Path, *_: Any) -> Iterator[Pair | Absent]:
    """Decode JPEGs and scale them for a model of 224 pixels, as training, indexing and searching do."""
    from benchmarks._photographs import write_photographs
    from retrieval import Preprocess

    preprocess = Preprocess(size=224)
    # At 500 x 375: as fast as torchvision, which takes 220/350 of Pillow's time. Above: half of its time.
    sizes = (((500, 375), 8, 220 / 350, 1.0), ((3000, 2000), 2, 1 / 5, 0.5), ((4000, 3000), 2, 1 / 5, 0.5))
    for size, count, goal, faster in sizes:
        paths = write_photographs(folder / f"{size[0]}", count, 1, size)
        what = f"{count} JPEGs of {size[0]} x {size[1]}"
        ours = partial(_ours, preprocess, paths)
        yield Pair(what, "Pillow", ours, partial(_pillow, paths), goal)
        yield _beside("torchvision", what, ours, partial(_torchvision, paths), faster)


def _ours(preprocess: Any, paths: list[Path]) -> None:
    from retrieval.images.load import load_pixels

    for path in paths:
        preprocess(load_pixels(path, side=preprocess.scaled))


def _pillow(paths: list[Path]) -> None:
    from PIL import Image

    for path in paths:
        with Image.open(path) as image:
            scale = 224 / min(image.size)
            width, height = (round(scale * side) for side in image.size)
            small = image.convert("RGB").resize((width, height), Image.Resampling.BICUBIC)
            left, top = (width - 224) // 2, (height - 224) // 2
            np.asarray(small.crop((left, top, left + 224, top + 224)))


def _torchvision(paths: list[Path]) -> Work:
    from torchvision.io import decode_jpeg, read_file
    from torchvision.transforms import v2

    change = v2.Compose([v2.Resize(224, v2.InterpolationMode.BICUBIC, antialias=True), v2.CenterCrop(224)])
    return lambda: [change(decode_jpeg(read_file(str(path)))) for path in paths]


def models(folder: Path, stack: ExitStack) -> Iterator[Pair | Absent]:
    """An untrained ResNet-18 of 224 pixels: indexing, and a server that searches 20,000 vectors by JPEG."""
    from benchmarks import indexing
    from benchmarks._photographs import write_photographs
    from benchmarks._servers import processor_seconds, serving
    from retrieval import Embedder, Gallery, load_image
    from retrieval.images.decode import decode_ahead
    from retrieval.images.picture import Decoded

    embedder = Embedder(indexing.untrained(folder), threads=1)
    paths = write_photographs(folder / "images", 64, 1)
    found = decode_ahead(paths, embedder.preprocess, side=embedder.preprocess.scaled)
    pixels = [one.pixels for one in found if isinstance(one, Decoded)]
    embedder.embed_pixels(
        [pixels[n % len(pixels)] for n in range(indexing.MEASURED)]
    )  # it measures its batch size

    def index() -> None:
        Gallery.create(folder / uuid.uuid4().hex, embedder).add([folder / "images"])

    def halves() -> None:
        indexing.decoding_alone(paths, embedder)
        indexing.model_alone(pixels, embedder)

    yield Pair("indexing 64 JPEGs", "decoding, then the model", index, halves, 1.1)
    yield Pair(
        "32 images through a ResNet-18",
        "torch",
        partial(embedder.embed_pixels, pixels[:32]),
        _eager(pixels[:32]),
        1,
    )
    np.save(folder / "v.npy", np.random.default_rng(0).standard_normal((20_000, embedder.dim), np.float32))
    Gallery.import_vectors(folder / "served", folder / "v.npy", model=embedder.path)
    gallery = Gallery(folder / "served")
    url = stack.enter_context(serving(folder / "served"))
    connection = stack.enter_context(closing(HTTPConnection(urlsplit(url).netloc, timeout=60)))
    contents = [path.read_bytes() for path in paths[:8]]

    def ask() -> None:
        for content in contents:
            connection.request("POST", "/v1/search?k=10", content, {"Content-Type": "image/jpeg"})
            connection.getresponse().read()

    def bare() -> None:
        for content in contents:
            image = embedder.preprocess(load_image(content, side=embedder.preprocess.scaled))
            gallery.search_vectors(embedder.embed_pixels([image]), 10)

    yield Pair(
        "8 searches by JPEG over HTTP",
        "decode, embed and search",
        ask,
        bare,
        1.1,
        partial(processor_seconds, url),
    )


def _eager(pixels: list[np.ndarray]) -> Work:
    import torch
    from torchvision.models import resnet18

    network, batch = resnet18().eval(), torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).float()

    def work() -> None:
        with torch.inference_mode():
            network(batch)

    return work


def start(folder: Path, _: ExitStack) -> Iterator[Pair | Absent]:
    """CPU time of whole processes that find their byte code: commands, and servers until they answer."""
    from retrieval import Embedder, Gallery, Runtime
    from retrieval.commands.default_model import LITE0, chosen_model

    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-m", "lookalike"]
    completing = {"_LOOKALIKE_COMPLETE": "bash_complete", "COMP_WORDS": "lookalike se", "COMP_CWORD": "1"}

    def pair(what: str, seconds: float, words: list[str], **variables: str) -> Pair:
        ours = partial(
            subprocess.run, words, stdout=subprocess.DEVNULL, check=True, env={**kept, **variables}
        )
        return Pair(what, f"{seconds:g} s", ours, seconds, 1, _used_by_children)

    yield pair("lookalike --help", 0.1, [*command, "--help"])
    yield pair("completion of a command", 0.1, command, **completing)
    importing = "from retrieval import Gallery"
    yield pair(importing, 0.3, [sys.executable, "-c", importing])
    yield pair("lookalike search --help", 0.5, [*command, "search", "--help"])
    yield pair("lookalike train --help", 0.5, [*command, "train", "--help"])
    gallery = folder / "served"
    Gallery.create(gallery, Embedder(chosen_model(LITE0, Runtime())))
    for what, seconds, page, workers in (
        ("a server, without its page", 1.0, False, 1),
        ("a server, until its page is sent", 2.0, True, 1),
        ("a server of 2 workers, without its page", 2.0, False, 2),
    ):
        used = _Used(partial(_serve, gallery, page, workers, kept))
        yield Pair(what, f"{seconds:g} s", used, seconds, 1, used.clock)


class _Used:
    """CPU time of work that reports it: processes of a server that nobody waits for are in no other clock.

    Args:
        work: Returns the CPU seconds of one run.
    """

    def __init__(self, work: Callable[[], float]) -> None:
        self._work, self._total = work, 0.0

    def __call__(self) -> None:
        self._total += self._work()

    def clock(self) -> float:
        """Return the CPU seconds of all runs so far."""
        return self._total


def _serve(gallery: Path, page: bool, workers: int, environment: dict[str, str]) -> float:
    """Start a server, wait until it answers, with its page if it has one, and stop it.

    Return the CPU seconds that its processes used.
    """
    words = ["serve", str(gallery), "--port", "0", "--workers", str(workers)]
    command = [sys.executable, "-m", "lookalike", *words, "--page" if page else "--no-page"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen(command, env=environment, **pipes) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().removeprefix("Lookalike is at ").strip()
            if page:
                httpx.get(url, timeout=60).raise_for_status()
            return processes_seconds(process.pid)
        finally:
            process.terminate()


def _used_by_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


# pytorch-metric-learning comes last: it replaces methods of FAISS.
_ROWS: tuple[Callable[[Path, ExitStack], Iterator[Pair | Absent]], ...] = (
    start,
    images,
    search,
    models,
    losses,
    evaluation,
)
GROUPS = {rows.__name__: rows for rows in _ROWS}
ABOUT = {name: (rows.__doc__ or "").strip() for name, rows in GROUPS.items()}
