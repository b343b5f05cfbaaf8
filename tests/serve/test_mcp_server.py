"""`lookalike mcp`, driven by the protocol's own client."""

from __future__ import annotations

import asyncio
import base64
import io
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from retrieval import Gallery
from tests.serve.serving import ROOT, SERVE

mcp = pytest.importorskip("mcp")


def test_an_assistant_searches_counts_and_looks(shop_gallery: Path, shop: Path) -> None:
    gallery = Gallery(shop_gallery)
    command = mcp.StdioServerParameters(
        command=SERVE[0], args=[*SERVE[1:-1], "mcp", str(shop_gallery)], cwd=ROOT
    )

    async def scenario() -> None:
        async with mcp.Client(command) as client:

            async def call(name: str, **options: Any) -> Any:
                answer = await client.call_tool(name, options)
                return answer.content[0].text if answer.is_error else answer.structured_content["result"]

            tools = (await client.list_tools()).tools
            assert all(tool.annotations.read_only_hint for tool in tools)
            parameters = [one for tool in tools for one in tool.input_schema["properties"].values()]
            assert all(one["description"] for one in parameters)
            assert client.server_info.version == version("lookalike")
            assert [tool.name for tool in tools] == [
                "galleries",
                "search_by_image",
                "search_by_text",
                "search_by_id",
                "count_values",
                "show_image",
            ]
            (described,) = await call("galleries")
            assert (described["name"], described["images"], described["by_text"]) == ("shop", 24, False)

            found = await call("search_by_image", path=str(shop / "red" / "5.png"), k=3)
            expected = gallery.search(shop / "red" / "5.png", k=3)
            assert [one["id"] for one in found] == [hit.id for hit in expected]
            assert [one["score"] for one in found] == pytest.approx([hit.score for hit in expected], abs=1e-4)
            found = await call("search_by_id", id=7, k=5, where="label = 'blue'")
            expected = gallery.search_id(7, 5, where="label = 'blue'")
            assert [one["id"] for one in found] == [hit.id for hit in expected]

            (counted,) = await call("count_values")
            labels = [gallery.item(number).label for number in gallery.sample(24)]
            assert dict(counted["values"]) == {label: labels.count(label) for label in set(labels)}

            shown = (await client.call_tool("show_image", {"id": 7})).content[0]
            assert shown.mime_type == "image/webp"
            Image.open(io.BytesIO(base64.b64decode(shown.data))).load()

            assert "images only" in await call("search_by_text", text="red kettle")
            assert "did you mean" in await call("search_by_id", id=7, gallery="shap")
            assert "no item" in await call("search_by_id", id=999)
            assert "not a file of this machine" in await call(
                "search_by_image", path="https://x.example/a.png"
            )
            assert "nowhere.png" in await call("search_by_image", path="nowhere.png")
            assert f"{__file__}: it is not a" in await call("search_by_image", path=__file__)
            assert "1 to 100" in await call("search_by_id", id=7, k=1000)

    asyncio.run(asyncio.wait_for(scenario(), 60))
