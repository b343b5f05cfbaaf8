"""Files of facts: what is written is read, and nothing damaged is."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval import Gallery
from retrieval.storage import facts
from retrieval.storage.facts import DamagedError, FactsFile, StoredFacts
from retrieval.storage.records import Facts, Value
from retrieval.upkeep.compact import compact
from retrieval.upkeep.verify import verify
from tests.retrieval.filling import bare_gallery, commit, contents
from tests.retrieval.killing import kill_at_every_step

TEXTS = st.text(st.characters(), max_size=6)  # with the halves of pairs that stand for bytes of paths
NUMBERS = st.integers(0, 2**63 - 1)
VALUES = (
    st.none() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
)
ROW = st.tuples(NUMBERS, TEXTS, TEXTS, TEXTS, NUMBERS, NUMBERS, TEXTS, NUMBERS, NUMBERS, st.none() | TEXTS)
ROWS = st.lists(st.tuples(ROW, st.tuples(VALUES, VALUES)), min_size=1, max_size=12)
Drawn = Sequence[tuple[tuple[object, ...], tuple[Value, Value]]]


def written(folder: Path, drawn: Drawn, names: tuple[str, str] = ('%s "', "p")) -> Path:
    """Return a new file with rows."""
    ids, *columns = zip(*(row for row, _ in drawn), strict=True)
    described = zip(*(values for _, values in drawn), strict=True)
    path = folder / "a.facts"
    metadata = {name: list(values) for name, values in zip(names, described, strict=True)}
    texts = facts.encoded(ids, Facts(*map(list, columns)), metadata)  # type: ignore[arg-type]
    facts.write(path, len(ids), texts)
    return path


@given(drawn=ROWS, repeated=st.integers(1, 3))
def test_rows_are_read_as_they_were_written(
    drawn: Drawn, repeated: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    drawn = [*drawn] * repeated  # so that some columns have one value
    path = written(tmp_path_factory.mktemp("f"), drawn)
    expected = [
        [*row, {name: value for name, value in zip(('%s "', "p"), values, strict=True) if value is not None}]
        for row, values in drawn
    ]
    order = [*range(len(drawn))][::-1]
    found = facts.parse(FactsFile(path, len(drawn)).texts(order))
    assert json.dumps(found) == json.dumps([expected[at] for at in order])
    assert facts.intact_rows(path, len(drawn)) == expected
    facts.check(path, len(drawn))
    known, metadata = facts.columns([row for row in found if row])
    assert [*known.label] == [expected[at][9] for at in order]
    assert all(len(values) == len(drawn) for values in metadata.values())


def test_equal_numbers_of_two_types_keep_them(tmp_path: Path) -> None:
    row = (1, "k", "", "", 0, 0, "", 0, 0, None)
    path = written(tmp_path, [(row, (1, 0.0)), (row, (1.0, -0.0)), (row, (1, 0.0))])
    found = [row[-1] for row in facts.intact_rows(path, 3) if row]
    assert [json.dumps([*values.values()]) for values in found] == ["[1, 0.0]", "[1.0, -0.0]", "[1, 0.0]"]


@pytest.mark.parametrize(
    "text",
    [
        b"{}",
        b"7",
        b"[",
        b"[" * 100_000,
        b'[1, "k", "", "", 0, 0, "", 0, 0, null, {}],[1]',  # two rows, or a part of another one
        b'["1", "k", "", "", 0, 0, "", 0, 0, null, {}]',
        b'[1, ["k"], "", "", 0, 0, "", 0, 0, null, {}]',
        b'[1, "k", 3.5, "", 0, 0, "", 0, 0, null, {}]',
        b'[1, "k", "", "", 0, 0, "", 0, 0, 5, {}]',
        b'[1, "k", "", "", 0, 0, "", 0, 0, null, []]',
        b'[1, "k", "", "", 0, 0, "", 0, 0, null, {"p": {}}]',
        b'[1, "k", "", "", 0, 0, "", 0, 0, null]',
    ],
)
def test_no_value_of_another_type_is_read(tmp_path: Path, text: bytes) -> None:
    """A file from somebody else has right checksums."""
    rows = [((n + 1, f"key {n}", "/r", f"{n}.jpg", n, n, "", 1, 1, None), (n, "é")) for n in range(3)]
    path = written(tmp_path, rows)
    intact, texts = facts.intact_rows(path, 3), FactsFile(path, 3).texts([0, 1, 2])
    facts.write(path, 3, [[texts[0], text, texts[2]]])
    expected = [intact[0], None, intact[2]]
    assert StoredFacts([FactsFile(path, 3)], [3]).rows([0, 1, 2]) == expected
    assert facts.intact_rows(path, 3) == expected
    with pytest.raises(DamagedError):
        facts.check(path, 3)


def test_no_damaged_byte_is_read(tmp_path: Path) -> None:
    rows = [((n + 1, f"key {n}", "/r", f"{n}.jpg", n, n, "", 1, 1, None), (n, "é")) for n in range(3)]
    path = written(tmp_path, rows)
    intact, data = facts.intact_rows(path, 3), path.read_bytes()
    assert None not in intact
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        assert all(
            row in (None, before) for row, before in zip(facts.intact_rows(path, 3), intact, strict=True)
        )
        with pytest.raises(DamagedError):
            facts.check(path, 3)
    for end in range(len(data)):
        path.write_bytes(data[:end])
        with pytest.raises(DamagedError):
            FactsFile(path, 3)


def test_rows_over_several_segments(tmp_path: Path) -> None:
    files: list[FactsFile | None] = []
    for part, count in enumerate((2, 3, 1)):
        (tmp_path / str(part)).mkdir()
        rows = [
            ((10 * part + n, f"{part}/{n}", "", "", 0, 0, "", 0, 0, None), (None, None)) for n in range(count)
        ]
        files.append(FactsFile(written(tmp_path / str(part), rows), count))
    known = StoredFacts([files[0], None, files[2]], [2, 3, 1], np.array([1, 77, 1]))
    asked, expected = [5, 0, 1, 3, 4], ["2/0", "0/0", None, None, None]
    for times in (1, 50):  # few are read one by one, many by segment
        assert [row and row[1] for row in known.rows(times * asked)] == times * expected
    assert not known.complete
    path = tmp_path / "1" / "a.facts"
    path.write_bytes(path.read_bytes().replace(b"1/1", b"1/7"))
    damaged = StoredFacts([files[0], FactsFile(path, 3), files[2]], [2, 3, 1])
    expected = ["2/0", "0/0", "0/1", None, "1/2"]
    for times in (1, 50):
        assert [row and row[1] for row in damaged.rows(times * asked)] == times * expected
    assert StoredFacts([files[1]], [3]).complete


def test_search_agrees_with_the_database_through_changes(tmp_path: Path) -> None:
    """Facts come from the files, and from the database where they changed later; both are the same."""
    gallery = bare_gallery(tmp_path / "g")
    for number in range(4):
        commit(gallery, [f"{number}{letter}" for letter in "abc"], seed=number, price=number)
    random = np.random.default_rng(0)
    for step in range(12):
        item = int(random.choice(gallery.sample(12)))
        if step % 4 == 3:
            compact(gallery)
        elif step % 4 == 2:
            gallery.remove([item])
        else:
            (stored,) = gallery.stored_items([item])
            with (editor := gallery.editor()).writing():
                editor.amend(stored, f"label {step}", {"colour": step})
        for opened in (gallery, Gallery(gallery.folder)):
            query = opened.vector(opened.sample(1)[0])[None]
            for hit in opened.search_vectors(query, 12)[0]:
                (stored,) = opened.stored_items([hit.id])
                assert (hit.key, hit.label, hit.metadata) == (stored.key, stored.label, stored.metadata)
                assert (hit.path, hit.width, hit.height) == (f"/pictures/{stored.path}", 4, 3)


def earlier(folder: Path) -> None:
    """Give the segments of a gallery files of facts in the earlier format."""
    store = Gallery(folder).store
    for segment in store.segments():
        path = folder / "segments" / segment.file
        rows = [row[1:-1] for row in facts.intact_rows(path.with_suffix(".facts"), segment.n) if row]
        columns = dict(zip(Facts.__dataclass_fields__, map(list, zip(*rows, strict=True)), strict=True))
        text = json.dumps(columns)[1:].encode()
        path.with_suffix(".items.json").write_bytes(b'{"crc":"%08x",' % zlib.crc32(text) + text)
        path.with_suffix(".facts").unlink()


def test_gallery_of_the_earlier_format_is_brought_over(tmp_path: Path) -> None:
    gallery = bare_gallery(tmp_path / "g")
    for number in range(3):
        commit(gallery, [f"{number}{letter}" for letter in "abc"], seed=number, price=number)
    before = contents(gallery)
    earlier(gallery.folder)
    assert contents(Gallery(gallery.folder)) == before
    assert not verify(gallery.folder).problems
    steps = kill_at_every_step("compact", gallery.folder, tmp_path / "killed")
    assert len(steps) > 5
    for folder in steps:
        assert contents(Gallery(folder)) == before
        assert not verify(folder).problems
    assert {file.suffix for file in (steps[-1] / "segments").iterdir()} == {".npy", ".facts", ""}, (
        "and `last`"
    )
    assert Gallery(steps[-1]).state.known.complete


def test_lost_database_of_the_earlier_format_is_rebuilt(tmp_path: Path) -> None:
    gallery = bare_gallery(tmp_path / "g")
    commit(gallery, ["a", "b", "c"], price=3)
    before = contents(gallery)
    earlier(gallery.folder)
    (gallery.folder / "gallery.db").unlink()
    assert not verify(gallery.folder, repair=True).left
    after = contents(Gallery(gallery.folder))
    assert after == {key: (label, {}, vector) for key, (label, _, vector) in before.items()}
