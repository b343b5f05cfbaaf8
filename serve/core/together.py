"""Search in several galleries of one model at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from retrieval.errors import InputError, pointing
from retrieval.galleries.items import Hit
from retrieval.search.options import SearchOptions
from serve.core.errors import ModelMismatchError
from serve.core.queries import AnyQuery
from serve.core.service import GallerySummary, SearchService


def find_in(
    services: Sequence[SearchService],
    query: AnyQuery,
    options: SearchOptions,
    *,
    fingerprint: str | None = None,
    id: str | None = None,
) -> list[tuple[Hit, GallerySummary]]:
    """Return the best hits of several galleries, best first, each with the summary of its gallery.

    Args:
        services: The galleries; items in the query are of the first.
        query: The query, which is embedded once.
        options: Options without `exclude`, `group_by`, `order`, `rerank`, `diversity` and `min_probability`.
        fingerprint: Model of a vector in the query.
        id: Id under which the search is recorded for each gallery; None records nothing.

    Raises:
        ModelMismatchError: The galleries, or the vector, are of different models.
        InputError: The query is unusable, or the options do not fit one of the galleries.
        UnavailableError: A gallery cannot be read.
    """
    models = {service.name: service.summary().fingerprint for service in services}
    if len({*models.values()}) > 1:
        named = ", ".join(f"{name} of {model[:12]}" for name, model in models.items())
        with pointing("#/galleries"):
            raise ModelMismatchError(
                f"the galleries are of different models ({named}), whose scores cannot be compared: search "
                "them one after the other"
            )
    first, *_ = services
    resolved, model = first.resolve(query, fingerprint=fingerprint)
    found, ids = [], None if id is None else [id]
    for service in services:
        exclude = resolved.items if service is first else ()
        chosen = replace(options, exclude=exclude)
        answer = service.find([resolved.vector], chosen, fingerprint=model, ids=ids)
        (hits,) = answer.found
        if isinstance(hits, InputError):
            raise hits
        found += [(hit, answer.summary) for hit in hits]
    return sorted(found, key=lambda one: -one[0].score)[: options.k]  # stable: equal scores by gallery, id
