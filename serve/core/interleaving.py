"""A second gallery of the same images, by another model, whose hits are mixed into those of the first."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np

from retrieval.errors import InputError, LookalikeError
from retrieval.galleries.items import Hit, Hits
from retrieval.galleries.searchable import SearchableGallery
from retrieval.search.interleaving import Draft, team_draft
from retrieval.search.options import SearchOptions
from retrieval.search.where import parse_condition
from retrieval.storage.conditions import Condition, Joined, Not
from retrieval.storage.query_log import Against
from retrieval.text import printable
from serve.core.live import LiveGallery, LiveState
from serve.core.queries import (
    AnyQuery,
    ComposedQuery,
    QueryResolver,
    RegionQuery,
    ResolvedQuery,
    SingleQuery,
    TextQuery,
    find_item,
    has_text,
    item_id,
)

SAMPLE = 200  # images that both galleries must have
_log = logging.getLogger("lookalike.serve")
Name = tuple[str, object]  # of a hit in both galleries: its key, or its product


class NotComparableError(Exception):
    """A search that only the first gallery can answer."""


class Rival:
    """A second gallery, whose results are interleaved with those of the first.

    A search that it cannot answer alike is answered by the first alone: with an order, a re-ranking, a lowest
    score, groups, ids in its condition, or a vector, which is of one model.

    Args:
        gallery: The first gallery.
        live: The second gallery.
        resolver: What embeds the queries to it.

    Raises:
        InputError: The second gallery has other images or other products, or one of them has no model.
    """

    def __init__(self, gallery: SearchableGallery, live: LiveGallery, resolver: QueryResolver) -> None:
        other = live.state().gallery
        name = f"--against {other.folder}"
        if not (gallery.manifest.has_model and other.manifest.has_model):
            without = other.folder if gallery.manifest.has_model else gallery.folder
            raise InputError(f"{name}: {without} has imported vectors and no model, so it cannot be compared")
        if gallery.manifest.product != other.manifest.product:
            raise InputError(
                f"{name}: its products are by {_named(other.manifest.product)}, those of {gallery.folder} by "
                f"{_named(gallery.manifest.product)}; build it with the same --product"
            )
        keys = [item.key for item in gallery.items(gallery.sample(SAMPLE)).values()]
        there = len(other.select(where=_one_of("key", keys))) if keys else 0
        if there < len(keys) / 2:
            raise InputError(
                f"{name}: it has {there} of {len(keys)} images of {gallery.folder}; compare galleries of the "
                "same images, such as one built from the same folder with --model"
            )
        self._live, self._resolver = live, resolver
        self._name = Path(other.folder).resolve().name

    def interleave(
        self,
        gallery: SearchableGallery,
        query: AnyQuery,
        resolved: ResolvedQuery,
        hits: Hits,
        options: SearchOptions,
        seed: str,
    ) -> tuple[Hits, Against | None]:
        """Return the hits of both galleries as hits of the first, and which are whose.

        Each hit has the score that the first gallery gives it, so that scores do not fall from hit to hit.

        Args:
            gallery: The first gallery.
            query: The query.
            resolved: Its vector in the first gallery.
            hits: Its hits there.
            options: Options of the search, with the condition expanded.
            seed: Seed of the draft: the id of the search.

        Returns:
            The hits; and `None`, with those of the first gallery alone, if the second cannot answer.
        """
        try:
            _check(options)
            theirs, model = self._live.with_state(lambda state: self._hits(state, gallery, query, options))
            names, known = [*map(_name, theirs)], {_name(hit): hit for hit in hits}
            missing = [name for name in names if name not in known]
            known |= {_name(hit): hit for hit in _find_named(gallery, resolved, missing, options)}
        except NotComparableError:
            return hits, None
        except LookalikeError as error:  # visitors get what they would have without a comparison
            _log.warning("%s: not compared: %s", self._name, printable(str(error)))
            return hits, None
        ours = [_name(hit) for hit in hits]
        draft: Draft[Name] = team_draft(ours, [name for name in names if name in known], options.k, seed)
        teams = [
            [known[name].id for name in draft.order if name in team] for team in (draft.first, draft.second)
        ]
        return Hits([known[name] for name in draft.order]), Against(self._name, model, *teams)

    def _hits(
        self, state: LiveState, gallery: SearchableGallery, query: AnyQuery, options: SearchOptions
    ) -> tuple[list[Hit], str]:
        """Return the hits of the second gallery, and the fingerprint of its model."""
        if has_text(query) and not (state.embedder and state.embedder.has_text):
            raise NotComparableError
        ids = [name for name in options.exclude if isinstance(name, int)]
        names = [name for name in options.exclude if isinstance(name, str)]
        names += [item.key for item in gallery.items(ids).values()]
        excluded = state.gallery.select(where=_one_of("key", names)) if names else []
        (resolved,) = self._resolver.resolve(state, [_translated(gallery, state.gallery, query)])
        if isinstance(resolved, InputError):
            raise NotComparableError
        hits = _find(state.gallery, resolved, replace(options, exclude=excluded))
        return [*hits], state.gallery.fingerprint


def _translated(first: SearchableGallery, second: SearchableGallery, query: AnyQuery) -> AnyQuery:
    """Return a query to the second gallery."""

    def item(name: int | str) -> int:
        key = find_item(first, item_id(first, name)).key
        found = second.select(where=_one_of("key", [key]))
        if not found:
            raise NotComparableError
        return found[0]

    def single(query: SingleQuery) -> SingleQuery:
        if isinstance(query, np.ndarray):
            raise NotComparableError
        if isinstance(query, bytes | TextQuery):
            return query
        if isinstance(query, RegionQuery):
            return query if isinstance(query.image, bytes) else replace(query, image=item(query.image))
        return item(query)

    if isinstance(query, ComposedQuery):
        return ComposedQuery([*map(single, query.views)], [*map(single, query.without)])
    return single(query)


def _find(gallery: SearchableGallery, query: ResolvedQuery, options: SearchOptions) -> Hits:
    (found,) = gallery.find([query.each], options, [query.items])
    return found


def _check(options: SearchOptions) -> None:
    """Raise a `NotComparableError` for options under which a mixed list has no meaning."""
    plain = SearchOptions(options.k, where=options.where, exclude=options.exclude)
    same = replace(options, calibrated=plain.calibrated, group_size=plain.group_size)
    if options.k < 2 or same != plain or (options.where and _names_ids(parse_condition(options.where))):
        raise NotComparableError


def _names_ids(condition: Condition) -> bool:
    """Return whether a condition is on ids, which are others in the second gallery."""
    if isinstance(condition, Not):
        return _names_ids(condition.term)
    if isinstance(condition, Joined):
        return any(map(_names_ids, condition.terms))
    return condition.column.name.lower() == "id"


def _name(hit: Hit) -> Name:
    return ("key", hit.key) if hit.group is None else ("group", hit.group)


def _find_named(
    gallery: SearchableGallery, resolved: ResolvedQuery, names: list[Name], options: SearchOptions
) -> list[Hit]:
    """Return the hits of a gallery that have one of the names; those that it lacks are left out."""
    tests = []
    if keys := [value for kind, value in names if kind == "key"]:
        tests.append(_one_of("key", keys))
    if (groups := [value for kind, value in names if kind == "group"]) and gallery.manifest.product:
        tests.append(_one_of(gallery.manifest.product, groups))
    if not tests:
        return []
    where = " or ".join(tests)
    if options.where:
        where = f"({options.where}) and ({where})"
    return [*_find(gallery, resolved, replace(options, where=where, k=len(names)))]


def _one_of(column: str, values: list[str] | list[object]) -> str:
    """Return a condition that a column has one of some values."""
    listed = ", ".join(
        "'{}'".format(value.replace("'", "''")) if isinstance(value, str) else str(value) for value in values
    )
    return '"{}" in ({})'.format(column.replace('"', '""'), listed)


def _named(product: str | None) -> str:
    return "no column" if product is None else f"column {product!r}"
