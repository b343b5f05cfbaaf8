"""Decisions made by hand: the log, and runs that would undo them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from retrieval import Gallery, InputError, LookalikeError
from retrieval.ingest.editor import open_editor
from retrieval.ingest.replay import replay
from retrieval.ingest.sync import folder_difference, sync, update
from retrieval.storage.decisions import FILE, DecisionLog
from retrieval.storage.store import Store
from retrieval.upkeep.compact import compact
from retrieval.upkeep.duplicates import find_duplicates
from retrieval.upkeep.snapshot import copy_gallery
from retrieval.upkeep.suspects import find_suspects
from retrieval.upkeep.thinning import plan_thinning, remove_surplus
from tests.conftest import draw, lookalike_here
from tests.retrieval.filling import bare_gallery, commit
from tests.retrieval.killing import kill_at_every_step
from tests.retrieval.upkeep.test_duplicates import make, unit
from tests.serve.model import write_model


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A folder with images of two labels, and the gallery of them."""
    for seed, name in enumerate(["red/1.png", "red/2.png", "red/3.png", "blue/4.png"]):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        draw(seed).save(path)
    Gallery.create(tmp_path / "g", write_model(tmp_path / "m.onnx")).add([tmp_path / "photos"])
    return tmp_path


def labels(folder: Path) -> dict[str, str | None]:
    """Return the label of each image by the name of its file."""
    gallery = Gallery(folder / "g")
    return {Path(item.key).name: item.label for item in gallery.items(list(range(1, 20))).values()}


def decide(folder: Path, *, relabel: str | None = None, remove: str | None = None) -> None:
    gallery = Gallery(folder / "g")
    editor = open_editor(gallery)
    with editor.writing():
        if relabel:
            (item,) = editor.stored_items(gallery.ids_of([relabel]))
            editor.amend(item, "green", {})
        if remove:
            editor.remove(gallery.ids_of([remove]))


ALL = {"1.png": "red", "2.png": "red", "3.png": "red", "4.png": "blue"}


def test_a_removed_image_does_not_come_back(shop: Path) -> None:
    decide(shop, remove="red/2.png")
    left = {name: label for name, label in ALL.items() if name != "2.png"}
    result = sync(Gallery(shop / "g"), shop / "photos")
    assert (result.withheld, result.added, labels(shop)) == (1, 0, left)
    assert not folder_difference(Gallery(shop / "g"), shop / "photos").has_changes
    os.utime(shop / "photos/red/2.png", (1e9, 1e9))  # the same bytes
    compact(Gallery(shop / "g"))  # forgets the item
    assert Gallery(shop / "g").add([shop / "photos"]).withheld == 1
    assert update(Gallery(shop / "g")).result.added == 0
    assert labels(shop) == left
    draw(77).save(shop / "photos/red/2.png")  # another image
    assert sync(Gallery(shop / "g"), shop / "photos").added == 1
    assert labels(shop) == ALL


def test_a_removed_image_comes_back_when_asked_for(shop: Path) -> None:
    decide(shop, remove="red/2.png")
    assert sync(Gallery(shop / "g"), shop / "photos", ignore_decisions=True).added == 1
    assert sync(Gallery(shop / "g"), shop / "photos").removed == 1  # the decision was only ignored once
    lookalike_here("index", "decisions", str(shop / "g"), "--undo", "1")
    assert sync(Gallery(shop / "g"), shop / "photos").added == 1
    assert labels(shop) == ALL


def test_a_corrected_label_is_not_overwritten_by_the_folder(shop: Path) -> None:
    decide(shop, relabel="red/3.png")
    corrected = ALL | {"3.png": "green"}
    file, away = shop / "photos/red/3.png", shop / "3.png"
    file.rename(away)
    sync(Gallery(shop / "g"), shop / "photos")
    compact(Gallery(shop / "g"))
    away.rename(file)
    result = sync(Gallery(shop / "g"), shop / "photos")
    assert (result.added, result.relabelled, labels(shop)) == (1, 1, corrected)
    assert sync(Gallery(shop / "g"), shop / "photos").relabelled == 0
    (shop / "table.csv").write_text("path,label\nphotos/red/3.png,violet\n")
    Gallery(shop / "g").add([shop / "photos"], metadata=shop / "table.csv", root=shop)
    assert labels(shop)["3.png"] == "violet", "a label that was not decided against stays"
    facts = json.loads(lookalike_here("index", "update", str(shop / "g"), "--json").stdout)
    assert (facts["relabelled"], labels(shop)["3.png"]) == (0, "violet")


def test_undo_gives_the_label_back(shop: Path) -> None:
    decide(shop, relabel="red/1.png")
    words = ["index", "decisions", str(shop / "g")]
    assert "label red -> green" in lookalike_here(*words).stdout
    lookalike_here(*words, "--undo", "1")
    assert labels(shop) == ALL
    assert "no decisions" in lookalike_here(*words).stdout
    assert "(undone)" in lookalike_here(*words, "--all").stdout
    assert update(Gallery(shop / "g")).result.relabelled == 0
    with pytest.raises(InputError, match="no decision 7"):
        DecisionLog(shop / "g").undo([7])


def test_commands_log_what_they_remove(shop: Path) -> None:
    lookalike_here("index", "remove", str(shop / "g"), "red/1.png")
    lookalike_here("index", "remove", str(shop / "g"), "red/1.png", code=2)  # no such item any more
    assert [one.key for one in DecisionLog(shop / "g").read()] == ["red/1.png"]
    gallery = Gallery(shop / "g")
    found = plan_thinning(gallery, find_duplicates(gallery, -1.0).groups, "first", -1.0, across_labels=True)
    remove_surplus(gallery, found)
    gone = {one.key for one in DecisionLog(shop / "g").in_effect()}
    assert gone == {"red/1.png", *(one.item.key for one in found.surplus)}
    assert len(gone) > 1


def test_a_refused_change_is_withdrawn(shop: Path) -> None:
    editor = open_editor(Gallery(shop / "g"))
    with editor.writing():
        (item,) = editor.stored_items([1])
        with pytest.raises(InputError):
            editor.amend(item, "green", {"id": 5})  # a built-in column
    assert DecisionLog(shop / "g").in_effect() == []
    assert [one.undone for one in DecisionLog(shop / "g").read()] == [True]


def test_copies_have_the_decisions(shop: Path, tmp_path: Path) -> None:
    decide(shop, remove="red/2.png")
    copy_gallery(shop / "g", tmp_path / "copy")
    decide(shop, remove="red/3.png")
    assert [one.key for one in DecisionLog(tmp_path / "copy").read()] == ["red/2.png"]
    other = write_model(tmp_path / "other.onnx", note="another")
    lookalike_here("index", "rebuild", str(shop / "g"), "--model", str(other))
    assert len(DecisionLog(shop / "g").read()) == 2


def test_confirmed_labels_are_not_suspected(tmp_path: Path) -> None:
    vectors = unit(np.array([[1, 0.01], [1, 0], [1, 0.2], [0, 1], [0.01, 1]]))
    gallery = make(tmp_path / "g", vectors, labels=["a", "a", "b", "b", "b"])
    assert [one.item.key for one in find_suspects(gallery, k=2).suspects] == ["2"]
    editor = open_editor(gallery)
    with editor.writing():
        editor.keep(editor.stored_items(gallery.ids_of(["2"]))[0])
    found = find_suspects(gallery, k=2)
    assert (found.suspects, found.confirmed) == ([], 1)


def test_log_that_was_torn_is_continued(shop: Path) -> None:
    decide(shop, remove="red/1.png")
    decide(shop, remove="red/2.png")
    file = shop / "g" / FILE
    file.write_bytes(file.read_bytes()[:-9])
    assert [one.n for one in DecisionLog(shop / "g").read()] == [1]
    decide(shop, remove="red/3.png")
    assert [(one.n, one.key) for one in DecisionLog(shop / "g").read()] == [
        (1, "red/1.png"),
        (2, "red/3.png"),
    ]
    file.write_bytes(b"{}\n" + file.read_bytes())
    with pytest.raises(LookalikeError, match="line 1 is damaged"):
        DecisionLog(shop / "g").read()


def test_killed_between_decision_and_change(tmp_path: Path) -> None:
    """After a replay, the gallery is as the decisions in the log say, and another one changes nothing."""
    gallery = bare_gallery(tmp_path / "start")
    commit(gallery, ["a1", "a2", "b1"])
    commit(gallery, ["b1"], seed=1)
    seen, late = set(), 0
    steps = kill_at_every_step("decide", gallery.folder, tmp_path / "killed", only=("fsync", "open"))
    for folder in steps:
        store, count = Store(folder), len(DecisionLog(folder).read())
        with store.writing():
            done, again = replay(store), replay(store)
        late += done.relabelled + done.removed
        assert again.relabelled == again.removed == 0
        live = Gallery(folder)
        found = {item.key: item.label for item in live.items([1, 2, 3]).values()}
        assert found == {
            "a1.jpg": "other" if count > 0 else "a",
            "a2.jpg": "a",
            **({} if count > 1 else {"b1.jpg": "b"}),
        }
        seen.add(count)
    assert seen == {0, 1, 2}
    assert late >= 2, "some processes were killed between the decision and the change"
