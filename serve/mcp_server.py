"""The command `lookalike mcp`: a server of the Model Context Protocol, for assistants on the same machine.

It has tools that read, and no others. The protocol is on stdin and stdout; it ends with its client.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Unpack

import click
from pydantic import Field

from retrieval.commands.device_options import runtime_options
from retrieval.errors import ImageError, InputError, LookalikeError, did_you_mean
from retrieval.galleries.items import Hit
from retrieval.images.load import read_bytes
from retrieval.images.location import Location
from retrieval.model.runtime import Runtime
from retrieval.search.options import SearchKeywords, SearchOptions, search_options
from retrieval.storage.records import Value
from serve.addresses import parse_galleries
from serve.core.permissions import Permissions
from serve.core.queries import AnyQuery, TextQuery
from serve.core.service import MAX_REQUEST_PIXELS, SearchService, open_services
from serve.core.thumbnails import MISSING
from serve.wire.queries import described

_MOST_HITS, _MOST_VALUES = 100, 50
_INSTRUCTIONS = """Search galleries of images by what they show. Start with `galleries`. A score is a cosine
similarity, 1 for the same image; compare scores within one search only. `show_image` shows what was found."""

# Parameters of the tools, described for the assistant.
Name = Annotated[str | None, Field(description="Name of a gallery; by default the first one.")]
Count = Annotated[int, Field(description=f"Number of images to find, 1 to {_MOST_HITS}.")]
Condition = Annotated[
    str | None,
    Field(
        description="Only images that fulfil a condition on label and columns, in a subset of SQL.",
        examples=["label = 'red' and price < 30"],
    ),
]
ItemId = Annotated[int, Field(description="The id of an image, as searches return it.")]


@dataclass(frozen=True)
class ServedGallery:
    """A gallery, and what it can be searched by."""

    name: str
    images: int
    columns: list[str]
    by_image: bool
    by_text: bool


@dataclass(frozen=True)
class FoundImage:
    """An image of a gallery; `score` is its similarity to the query."""

    id: int
    key: str
    path: str
    label: str | None
    metadata: dict[str, Value]
    score: float


@dataclass(frozen=True)
class ColumnValues:
    """The most frequent values of a column, each with its number of images."""

    column: str
    values: list[tuple[Value, int]]
    distinct: int


@click.command()
@click.argument("gallery", nargs=-1, required=True, type=click.Path(), metavar="GALLERY...")
@runtime_options
def mcp(gallery: tuple[str, ...], runtime: Runtime) -> None:
    """Let an assistant search galleries, by the Model Context Protocol on stdin and stdout.

    \b
      lookalike mcp shop.gallery
      lookalike mcp birds.gallery cars=/data/all-cars

    An assistant starts this command itself; docs/mcp.md has its configuration. It can search by an image file
    of this machine, by an image of the gallery or by text, count labels and metadata, and look at images. It
    cannot change anything. Needs `pip install 'lookalike[mcp]'`.
    """
    services = open_services(parse_galleries(gallery), Permissions(), runtime, MAX_REQUEST_PIXELS)
    build_server(services).run("stdio")


def build_server(services: Sequence[SearchService]) -> Any:
    """Return the MCP server of galleries, an `mcp.server.MCPServer`; the first is the default."""
    from mcp.server.mcpserver import Image, MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp.types import ToolAnnotations

    server = MCPServer(
        "Lookalike", instructions=_INSTRUCTIONS, version=version("lookalike"), log_level="WARNING"
    )
    by_name = {service.name: service for service in services}

    def tool(function: Callable[..., Any]) -> None:
        """Register a tool, whose docstring is its description and whose errors the assistant reads."""

        @wraps(function)
        def run(*args: Any, **options: Any) -> Any:
            try:
                return function(*args, **options)
            except LookalikeError as error:
                raise ToolError(str(error)) from error

        server.tool(annotations=ToolAnnotations(read_only_hint=True))(run)

    def galleries() -> list[ServedGallery]:
        """List the galleries with their sizes, metadata columns, and what each can be searched by."""
        found = [service.describe() for service in services]
        return [
            ServedGallery(one.summary.name, one.summary.images, one.columns, one.embeds, one.texts)
            for one in found
        ]

    @_with_search_options
    def search_by_image(
        path: Annotated[str, Field(description="Path of an image file.")],
        gallery: Name = None,
        k: Count = SearchOptions.k,
        **options: Unpack[SearchKeywords],
    ) -> list[FoundImage]:
        """Find the images most similar to an image file of this machine."""
        file = Path(path).expanduser()
        if Location.parse(file).kind == "url":
            raise InputError(f"{path}: not a file of this machine; download it first")
        try:
            return _search(_named(by_name, gallery), read_bytes(file), SearchOptions(k, **options))
        except ImageError as error:
            raise ImageError(path, error.reason, error.detail) from error

    @_with_search_options
    def search_by_text(
        text: Annotated[str, Field(description="What the images show, in a few words.")],
        gallery: Name = None,
        k: Count = SearchOptions.k,
        **options: Unpack[SearchKeywords],
    ) -> list[FoundImage]:
        """Find the images that a text describes, in a gallery that can be searched by text."""
        return _search(_named(by_name, gallery), TextQuery(text), SearchOptions(k, **options))

    @_with_search_options
    def search_by_id(
        id: ItemId, gallery: Name = None, k: Count = SearchOptions.k, **options: Unpack[SearchKeywords]
    ) -> list[FoundImage]:
        """Find the images most similar to an image of the gallery, given by its id, without itself."""
        return _search(_named(by_name, gallery), id, SearchOptions(k, **options))

    def count_values(
        columns: Annotated[list[str] | None, Field(description="Names of columns.")] = None,
        gallery: Name = None,
        where: Condition = None,
    ) -> list[ColumnValues]:
        """Count the images of each label and of the values of other columns; by default the label alone."""
        names = columns or ["label"]
        found, _ = _named(by_name, gallery).read(lambda one: one.contents.facets(names, where, _MOST_VALUES))
        return [ColumnValues(one.column, one.values, one.distinct) for one in found.facets]

    def show_image(id: ItemId, gallery: Name = None) -> Any:
        """Look at an image of the gallery, of at most 512 pixels a side."""
        found = _named(by_name, gallery).thumbnail(id)
        if found is MISSING:
            raise InputError(f"item {id}: its file is missing, or has changed since it was indexed")
        return Image(data=found.data, format=found.media_type.removeprefix("image/"))

    for function in (galleries, search_by_image, search_by_text, search_by_id, count_values, show_image):
        tool(function)
    return server


def _with_search_options(tool: Callable[..., Any]) -> Callable[..., Any]:
    """Describe the options of a search in the signature of a tool that takes them as keywords."""
    shown = inspect.signature(tool, eval_str=True)
    known = {name: one for name, one in shown.parameters.items() if one.kind is not one.VAR_KEYWORD}
    for option in search_options():
        default = [] if option.many else option.default
        one = inspect.Parameter(
            option.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=described(option)
        )
        known.setdefault(option.name, one)
    tool.__signature__ = shown.replace(parameters=[*known.values()])  # type: ignore[attr-defined]
    return tool


def _search(service: SearchService, query: AnyQuery, options: SearchOptions) -> list[FoundImage]:
    if options.k > _MOST_HITS:
        raise InputError(f"k: {options.k} hits; ask for 1 to {_MOST_HITS}")
    (hits,) = service.find([query], options).found
    if isinstance(hits, InputError):
        raise hits
    return [_found(hit) for hit in hits]


def _found(hit: Hit) -> FoundImage:
    return FoundImage(hit.id, hit.key, hit.path, hit.label, dict(hit.metadata), round(hit.score, 4))


def _named(services: Mapping[str, SearchService], name: str | None) -> SearchService:
    if name is None:
        return next(iter(services.values()))
    if name not in services:
        raise InputError(f"there is no gallery {name!r}; {did_you_mean(name, services, ', '.join(services))}")
    return services[name]
