"""Remote images, in a real S3 protocol: a local server of moto, read through fsspec and s3fs."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from retrieval import Gallery, InputError, load_image
from retrieval.ingest.judgements import read_judgements
from retrieval.ingest.sources import Sources, collect
from retrieval.ingest.sync import sync, update
from retrieval.storage.planning import ImageFile
from retrieval.storage.records import BadFile
from serve.core.originals import find_original
from tests.conftest import draw, lookalike_here


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The file system of a local S3 server with a bucket "shop"."""
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", "http://{}:{}".format(*server.get_host_and_port()))
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
            patch.setenv(name, "us-east-1")
        patch.setenv("AWS_CONFIG_FILE", str(tmp_path_factory.mktemp("aws") / "none"))
        import fsspec

        system = fsspec.filesystem("s3", skip_instance_cache=False)
        system.mkdir("shop")
        for hue, label in enumerate(("red", "blue")):
            for seed in range(2):
                put(system, f"shop/photos/{label}/{seed}.png", draw(seed, hue=hue))
        system.pipe("shop/photos/notes.txt", b"no image")
        system.pipe("shop/photos/blue/broken.png", b"no image either")
        yield system
        system.clear_instance_cache()
    server.stop()


def put(system: Any, name: str, image: Image.Image) -> None:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    system.pipe(name, buffer.getvalue())


def test_a_gallery_of_remote_images(bucket: Any, tmp_path: Path, model_file: Path) -> None:
    """Same vectors, labels and thumbnails as of local copies; synchronised; exported with URLs."""
    words = [str(tmp_path / "g"), "s3://shop/photos", "--model", str(model_file), "--json"]
    facts = json.loads(lookalike_here("index", "build", *words, code=3).stdout)
    assert [bad["path"] for bad in facts["bad"]] == ["s3://shop/photos/blue/broken.png"]
    assert facts["ignored"] == 1
    local = tmp_path / "photos"
    bucket.get("shop/photos/", str(local), recursive=True)
    gallery = Gallery.open(tmp_path / "g")
    items = gallery.items(gallery.select(where="id > 0"))
    assert {item.path: item.label for item in items.values()} == {
        f"s3://shop/photos/{label}/{seed}.png": label for label in ("red", "blue") for seed in range(2)
    }
    for item in items.values():
        name = item.path.removeprefix("s3://shop/photos/")
        expected = gallery.embedder.embed([local / name])[0]
        np.testing.assert_allclose(gallery.vector(item.id), expected, atol=1e-5)
        assert find_original(gallery, item.id).read() == (local / name).read_bytes()
        np.testing.assert_array_equal(load_image(item.path), load_image(local / name))
    assert gallery.search("s3://shop/photos/red/1.png", 1)[0].path == "s3://shop/photos/red/1.png"

    table = tmp_path / "all.parquet"
    lookalike_here("index", "export", str(tmp_path / "g"), str(table))
    lookalike_here("index", "import", str(tmp_path / "copy"), str(table), "--model", str(model_file))
    copy = Gallery.open(tmp_path / "copy")
    assert {i.path for i in copy.items(copy.select(where="id > 0")).values()} == {
        item.path for item in items.values()
    }
    found = update(copy)
    assert (found.gone, found.result.unchanged + found.result.added) == ([], 4)

    bucket.rm("shop/photos/red/0.png")
    put(bucket, "shop/photos/green/new.png", draw(7, hue=3))
    done = sync(gallery, Path("s3://shop/photos"))
    gallery.refresh()
    assert (done.removed, done.added, done.unchanged, len(gallery)) == (1, 1, 3, 4)


def test_tables_name_remote_images(bucket: Any, tmp_path: Path, model_file: Path) -> None:
    put(bucket, "shop/other/x.png", draw(1))
    table = tmp_path / "shop.csv"
    table.write_text("path,price\ns3://shop/other/x.png,3\n")
    gallery = Gallery.create(tmp_path / "g", str(model_file))
    gallery.add([], metadata=table)
    (item,) = gallery.items(gallery.select(where="id > 0")).values()
    assert (item.path, item.metadata["price"]) == ("s3://shop/other/x.png", 3)
    (tmp_path / "labels.csv").write_text("path,label\ns3://shop/other/x.png,cup\n")
    assert read_judgements(tmp_path / "labels.csv", gallery).labels == {item.id: "cup"}


def test_tables_describe_remote_images_beside_local_ones(bucket: Any, tmp_path: Path) -> None:
    """A row of a URL that does not exist has the bucket as its root, not the folder of the others."""
    (tmp_path / "photos").mkdir()
    draw(0).save(tmp_path / "photos" / "0.png")
    put(bucket, "shop/other/there.png", draw(1))
    table = tmp_path / "shop.csv"
    table.write_text("path,price\n0.png,1\ns3://shop/other/there.png,2\ns3://shop/other/gone #1?.png,3\n")
    found = collect(Sources([tmp_path / "photos"], metadata=table))
    image, bad = found
    assert isinstance(image, ImageFile)
    assert (image.path, image.metadata, found.unmatched) == ("0.png", {"price": 1}, 1)
    assert isinstance(bad, BadFile)
    assert (bad.stamp.root, bad.stamp.path, bad.stamp.label) == ("/s3:/shop", "other/gone #1?.png", "other")
    assert bad.stamp.shown == "s3://shop/other/gone #1?.png"


def test_values_for_each_of_some_remote_images(bucket: Any) -> None:
    urls = ["s3://shop/photos/red/1.png", "s3://shop/photos/blue/0.png"]
    found = collect(Sources(urls, metadata=[{"price": 1}, {"price": 2}]))
    assert [(entry.path, entry.metadata) for entry in found if isinstance(entry, ImageFile)] == [
        ("1.png", {"price": 1}),
        ("0.png", {"price": 2}),
    ]


def test_unreadable_query_is_named_by_its_url(bucket: Any, tmp_path: Path, model_file: Path) -> None:
    gallery = Gallery.create(tmp_path / "g", str(model_file))
    gallery.add(["s3://shop/photos/blue"])
    url = "s3://shop/photos/blue/broken.png"
    found = lookalike_here("search", str(gallery.folder), url, code=2)
    assert url in found.stderr


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("s3://nowhere/photos", "no such file, folder or bucket"),
        ("s3://shop/nothing", "no such file, folder or bucket"),
        ("zzz://shop/photos", "not known"),
    ],
)
def test_unusable_urls_are_one_line(
    bucket: Any, tmp_path: Path, model_file: Path, url: str, problem: str
) -> None:
    gallery = Gallery.create(tmp_path / "g", str(model_file))
    with pytest.raises(InputError, match=problem) as caught:
        gallery.add([url])
    assert str(caught.value).startswith(url)
    assert "\n" not in str(caught.value)
