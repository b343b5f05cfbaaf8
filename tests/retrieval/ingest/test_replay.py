"""Decisions made by hand: the log, and runs that would undo them."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import numpy as np
import pytest

from retrieval import Gallery, InputError, LookalikeError
from retrieval.curation.suspects import find_suspects
from retrieval.curation.thinning import plan_thinning
from retrieval.galleries.writer import FileWriter
from retrieval.ingest.replay import replay
from retrieval.ingest.sync import folder_difference, sync, update
from retrieval.storage.decisions import FILE, DecisionLog
from retrieval.upkeep.compact import compact
from retrieval.upkeep.snapshot import copy_gallery
from tests.conftest import draw, lookalike_here
from tests.retrieval.curation.test_duplicates import make, unit
from tests.retrieval.filling import bare_gallery, commit
from tests.retrieval.killing import kill_at_every_step
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
    editor = gallery.editor()
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
    lookalike_here("check", "undo", str(shop / "g"), "1")
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
    facts = json.loads(lookalike_here("index", "sync", str(shop / "g"), "--json").stdout)
    assert (facts["relabelled"], labels(shop)["3.png"]) == (0, "violet")


def test_undo_gives_the_label_back(shop: Path) -> None:
    decide(shop, relabel="red/1.png")
    words = ["check", "decisions", str(shop / "g")]
    assert "label red -> green" in lookalike_here(*words).stdout
    undone = lookalike_here("check", "undo", words[-1], "1").stdout
    assert "1 decision undone; 1 label changed back" in undone
    again = lookalike_here("check", "undo", words[-1], "1", "1").stdout
    assert "0 decisions undone, 1 undone before; 0 labels changed back" in again
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
    found = plan_thinning(gallery, gallery.duplicates(-1.0).groups, "first", -1.0, across_labels=True)
    gallery.remove_surplus(found)
    gone = {one.key for one in DecisionLog(shop / "g").in_effect()}
    assert gone == {"red/1.png", *(one.item.key for one in found.surplus)}
    assert len(gone) > 1


def test_a_refused_change_is_withdrawn(shop: Path) -> None:
    editor = Gallery(shop / "g").editor()
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
    assert [one.item.key for one in find_suspects(gallery, k=2, limit=9).suspects] == ["2"]
    editor = gallery.editor()
    with editor.writing():
        editor.keep(editor.stored_items(gallery.ids_of(["2"]))[0])
    found = find_suspects(gallery, k=2, limit=9)
    assert (found.suspects, found.confirmed) == ([], 1)


def test_a_corrected_table_of_suspects_is_taken_back(tmp_path: Path) -> None:
    """The list as it was written changes nothing; a corrected one does, is logged, and can be undone."""
    vectors = unit(np.array([[1, 0.01], [1, 0], [1, 0.2], [0, 1], [0.01, 1], [0.1, 1]]))
    gallery = make(tmp_path / "g", vectors, labels=["a", "a", "b", "b", "b", "a"])
    take = ["check", "decide", str(gallery.folder), str(tmp_path / "suspects.csv")]
    lookalike_here("check", "suspects", str(gallery.folder), "-k", "2", "--list", take[-1])
    assert rows_of(Path(take[-1])) == [], "so few images show nothing with certainty"
    assert lookalike_here(*take).stdout == f"{gallery.folder}: 0 labels changed, 0 as before\n"
    most = ["--limit", "9", "--list", take[-1]]
    lookalike_here("check", "suspects", str(gallery.folder), "-k", "2", *most)
    table = rows_of(tmp_path / "suspects.csv")
    assert {(row["key"], row["label"], row["suggested"]) for row in table} == {
        ("2", "b", "a"),
        ("5", "a", "b"),
    }
    assert lookalike_here(*take).stdout == f"{gallery.folder}: 0 labels changed, 2 as before\n"
    assert DecisionLog(gallery.folder).read() == []
    corrected = [{**row, "label": row["suggested"]} if row["key"] == "2" else row for row in table]
    with (tmp_path / "suspects.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(table[0]))
        writer.writeheader()
        writer.writerows(corrected)
    tried = json.loads(lookalike_here(*take, "--dry-run", "--json").stdout)
    assert labels_of(gallery) == ["a", "a", "b", "b", "b", "a"]
    made = json.loads(lookalike_here(*take, "--json").stdout)
    assert made["changes"] == tried["changes"] == [{"id": 3, "key": "2", "old": "b", "new": "a"}]
    assert labels_of(gallery) == ["a", "a", "a", "b", "b", "a"]
    (logged,) = DecisionLog(gallery.folder).read()
    assert (logged.action, logged.key, logged.old, logged.new) == ("label", "2", "b", "a")
    lookalike_here("check", "undo", str(gallery.folder), str(logged.n))
    assert labels_of(gallery) == ["a", "a", "b", "b", "b", "a"]


def test_a_table_decides_in_one_go(tmp_path: Path) -> None:
    """A column `decision` removes and keeps, beside labels; all of it is logged, and can be undone."""
    gallery = make(tmp_path / "g", unit(np.eye(5)), labels=["a", "a", "b", "b", "c"])
    (tmp_path / "t.csv").write_text("key,label,decision\n0,a,remove\n1,a,keep\n2,z,\n3,b,\n4,,Remove\n")
    words = ["check", "decide", str(gallery.folder), str(tmp_path / "t.csv")]
    tried = json.loads(lookalike_here(*words, "--dry-run", "--json").stdout)
    assert (len(gallery), DecisionLog(gallery.folder).read()) == (5, [])
    made = json.loads(lookalike_here(*words, "--json").stdout)
    assert made == tried | {"dry_run": False}
    assert (made["removed"], made["kept"], made["unchanged"], len(made["changes"])) == (2, 1, 2, 1)
    gallery.refresh()
    assert {gallery.item(n).key: gallery.item(n).label for n in (2, 3, 4)} == {"1": "a", "2": "z", "3": "b"}
    log = DecisionLog(gallery.folder).read()
    assert {(one.action, one.key) for one in log} == {
        ("label", "2"),
        ("keep", "1"),
        ("remove", "0"),
        ("remove", "4"),
    }
    lookalike_here("check", "undo", str(gallery.folder), *(str(one.n) for one in log))
    assert "no decisions" in lookalike_here("check", "decisions", str(gallery.folder)).stdout


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("key,decision\n0,delete\n", "line 2: decision is 'delete'; write keep or remove"),
        ("key,decision\n0,keep\n0,remove\n", "line 3: '0' has the decision 'keep' in another row"),
    ],
)
def test_wrong_decisions_change_nothing(tmp_path: Path, text: str, message: str) -> None:
    gallery = make(tmp_path / "g", unit(np.eye(3)), labels=["a", "b", "c"])
    (tmp_path / "t.csv").write_text(text)
    done = lookalike_here("check", "decide", str(gallery.folder), str(tmp_path / "t.csv"), code=2)
    assert message in done.stderr
    assert DecisionLog(gallery.folder).read() == []


def rows_of(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


def labels_of(gallery: Gallery) -> list[str | None]:
    gallery.refresh()
    return [gallery.item(number).label for number in range(1, len(gallery) + 1)]


def test_keys_that_are_numbers_are_not_ids(tmp_path: Path) -> None:
    gallery = make(tmp_path / "g", unit(np.eye(3)), labels=["a", "b", "c"])
    (tmp_path / "labels.csv").write_text("key,label\n1,z\n")
    lookalike_here("check", "decide", str(gallery.folder), str(tmp_path / "labels.csv"))
    assert labels_of(gallery) == ["a", "z", "c"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "key,label\n0,z\n7,z\nnobody,y\n",
            "the items of 2 rows; leave them out: {}, line 3: '7'; {}, line 4: 'nobody'",
        ),
        (
            "path,label\n/pictures/0.jpg,z\nx.jpg,z\n",
            "the items of 1 row; leave them out: {}, line 3: 'x.jpg'",
        ),
        ("key,label\n0,z\n0,y\n", "line 3: '0' has the label 'z' in another row; leave one"),
        ("a,b,same\n0,1,1\n", "decides on pairs"),
        ("key,name\n0,z\n", "it needs one of id, key and path, and label"),
        ("key;label\n0;z\n", "columns 'key;label'; its fields are separated by ';'; save it with commas"),
    ],
)
def test_wrong_tables_of_labels_change_nothing(tmp_path: Path, text: str, message: str) -> None:
    gallery = make(tmp_path / "g", unit(np.eye(3)), labels=["a", "b", "c"])
    table = tmp_path / "labels.csv"
    table.write_text(text)
    done = lookalike_here("check", "decide", str(gallery.folder), str(table), code=2)
    assert message.format(table, table) in done.stderr
    assert labels_of(gallery) == ["a", "b", "c"]
    assert DecisionLog(gallery.folder).read() == []


def test_table_of_labels_that_is_not_there_is_not_blamed_for_its_encoding(shop: Path) -> None:
    done = lookalike_here("check", "decide", str(shop / "g"), str(shop / "labels.csv"), code=2)
    assert done.stderr == f"lookalike: {shop / 'labels.csv'}: there is no such file\n"


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
        store, count = FileWriter(folder), len(DecisionLog(folder).read())
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
