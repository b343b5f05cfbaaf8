"""The client for asyncio against a real server: the same requests and answers as those of the other one."""

from __future__ import annotations

import asyncio
import inspect
import shutil
import socket
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from PIL import Image

from retrieval import ImageError, InputError, LookalikeError
from serve.app import create_app
from serve.client import ApiError, AsyncClient, Client, Requests, UnreachableError
from serve.core.permissions import Permissions
from serve.core.service import SearchService
from tests.serve.asgi_server import answering


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, shop_gallery: Path) -> Iterator[str]:
    folder = shutil.copytree(shop_gallery, tmp_path_factory.mktemp("clients") / "g")
    with answering(
        create_app(SearchService(folder, permissions=Permissions(changes=True)), page=False)
    ) as url:
        yield url


def test_answers_are_those_of_the_other_client(url: str, shop: Path) -> None:
    path = shop / "green" / "3.png"

    async def ask() -> list[object]:
        async with AsyncClient(url) as client:
            return [
                await client.search(path, k=4, where="label != 'red'"),
                await client.search_batch([path, shop / "red" / "1.png"], k=2),
                await client.image("red/1.png"),
                await client.thumbnail(5),
                await client.gallery(),
                await client.galleries(),
                await client.facets(["label"]),
                await client.embed([path]),
                [image async for image in client.items(page_size=7)],
            ]

    with Client(url) as client:
        assert asyncio.run(ask()) == [
            client.search(path, k=4, where="label != 'red'"),
            client.search_batch([path, shop / "red" / "1.png"], k=2),
            client.image("red/1.png"),
            client.thumbnail(5),
            client.gallery(),
            client.galleries(),
            client.facets(["label"]),
            client.embed([path]),
            list(client.items(page_size=7)),
        ]
        assert len(list(client.items(page_size=7))) == 24


def test_requests_are_carried_out_at_once() -> None:
    async def ask() -> list[str]:
        waiting, both = 0, asyncio.Event()

        async def answer(_: httpx.Request) -> httpx.Response:
            nonlocal waiting
            waiting += 1
            if waiting == 2:
                both.set()
            await asyncio.wait_for(both.wait(), 10)
            return httpx.Response(
                503, json={"code": "busy", "status": 503, "detail": "wait", "instance": "urn:x"}
            )

        async with AsyncClient("http://lookalike", transport=httpx.MockTransport(answer)) as client:
            found = await asyncio.gather(client.image(1), client.image(2), return_exceptions=True)
        return [one.code for one in found if isinstance(one, ApiError)]

    assert asyncio.run(ask()) == ["busy", "busy"]


def test_jobs_are_waited_for_beside_other_work(url: str) -> None:
    async def work() -> int:
        turns = 0

        async def turn() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0.01)

        async with AsyncClient(url) as client:
            beside = asyncio.create_task(turn())
            job = await client.start_job("duplicates", min_score=0.97)
            result = await client.wait(job.id, every=0.2)
            beside.cancel()
        assert result["total"] >= 0
        return turns

    assert asyncio.run(work()) > 1  # the job may be done at once


def test_refusals_are_raised_when_awaited(url: str) -> None:
    async def ask() -> None:
        async with AsyncClient(url, gallery="nowhere") as client:
            with pytest.raises(ApiError) as missing:
                await client.gallery()
            assert missing.value.code == "not-found"
        async with AsyncClient(url) as client:
            with pytest.raises(InputError, match="exactly one"):
                await client.search()
            with pytest.raises(TypeError, match="did you mean 'where'"):
                await client.search(id=1, wher="x")  # type: ignore[call-arg]

    asyncio.run(ask())


async def asked(url: str, path: Path) -> object:
    async with AsyncClient(url, seconds=0.5) as client:
        return await client.search(path)


def ask(url: str, path: Path) -> object:
    with Client(url, seconds=0.5) as client:
        return client.search(path)


BOTH = pytest.mark.parametrize(
    "ask", [ask, lambda *given: asyncio.run(asked(*given))], ids=["client", "async"]
)


@BOTH
@pytest.mark.parametrize("how", ["nothing listens", "silent", "hangs up"])
def test_server_without_an_answer_is_named(ask: Callable[..., object], how: str, shop: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        if how == "nothing listens":
            listener.close()
        hanging_up = threading.Thread(target=lambda: listener.accept()[0].close())
        if how == "hangs up":
            hanging_up.start()
        with pytest.raises(UnreachableError) as lost:
            ask(url, shop / "red" / "1.png")
        if how == "hangs up":
            hanging_up.join()
    hints = {"nothing listens": "lookalike serve", "silent": "timeout", "hangs up": "try again"}
    assert str(lost.value).startswith(f"{url}: no ")
    assert hints[how] in str(lost.value)
    assert isinstance(lost.value.__cause__, httpx.RequestError)


@BOTH
def test_files_and_addresses_that_cannot_be_used_are_named(
    ask: Callable[..., object], url: str, shop: Path, tmp_path: Path
) -> None:
    with pytest.raises(ImageError, match=r"nowhere/1\.png: there is no such file"):
        ask(url, Path("nowhere/1.png"))
    with pytest.raises(ImageError, match="it is a folder"):
        ask(url, tmp_path)
    with pytest.raises(InputError, match=r"^localhost:7860: not the address of a server; .*http://"):
        ask("localhost:7860", shop / "red" / "1.png")


def test_refusal_is_an_error_like_all_others(url: str) -> None:
    with Client(url) as client, pytest.raises(LookalikeError, match=r"^404 no-such-image: .*no item 99"):
        client.image(99)


def test_members_of_tar_files_and_parts_of_pictures_are_sent(url: str, shop: Path, tmp_path: Path) -> None:
    path = shop / "red" / "1.png"
    with tarfile.open(tmp_path / "shard.tar", "w") as shard:
        shard.add(path, "a/1.png")
    with Image.open(path) as picture:
        part = picture.crop((0, 0, picture.width // 2, picture.height))
    with Client(url) as client:
        assert client.search(tmp_path / "shard.tar" / "a" / "1.png", k=3) == client.search(path, k=3)
        box = f"{path}#xywh=0,0,{part.width},{part.height}"
        assert client.search(box, k=3) == client.search(part, k=3) != client.search(path, k=3)


def test_images_are_changed_as_expected(url: str) -> None:
    with Client(url) as client:
        image = client.image(1)
        hit = client.search(id=2, k=24, where="id = 1")[0]
        changed = client.update(1, label="mine", expected=image)
        for expected in (image, hit):
            for change in (client.remove, client.keep):
                with pytest.raises(ApiError) as late:
                    change(1, expected=expected)
                assert (late.value.code, late.value.status) == ("changed", 412)

        async def undo() -> None:
            async with AsyncClient(url) as other:
                await other.keep(1, expected=changed)
                again = await other.update(1, label=image.label, expected=changed)
                assert again == image
                with pytest.raises(ApiError):
                    await other.update(1, label="x", expected=changed)

        asyncio.run(undo())
        client.remove(3, expected=client.image(3))
        with pytest.raises(ApiError, match="no item 3"):
            client.image(3)


def test_both_clients_have_the_same_documented_methods(url: str) -> None:
    for name in (name for name in vars(Requests) if not name.startswith("_")):
        method = getattr(Requests, name)
        assert inspect.getdoc(method)
        with Client(url) as client:
            bound = getattr(client, name)
        assert bound.__name__ == name
        parameters = [*inspect.signature(method).parameters]
        assert parameters == ["self", *inspect.signature(bound).parameters]
        assert name not in {*vars(Client), *vars(AsyncClient)}
    assert "where" in inspect.signature(Client.search).parameters
