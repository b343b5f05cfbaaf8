"""Training of small networks on one device, many at a time: images, batches and augmentation live on it.

On a GPU the whole step (images, forward pass, loss, backward pass, Adam, traces) is a CUDA graph, which is
recorded once for a loss and a data set and replayed for all its runs; the networks of different losses learn
at the same time, each on a stream of its own. Where a loss cannot be recorded, its steps are taken one by
one, as they are on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from benchmarks.experiments.arrays import HELD_OUT, TEST, TRAIN, Packed
from retrieval.images.preprocess import Preprocess
from train import losses
from train.config import ModelConfig
from train.models.embedding_model import EmbeddingModel

TRACES = ("loss", "mean_similarity", "hard_anchor_share", "synthetic_share")
LAST_PART = 0.1  # of the steps, over which traces are averaged
_PARTS = {True: ((TRAIN,), (HELD_OUT,)), False: ((TRAIN, HELD_OUT), (TEST,))}  # rate is chosen -> train, test
_WARM_UP = 3
_ROWS = 1000  # images embedded, or compared with all others, at a time
_CROSSING_BATCHES = 20


@dataclass(frozen=True)
class Run:
    """One network.

    Attributes:
        division: Number of the division of the classes.
        seed: Seed of weights and batches.
        lr: Learning rate at the start.
        steps: Number of steps.
        choosing: Whether it is one of those that the learning rate is chosen by, within the training classes.
    """

    division: int
    seed: int
    lr: float
    steps: int
    choosing: bool


class Images:
    """A data set on the device, padded for shifts, and the batches and test images of its divisions.

    Args:
        packed: The images, as many of each class.
        device: Device.
        classes: Classes of a batch.
        per_class: Images of a class in a batch.
        shift: Largest shift in pixels.
        flip: Whether images are mirrored at random.
    """

    def __init__(
        self, packed: Packed, device: torch.device, *, classes: int, per_class: int, shift: int, flip: bool
    ) -> None:
        counts = np.bincount(packed.classes)
        if len(set(counts)) != 1 or (np.diff(packed.classes) < 0).any():
            raise ValueError("images must be sorted by class, as many of each")
        self.count, self.side, self.shift, self.flip = int(counts[0]), packed.images.shape[1], shift, flip
        self.classes, self.per_class, self.device = classes, per_class, device
        self.plain = torch.from_numpy(packed.images).to(device)  # [N, H, W, C]
        pad = ((0, 0), (shift, shift), (shift, shift), (0, 0))
        self.padded = torch.from_numpy(np.pad(packed.images, pad, mode="edge")).to(device)
        self.labels = torch.arange(classes, device=device).repeat_interleave(per_class)
        self._base = torch.arange(self.side, device=device)
        # (division, whether the rate is chosen, whether it is the test) -> numbers of the classes
        self._chosen = {
            (division, choosing, testing): torch.from_numpy(
                np.flatnonzero(np.isin(part, _PARTS[choosing][testing]))
            ).to(device)
            for division, part in enumerate(packed.parts)
            for choosing in (False, True)
            for testing in (False, True)
        }

    def tested(self, run: Run) -> Tensor:
        """Return the numbers of the images that a run is measured on, sorted by class."""
        within = torch.arange(self.count, device=self.device)
        return (self._chosen[run.division, run.choosing, True][:, None] * self.count + within).flatten()

    def draw(self, run: Run) -> tuple[Tensor, Tensor, Tensor]:
        """Draw the batches of a run.

        Returns:
            Images [steps, B], shifts [steps, B, 2] from 0 to twice the largest, and whether they are
            mirrored [steps, B].
        """
        generator = torch.Generator(self.device).manual_seed(1000 * run.division + run.seed)
        pool = self._chosen[run.division, run.choosing, False]
        shape = (run.steps, self.classes * self.per_class)

        def uniform(*size: int) -> Tensor:
            return torch.rand(size, generator=generator, device=self.device)

        classes = pool[uniform(run.steps, len(pool)).topk(self.classes).indices]  # [steps, classes]
        within = uniform(run.steps, self.classes, self.count).topk(self.per_class).indices
        images = (classes[:, :, None] * self.count + within).view(shape)
        shifts = (uniform(*shape, 2) * (2 * self.shift + 1)).long()
        return images, shifts, (uniform(*shape) < 0.5) & self.flip

    def augmented(self, images: Tensor, shifts: Tensor, mirrored: Tensor) -> Tensor:
        """Return the pixels of one batch: uint8 [B, H, W, 3]."""
        rows = self._base + shifts[:, :1]  # [B, H]
        columns = torch.where(mirrored[:, None], self.side - 1 - self._base, self._base) + shifts[:, 1:]
        found = self.padded[images[:, None, None], rows[:, :, None], columns[:, None, :]]
        return found.expand(-1, -1, -1, 3)


class Engine:
    """One loss on one data set: a network that is trained again for every run.

    Args:
        loss: Specification of the loss.
        model: Settings of the network.
        images: The data set.
        most_steps: Steps of the longest run.
        graph: Record the step as a CUDA graph, if that is possible.

    Attributes:
        problem: Why the step could not be recorded; empty if it was, or should not be.
    """

    def __init__(
        self,
        loss: Mapping[str, Any],
        model: Mapping[str, Any],
        images: Images,
        most_steps: int,
        *,
        graph: bool,
    ) -> None:
        self.images, self.device = images, images.device
        self.on_gpu = self.device.type == "cuda"
        self.stream = torch.cuda.Stream(self.device) if self.on_gpu else None
        self.problem = ""
        self._settings = dict(model)
        self._weights: dict[int, list[Tensor]] = {}  # by seed
        self.network = self._network(0).to(self.device)
        self.loss = losses.build(
            loss,
            num_classes=images.classes,
            embedding_dim=self.network.config.embedding_dim,
            per_class=images.per_class,
        ).to(self.device)
        batch = len(images.labels)
        self._images = torch.zeros(most_steps, batch, dtype=torch.long, device=self.device)
        self._shifts = torch.zeros(most_steps, batch, 2, dtype=torch.long, device=self.device)
        self._mirrored = torch.zeros(most_steps, batch, dtype=torch.bool, device=self.device)
        self._rates = torch.zeros(most_steps, device=self.device)
        self._traces = torch.zeros(most_steps, len(TRACES), device=self.device)
        self._step = torch.zeros(1, dtype=torch.long, device=self.device)
        self._lr = torch.zeros((), device=self.device)
        self.optimizer = torch.optim.Adam(
            self.network.parameters(),
            lr=self._lr,
            weight_decay=0.0,
            fused=self.on_gpu,
            foreach=False,
            capturable=self.on_gpu,
        )
        self._graph: torch.cuda.CUDAGraph | None = None
        if graph and self.on_gpu:
            self._record()

    @property
    def recorded(self) -> bool:
        """Whether steps are replayed from a graph."""
        return self._graph is not None

    def mark(self) -> torch.cuda.Event | None:
        """Return an event at the end of what is queued; `None` on a CPU, where nothing is."""
        return None if self.stream is None else self.stream.record_event()

    def activity(self) -> AbstractContextManager[Any]:
        """Return the context in which this engine's work is queued."""
        return torch.cuda.stream(self.stream) if self.stream is not None else nullcontext()

    def begin(self, run: Run) -> None:
        """Queue the start of a run."""
        with self.activity(), torch.no_grad():
            for own, fresh in zip(self.network.state_dict().values(), self._first(run.seed), strict=True):
                own.copy_(fresh)
            for state in self.optimizer.state.values():
                for value in state.values():
                    value.zero_()
            for own, drawn in zip(
                (self._images, self._shifts, self._mirrored), self.images.draw(run), strict=True
            ):
                own[: run.steps].copy_(drawn)
            course = torch.arange(run.steps, device=self.device) / run.steps
            self._rates[: run.steps] = run.lr * 0.5 * (1 + torch.cos(torch.pi * course))
            self._step.zero_()
        self.network.train()

    def advance(self, steps: int) -> None:
        """Queue some steps."""
        with self.activity():
            for _ in range(steps):
                if self._graph is not None:
                    self._graph.replay()
                else:
                    self._take_step()

    def measure(self, run: Run) -> Callable[[], dict[str, float]]:
        """Queue the measurement of a trained network; return what waits for the numbers and returns them."""
        with self.activity(), torch.no_grad():
            self.network.eval()
            vectors = self._embed(self.images.tested(run))
            recall, precision = retrieval_scores(vectors, self.images.count)
            last = self._traces[int((1 - LAST_PART) * run.steps) : run.steps].mean(0)
            numbers = [recall, precision, self._crossing(run), *last]
            found = torch.stack(numbers)
        names = ("recall_at_1", "map_at_r", "crossing_share", *TRACES)

        def read() -> dict[str, float]:
            with self.activity():
                return dict(zip(names, found.tolist(), strict=True))

        return read

    def _network(self, seed: int) -> EmbeddingModel:
        torch.manual_seed(seed)
        return EmbeddingModel(ModelConfig(**self._settings), Preprocess(size=self.images.side))

    def _first(self, seed: int) -> list[Tensor]:
        """Return the first weights and statistics."""
        if seed not in self._weights:
            state = self._network(seed).state_dict()
            self._weights[seed] = [value.clone().to(self.device) for value in state.values()]
        return self._weights[seed]

    def _take_step(self) -> None:
        for parameter in self.network.parameters():
            parameter.grad = None  # a recorded step writes new gradients into memory of its own
        drawn = (table.index_select(0, self._step)[0] for table in self._tables())
        embeddings = self.network(self.images.augmented(*drawn))
        value = self.loss(embeddings, self.images.labels)
        value.backward()
        self._lr.copy_(self._rates.index_select(0, self._step)[0])
        self.optimizer.step()
        with torch.no_grad():
            similarity = normalize(embeddings.detach()).mean(0).square().sum()
            known = {**self.loss.diagnostics, "loss": value.detach(), "mean_similarity": similarity}
            absent = torch.full_like(similarity, torch.nan)
            row = torch.stack([known.get(name, absent).float() for name in TRACES])
            self._traces.index_copy_(0, self._step, row[None])
            self._step.add_(1).clamp_(max=len(self._rates) - 1)

    def _tables(self) -> Iterator[Tensor]:
        yield from (self._images, self._shifts, self._mirrored)

    def _record(self) -> None:
        torch.cuda.synchronize(self.device)
        with self.activity():
            for _ in range(_WARM_UP):  # libraries prepare their kernels
                self._take_step()
        torch.cuda.synchronize(self.device)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=self.stream):
                self._take_step()
            torch.cuda.synchronize(self.device)
            with self.activity():
                graph.replay()
            torch.cuda.synchronize(self.device)
        except RuntimeError as error:  # torch wraps what CUDA reports
            self.problem = str(error).splitlines()[0]
            torch.cuda.synchronize(self.device)
            return
        self._graph = graph

    def _embed(self, places: Tensor) -> Tensor:
        """Return unit vectors of images as they are: [N, D]."""
        parts = [self.network(self.images.plain[part].expand(-1, -1, -1, 3)) for part in places.split(_ROWS)]
        return normalize(torch.cat(parts))

    def _crossing(self, run: Run) -> Tensor:
        """Return the share of mirrored points (Symm) of training images that are nearest to another class.

        The images of a class are taken in pairs; each is mirrored at the other, on the sphere.
        """
        batches = self.images.draw(Run(run.division, run.seed, run.lr, _CROSSING_BATCHES, run.choosing))[0]
        vectors = self._embed(batches.flatten())
        pairs = vectors.view(_CROSSING_BATCHES, -1, 2, vectors.shape[1])
        return crossing_share(pairs, self.images.per_class // 2)


def crossing_share(pairs: Tensor, per_class: int) -> Tensor:
    """Return the share of mirrored points whose most similar original belongs to another class.

    Args:
        pairs: [batches, P, 2, D] unit vectors, pairs of one class; those of a class follow each other.
        per_class: Pairs of a class.
    """
    other = pairs.flip(2)
    mirrored = 2 * (pairs * other).sum(-1, keepdim=True) * other - pairs
    points = pairs.flatten(1, 2)  # [batches, B, D]
    similarity = mirrored.flatten(1, 2) @ points.mT
    label = torch.arange(points.shape[1], device=points.device) // (2 * per_class)
    nearest = label[similarity.argmax(2)]
    return (nearest != label).float().mean()


def retrieval_scores(vectors: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return Recall@1 and MAP@R of unit vectors, each against all others.

    Args:
        vectors: [N, D], sorted by class.
        count: Vectors of each class.
    """
    relevant = count - 1
    label = torch.arange(len(vectors), device=vectors.device) // count
    rank = torch.arange(1, relevant + 1, device=vectors.device)
    recall, precision = [], []
    for rows in torch.arange(len(vectors), device=vectors.device).split(_ROWS):
        similarity = vectors[rows] @ vectors.T
        similarity.scatter_(1, rows[:, None], -2.0)
        nearest = similarity.topk(relevant).indices
        hit = (label[nearest] == label[rows][:, None]).float()
        recall.append(hit[:, 0])
        precision.append((hit * hit.cumsum(1) / rank).sum(1) / relevant)
    return torch.cat(recall).mean(), torch.cat(precision).mean()
