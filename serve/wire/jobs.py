"""Jobs and their results."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from serve.wire.images import Image
from serve.wire.problems import ProblemDetails

State = Literal["running", "done", "failed"]


class DuplicateGroup(BaseModel):
    """Images that are near-duplicates of each other."""

    images: list[Image]
    lowest: float = Field(
        description="Lowest similarity of two of them; below `min_score` if the group is a chain."
    )
    identical: bool = Field(description="Whether the files of all have the same bytes.")
    surplus: list[int] | None = Field(
        description="With `keep`: ids of those that another one stands for. None of a group across labels."
    )


class DuplicatesAnswer(BaseModel):
    """Groups of near-duplicates: those whose labels disagree first, then by falling similarity."""

    total: int = Field(description="Number of groups, of which the first `limit` are listed.")
    groups: list[DuplicateGroup]


class Neighbour(BaseModel):
    """A neighbour of an image."""

    image: Image
    score: float = Field(description="Cosine similarity of the two.")


class SuspectedLabel(BaseModel):
    """An image that its neighbours give another label."""

    image: Image
    suggested: str = Field(description="The label with the most votes.")
    lead: float = Field(
        description="Similarity to the mean of the suggested class, less that to the mean of its own."
    )
    votes: float = Field(description="Share of the votes for the suggested label, 0 to 1.")
    own_votes: float = Field(description="Share of the votes for its own label.")
    precision: float = Field(
        description="Expected share of wrong labels among the suspects up to this one, 0 to 1."
    )
    neighbours: list[Neighbour] = Field(description="Those with the suggested label, nearest first.")
    own_neighbours: list[Neighbour] = Field(
        description="The nearest images with its own label, at most four, however far."
    )


class SuspectsAnswer(BaseModel):
    """Images whose label is probably wrong, by falling `lead`."""

    total: int = Field(description="Number of images that their neighbours give another label.")
    likely: int = Field(
        description="Number of the first ones, of which at least half are expected to be wrong."
    )
    labelled: int = Field(description="Number of images with a label.")
    single: int = Field(description="Images whose label no other one has: nothing can confirm it.")
    confirmed: int = Field(description="Images left out since their label was decided on by hand.")
    suspects: list[SuspectedLabel]


class Threshold(BaseModel):
    """What a lowest probability of hits does, on classes that were held out."""

    probability: float
    hits: float = Field(description="Share of the hits that reach it.")
    right: float | None = Field(description="Share of right ones among these; null if there are none.")
    answered: float = Field(
        description="Share of the queries with such a hit, of those whose thing is in the gallery."
    )
    refused: float | None = Field(
        description="Share of the queries without such a hit, of those whose thing is not in the gallery."
    )


class CalibrationAnswer(BaseModel):
    """The calibration that hits have from now on, measured on classes that were held out."""

    queries: int = Field(description="Number of queries.")
    classes: int = Field(description="Number of their classes.")
    error: float = Field(description="Calibration error: mean distance of probability and share right.")
    error_by_chance: float = Field(description="What it would be if each probability were perfect.")
    error_of_folds: list[float] = Field(description="It on each fifth of the classes.")
    error_of_best: float = Field(description="It of the best hit of each query.")
    reliable: bool = Field(description="Whether the error is low enough to rely on the probabilities.")
    thresholds: list[Threshold]


class MapAnswer(BaseModel):
    """A map of the gallery: only neighbourhoods have a meaning, not axes and distances.

    It is in columns, since there may be 100,000 images.
    """

    total: int = Field(description="Number of images that those on the map are a sample of.")
    labels: list[str] = Field(description="The different labels, sorted.")
    ids: list[int] = Field(description="The images on the map.")
    label: list[int | None] = Field(description="For each image the position of its label in `labels`.")
    right: list[bool | None] = Field(
        description="Whether the most similar other image on the map has its label; null without a label."
    )
    x: list[float] = Field(description="Places, from -1 to 1; both axes have the same scale.")
    y: list[float]


class TripletsAnswer(BaseModel):
    """A diagram of the nearest images of the own and of other classes."""

    state: str = Field(description="Digest of the gallery's state that it shows.")
    images: int = Field(description="Number of labelled images in it, a random sample of `total`.")
    total: int = Field(description="Number of labelled images.")
    left_out: int = Field(description="Images of the sample that are alone in their class.")
    hard_share: float = Field(description="Share of images to which another class is nearer, 0 to 1.")
    html: str = Field(description="The diagram, as a fragment of HTML.")


class MissingGroup(BaseModel):
    """Searches that look more like each other than like anything in the gallery."""

    searches: int = Field(description="Number of them.")
    expected: float = Field(description="Number that chance explains.")
    certain: bool = Field(description="Whether there are more than by chance.")
    nearest: list[Neighbour] = Field(description="The images that are nearest to them, nearest first.")
    first: str = Field(description="Time of the first one, ISO 8601, UTC.")
    last: str


class WantedLabel(BaseModel):
    """An image whose label would help."""

    image: Image
    searches: int = Field(description="Number of uncertain searches that it would help.")


class SampleDifference(BaseModel):
    """How well a classifier separates two samples of searches or images."""

    model_config = ConfigDict(from_attributes=True)

    auc: float = Field(description="Area under the ROC curve: 0.5 if they are alike, 1 if they never are.")
    low: float = Field(description="Lower end of its 95% interval.")
    high: float
    certain: bool = Field(description="Whether they differ: the interval is above 0.5.")


class CoverageAnswer(BaseModel):
    """What was searched for and not found; see docs/coverage.md."""

    searches: int
    pictures: int = Field(description="Those by a picture or a vector, which may show what is not there.")
    calibrated: bool = Field(description="Whether probabilities decide what was found.")
    lost: int = Field(description="Searches by a picture that found nothing.")
    lost_interval: tuple[float, float] = Field(description="95% interval of their share.")
    lost_by_chance: float = Field(description="Share of the gallery's own images that find nothing.")
    found_since: int | None = Field(
        description="Searches that found nothing then, and would now; null if the gallery is not calibrated."
    )
    filtered_out: int = Field(description="Searches whose condition left no hit.")
    unopened: int | None = Field(
        description="Searches of which nothing was opened; null if nothing ever was."
    )
    groups: list[MissingGroup] = Field(description="What may be missing, the largest certain groups first.")
    drift: SampleDifference | None = Field(description="Searches and images of the gallery.")
    change: SampleDifference | None = Field(description="Newer and older searches.")
    images: int
    never: int = Field(description="Images that no search has among its first ten.")
    never_by_chance: float
    unseen: list[Image] = Field(description="Some of them, the furthest from all searches first.")
    wanted: list[WantedLabel] = Field(description="Images whose labels would help most.")
    notes: list[str] = Field(description="What else a reader has to know.")


class JobProgress(BaseModel):
    """How far a job is."""

    what: str = Field(examples=["comparing"])
    done: int
    total: int | None
    unit: str = Field(examples=["images"])


class JobAnswer(BaseModel):
    """A job."""

    id: str
    kind: str
    state: State
    created: str = Field(description="Time of its start, ISO 8601, UTC.")
    ended: str | None = Field(description="Time of its end; null while it is running.")
    progress: JobProgress | None = Field(
        description="How far it is; null if it has not begun, has ended, or reports nothing."
    )
    problem: ProblemDetails | None = Field(description="Why it failed.")
    result: Any = Field(
        None,
        description="Its result, once it is done: EvaluationAnswer, DuplicatesAnswer, SuspectsAnswer, "
        "MapAnswer, TripletsAnswer, CalibrationAnswer or CoverageAnswer. Not in the list of jobs.",
    )


class JobsAnswer(BaseModel):
    """The jobs of the gallery that are kept, the newest first."""

    jobs: list[JobAnswer]
