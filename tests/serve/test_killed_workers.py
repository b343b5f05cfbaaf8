"""Workers that are killed under load: nothing that was acknowledged is lost, and no error is unexplained."""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

from retrieval import Gallery
from tests.serve.serving import SERVE, Server, serving

CLIENTS, KILLS = 64, 3
PAUSE = 1.0  # seconds between two kills


@dataclass
class Record:
    """What the clients saw.

    Attributes:
        added: Id by seed, of images whose addition was acknowledged.
        sent: Seeds of images that were sent.
        answers: Number of answers with status 200 or 201.
        busy: Number of answers with status 503.
        errors: Start, end and text of each request without an answer.
        kills: Start and end of each worker's end.
    """

    added: dict[int, int] = field(default_factory=dict)
    sent: list[int] = field(default_factory=list)
    answers: int = 0
    busy: int = 0
    errors: list[tuple[float, float, str]] = field(default_factory=list)
    kills: list[tuple[float, float]] = field(default_factory=list)
    over: bool = False


def picture(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (24, 24, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


async def visit(server: Server, number: int, record: Record) -> None:
    """Search and add in turn, on one connection, until the time is over."""
    async with httpx.AsyncClient(
        base_url=server.url, timeout=60, headers={"Content-Type": "image/png"}
    ) as client:
        step = 0
        while not record.over:
            step += 1
            seed = 10_000 * number + step
            adds = step % 4 == 0
            if adds:
                record.sent.append(seed)
            begun = time.monotonic()
            try:
                path = f"/v1/items?label={seed}" if adds else "/v1/search?k=3"
                answer = await client.post(path, content=picture(seed))
            except httpx.TransportError as error:
                record.errors.append((begun, time.monotonic(), repr(error)))
                continue
            if answer.status_code == 503:
                record.busy += 1
                await asyncio.sleep(0.1)
                continue
            assert answer.status_code == (201 if adds else 200), answer.text
            record.answers += 1
            if adds:
                record.added[seed] = answer.json()["results"][0]["image"]["id"]


async def kill(server: Server, record: Record) -> None:
    for turn in range(KILLS):
        await asyncio.sleep(PAUSE)
        before = server.workers()
        victim = sorted(before)[turn % len(before)]
        begun = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        while Path(f"/proc/{victim}").exists():  # until its connections are closed
            await asyncio.sleep(0.01)
        record.kills.append((begun, time.monotonic()))
        while len(server.workers()) < len(before):
            await asyncio.sleep(0.05)
    await asyncio.sleep(PAUSE)
    record.over = True


def explained(error: tuple[float, float, str], kills: Sequence[tuple[float, float]]) -> bool:
    """Return whether a request was under way while a worker ended."""
    return any(error[0] <= gone and error[1] >= begun for begun, gone in kills)


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_and_no_error_is_unexplained(shop_gallery: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(shop_gallery, tmp_path / "shop"))
    before = len(Gallery(folder))
    command = [*SERVE, str(folder), "--no-page", "--workers", "2", "--allow-changes"]
    record = Record()
    with serving(command, tmp_path / "scratch") as server:

        async def siege() -> None:
            visits = [visit(server, number, record) for number in range(1, CLIENTS + 1)]
            await asyncio.gather(kill(server, record), *visits)

        asyncio.run(siege())
        code, output = server.stop()
    assert code == 0, output
    assert "Traceback" not in output
    assert len(record.kills) == KILLS
    assert record.answers > CLIENTS
    assert len(record.added) > 5

    unexplained = [error for error in record.errors if not explained(error, record.kills)]
    assert unexplained == []
    assert len(record.errors) <= KILLS * CLIENTS

    gallery = Gallery(folder)
    items = gallery.items(range(10_000)).values()
    labels = [str(one.label) for one in items]
    stored = {str(one.label): one.id for one in items}
    assert {str(seed): id for seed, id in record.added.items()}.items() <= stored.items()
    added = [label for label in labels if label.isdecimal()]
    assert len(added) == len(set(added)), "an image was added twice"
    assert set(map(int, added)) <= set(record.sent)
    # An addition whose worker ended before its answer may be there or not; a refused one must not.
    assert len(added) <= len(record.added) + len(record.errors)
    assert len(gallery) == before + len(added)
