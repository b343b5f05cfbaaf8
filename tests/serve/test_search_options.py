"""An option of a search is declared once: each interface reads the declaration."""

from __future__ import annotations

import dataclasses
import inspect
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import pytest

from retrieval.gallery import Gallery
from retrieval.search.options import SearchKeywords, SearchOptions, search_options
from serve.client import Client

# Adds the option `brightness` before anything else reads the declaration.
ADDED = """
from dataclasses import dataclass
import retrieval.search.options as declaration

@dataclass(frozen=True)
class Extended(declaration.SearchOptions):
    brightness: float | None = declaration.option(
        None, "Lowest brightness of a hit.", low=0, high=1, label="Brightness"
    )

declaration.SearchOptions = Extended
"""
COMMAND = """
from click.testing import CliRunner
from retrieval.commands.search import search
print(CliRunner().invoke(search, ["--help"]).output)
"""
OPENAPI = """
import json
from serve.wire.queries import BatchRequest, ByIdRequest, SearchParameters, SearchRequest
for model in (BatchRequest, ByIdRequest, SearchParameters, SearchRequest):
    field = model.model_json_schema()["properties"]["brightness"]
    number = next(one for one in field["anyOf"] if one["type"] == "number")
    assert (number["minimum"], number["maximum"], field["default"]) == (0, 1, None)
assert SearchRequest(id=1, brightness=0.5).options().brightness == 0.5
print(json.dumps(field))
"""
SIGNATURES = """
import inspect
from retrieval.gallery import Gallery
from serve.client import Client
galleries = (Gallery.search, Gallery.search_id, Gallery.search_vectors)
for function in (Client.search, Client.search_batch, *galleries):
    print(inspect.signature(function).parameters["brightness"])
"""
TOOLS = """
import asyncio, sys
from pathlib import Path
from serve.core.service import SearchService
from serve.mcp_server import build_server
tools = asyncio.run(build_server([SearchService(Path(sys.argv[1]))]).list_tools())
found = [tool for tool in tools if "brightness" in tool.model_dump_json()]
assert len(found) == 3
print(found[0].model_dump_json())
"""

PAGE = """
import asyncio, json, re, sys
from pathlib import Path
import httpx
from serve.app import create_app
from serve.core.service import SearchService
async def ask():
    app = create_app(SearchService(Path(sys.argv[1])))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:
        return (await client.get("/")).text
page = asyncio.run(ask())
declared = re.search('id="search-options">(.*?)</script>', page)[1]
print([one["label"] for one in json.loads(declared) if one["name"] == "brightness"])
print(page)
"""


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (COMMAND, "--brightness FLOAT Lowest brightness of a hit. From 0 to 1."),
        (OPENAPI, '"description": "Lowest brightness of a hit."'),
        (SIGNATURES, " ".join(5 * ["brightness: float | None = None"])),
        (TOOLS, '"description":"Lowest brightness of a hit."'),
        (PAGE, "['Brightness'] "),
        (PAGE, 'Brightness, 0 to 1<input type="number" data-part="brightness" min="0" max="1"'),
    ],
    ids=["command", "openapi", "signatures", "tools", "document", "page"],
)
def test_an_added_option_is_everywhere(shown: str, text: str, shop_gallery: Path) -> None:
    words = [sys.executable, "-c", ADDED + shown, str(shop_gallery)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert text in " ".join(done.stdout.split())


def test_types_of_keywords_are_those_of_the_options() -> None:
    fields = {one.name for one in search_options()}
    options, keywords = get_type_hints(SearchOptions), get_type_hints(SearchKeywords)
    assert keywords == {name: options[name] for name in fields - {"k"}}


def test_signatures_name_all_options_and_their_defaults() -> None:
    for function in (Gallery.search, Gallery.search_id, Client.search, Client.search_batch):
        parameters = inspect.signature(function).parameters
        for one in dataclasses.fields(SearchOptions):
            if one.metadata:
                assert parameters[one.name].default == one.default, (function, one.name)


def test_unknown_keywords_are_refused_with_a_hint() -> None:
    client = Client("http://lookalike")
    with pytest.raises(TypeError, match=r"search\(\) has no argument 'min_scor'; did you mean 'min_score'"):
        client.search(id=1, min_scor=0.5)  # type: ignore[call-arg]
