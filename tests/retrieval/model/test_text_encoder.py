"""Text encoder of a model archive: tokens, vectors, errors; the archive itself; galleries with one."""

from __future__ import annotations

import shutil
import sys
import zipfile
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from retrieval.errors import InputError
from retrieval.gallery import Gallery
from retrieval.model.archive import IMAGE, MEMBERS, TEXT, TOKENIZER, ModelArchive, write_archive
from retrieval.model.embedder import Embedder
from retrieval.model.text_encoder import PROPERTY, TextInput
from retrieval.storage.identity import model_file
from retrieval.upkeep.snapshot import copy_gallery
from retrieval.upkeep.verify import verify
from tests.conftest import lookalike_here
from tests.pair import COLOURS, DIM, LENGTH, chroma, write_pair
from tests.serve.model import write_model


@pytest.fixture(scope="module")
def pair(pair_file: Path) -> Embedder:
    return Embedder(pair_file, device="cpu")


def members(file: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(file) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_a_text_is_the_sum_of_its_colours(pair: Embedder) -> None:
    texts = ["A photo of RED", "blue, green", "no colour at all", *COLOURS]
    found = pair.embed_texts(texts)
    assert found.shape == (len(texts), DIM)
    assert found.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    grey = found[2]  # the part that all have in common
    for text, vector in zip(texts, found, strict=True):
        sums = chroma(
            np.array([value for word, value in COLOURS.items() if word in text.lower()] or [(0, 0, 0)])
        )
        expected = sums.sum(0) + 0.05 * grey
        np.testing.assert_allclose(vector, expected / np.linalg.norm(expected), atol=1e-6)
    assert pair.embed_texts([]).shape == (0, DIM)


def test_a_text_finds_images_of_its_colour(pair: Embedder, shop: Path) -> None:
    for name in ("red", "green", "blue"):
        images = sorted(shop.rglob("*.png"))
        scores = pair.embed(images) @ pair.embed_texts([name])[0]
        assert {images[i].parent.name for i in np.argsort(-scores)[:8]} == {name}


def test_long_texts_are_truncated_and_short_ones_padded(pair: Embedder, tmp_path: Path) -> None:
    ids, mask = pair.text_encoder.tokens(["red " * 50, "red"])
    assert ids.tolist() == [[5] * LENGTH, [5] + [0] * (LENGTH - 1)]
    assert mask.tolist() == [[1] * LENGTH, [1] + [0] * (LENGTH - 1)]
    text_input = TextInput(3, pad_id=1, pad_side="left", prefix="a ", suffix=" photo")
    other = Embedder(write_pair(tmp_path / "pair.zip", text_input=text_input), device="cpu").text_encoder
    assert other.text_input == text_input
    assert other.tokens([""])[0].tolist() == [[1, 2, 3]]
    assert other.tokens(["red"])[0].tolist() == [[2, 5, 3]]


@pytest.mark.parametrize("texts", [[""], ["red", " \n"]], ids=["one", "second"])
def test_empty_texts_are_refused(pair: Embedder, texts: list[str]) -> None:
    with pytest.raises(InputError, match=r"^text( 2 of 2)?: empty"):
        pair.embed_texts(texts)


def test_a_model_without_text_encoder_says_how_to_get_one(tmp_path: Path) -> None:
    embedder = Embedder(write_model(tmp_path / "model.onnx"), device="cpu")
    assert not embedder.has_text
    with pytest.raises(InputError, match=r"no text encoder; .*--text-column.*--from open-clip"):
        embedder.embed_texts(["red"])


def test_images_of_a_pair_need_no_tokenizers(pair_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    embedder = Embedder(pair_file, device="cpu")
    assert embedder.has_text
    assert embedder.embed([np.zeros((20, 20, 3), np.uint8)]).shape == (1, DIM)
    with pytest.raises(InputError, match=r"pip install 'lookalike\[text\]'"):
        embedder.embed_texts(["red"])


def test_threads_share_one_text_encoder(pair_file: Path) -> None:
    embedder, found = Embedder(pair_file, device="cpu"), []
    threads = [Thread(target=lambda: found.append(embedder.text_encoder)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(one) for one in found}) == 1


# ---- the archive


def test_equal_contents_give_equal_bytes(pair_file: Path, tmp_path: Path) -> None:
    write_archive(tmp_path / "again.zip", members(pair_file))
    assert (tmp_path / "again.zip").read_bytes() == pair_file.read_bytes()
    assert ModelArchive(pair_file).fingerprint == Embedder(tmp_path / "again.zip").fingerprint


def test_other_zip_files_are_refused(pair_file: Path, tmp_path: Path) -> None:
    contents, file = members(pair_file), tmp_path / "bad.zip"

    def refused(match: str) -> None:
        with pytest.raises(InputError, match=match):
            Embedder(file, device="cpu").embed_texts(["red"])

    for extra in ("../evil", "image.onnx"):  # a path, a second member of the name
        with zipfile.ZipFile(file, "w") as archive:
            for name in MEMBERS:
                archive.writestr(name, contents[name])
            if extra in contents:
                with pytest.warns(UserWarning, match="Duplicate"):
                    archive.writestr(extra, b"")
            else:
                archive.writestr(extra, b"")
        refused("not a model archive")
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in MEMBERS:
            archive.writestr(name, contents[name])
    refused("compressed")
    whole = pair_file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    refused("not a complete model archive")
    at = whole.index(PROPERTY.encode(), whole.index(contents[TEXT]))
    file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    refused("CRC")
    write_archive(file, contents | {TOKENIZER: b"{}"})
    refused("tokenizer.json is damaged")
    write_archive(file, contents | {TEXT: contents[IMAGE]})
    refused("metadata of text.onnx is damaged")


def test_a_replaced_file_is_not_mixed_with_the_old_one(pair_file: Path, tmp_path: Path) -> None:
    file = Path(shutil.copy(pair_file, tmp_path / "pair.zip"))
    embedder = Embedder(file, device="cpu")
    write_pair(file, text_input=TextInput(LENGTH, prefix="red "))
    with pytest.raises(InputError, match="has changed since it was opened"):
        embedder.embed_texts(["blue"])


# ---- galleries and commands


def test_a_gallery_keeps_the_whole_archive(pair_file: Path, shop: Path, tmp_path: Path) -> None:
    gallery = Gallery.create(tmp_path / "g", pair_file)
    gallery.add([shop])
    assert model_file(gallery.folder) == gallery.folder / "model" / "model.zip"
    assert model_file(gallery.folder).read_bytes() == pair_file.read_bytes()
    copy_gallery(gallery.folder, tmp_path / "copy")
    for folder in (gallery.folder, tmp_path / "copy"):
        assert not verify(folder).problems
        opened = Gallery.open(folder)
        hits = opened.search_vectors(opened.embedder.embed_texts(["green"]), 3)[0]
        assert {hit.label for hit in hits} == {"green"}


def test_model_info_shows_the_text_encoder(pair_file: Path) -> None:
    done = lookalike_here("model", "info", str(pair_file), "--no-latency")
    words = " ".join(done.stdout.split())
    assert f"text context_length {LENGTH}, pad_id 0, pad_side right, vocabulary 11, parameters 96" in words
