"""The log of searches: several processes, kills, damaged lines, its largest size; what is read back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from retrieval.errors import InputError
from retrieval.storage.query_log import LoggedSearch, QueryLog, new_id, read_searches

MODEL, DIM = "m" * 64, 24
APPENDING = """
import sys
from pathlib import Path
import numpy as np
from retrieval.storage.query_log import LoggedSearch, QueryLog, new_id

log = QueryLog(Path(sys.argv[1]), segment_bytes=int(sys.argv[2]), segments=1000)
for number in range(int(sys.argv[3])):
    vector, name = np.full(24, 24**-0.5, np.float32), new_id()
    hits = [(number + 1, 0.5, None)] * 10
    log.append("shop", "m" * 64, [LoggedSearch(name, "vector", vector, (), None, hits)])
    print(name, flush=True)
"""


def search(number: int = 0, **changed: object) -> LoggedSearch:
    vector = np.random.default_rng(number).normal(size=DIM).astype(np.float32)
    values = {"vector": vector / np.linalg.norm(vector), "items": (), "where": None, "hits": [(3, 0.5, None)]}
    return LoggedSearch(id=new_id(), kind="vector", **{**values, **changed})  # type: ignore[arg-type]


def read(folder: Path, gallery: str = "shop", limit: int = 1000) -> list[str]:
    return [one.id for one in read_searches(folder, gallery, MODEL, DIM, limit=limit).each]


def test_what_is_logged_is_read(tmp_path: Path) -> None:
    log = QueryLog(tmp_path / "log")
    one, two, parts = search(1, items=(7,), where="a = 1"), search(2), search(3, vector=None)
    log.append("shop", MODEL, [one, parts])
    log.append("shop", MODEL, [two])
    for item, outcome in ((3, "opened"), (4, "right"), (4, "wrong"), (5, "wrong"), (5, "right")):
        log.append_outcome("shop", one.id, item, outcome)  # type: ignore[arg-type]
    log.append_outcome("shop", "0" * 16, 1, "opened")  # of a search that is not there
    log.append("other", MODEL, [search(4)])
    log.append("shop", "another", [search(5)])
    found = read_searches(tmp_path / "log", "shop", MODEL, DIM)
    first, second = found.each
    assert [first.id, second.id] == [one.id, two.id]
    assert (first.kind, first.items, first.where, first.hits) == ("vector", (7,), "a = 1", [(3, 0.5, None)])
    assert (first.opened, first.right, first.wrong) == ({3, 4, 5}, {5}, {4})
    assert not (second.opened | second.right | second.wrong)
    assert (found.without, found.damaged) == (1, 0)
    assert sorted(found.others.values()) == [1, 1]
    for logged, vector in zip((one, two), found.vectors, strict=True):
        assert logged.vector is not None
        assert float(logged.vector @ vector) > 1 - 1e-6, "16 bits are enough"
    assert (tmp_path / "log").stat().st_mode & 0o077 == 0, "of this user only"
    assert all(file.stat().st_mode & 0o077 == 0 for file in (tmp_path / "log").iterdir())


def test_single_gallery_may_have_another_name_now(tmp_path: Path) -> None:
    QueryLog(tmp_path).append("before", MODEL, [one := search()])
    assert read(tmp_path, "now") == [one.id]


def test_newest_searches_are_read(tmp_path: Path) -> None:
    log, some = QueryLog(tmp_path, segment_bytes=1000), [search(number) for number in range(40)]
    for one in some:
        log.append("shop", MODEL, [one])
    assert read(tmp_path, limit=7) == [one.id for one in some[-7:]]
    assert read(tmp_path) == [one.id for one in some]


def test_size_has_a_limit_and_deleted_files_are_no_loss(tmp_path: Path) -> None:
    log, some = QueryLog(tmp_path, segment_bytes=1000, segments=3), [search(n) for n in range(60)]
    for one in some:
        log.append("shop", MODEL, [one])
    files = sorted(tmp_path.iterdir())
    assert len(files) == 3
    assert all(file.stat().st_size < 1600 for file in files)
    kept = read(tmp_path)
    assert kept == [one.id for one in some[-len(kept) :]]
    for file in files:
        file.unlink()  # as somebody does who wants nothing kept
    log.append("shop", MODEL, [one := search()])
    assert read(tmp_path) == [one.id]


def test_threads_and_processes_lose_nothing(tmp_path: Path) -> None:
    commands = [[sys.executable, "-c", APPENDING, str(tmp_path), "5000", "60"] for _ in range(3)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    log, ours = QueryLog(tmp_path, segment_bytes=5000, segments=1000), list[str]()

    def append() -> None:
        for number in range(40):
            one = search(number)
            log.append("shop", MODEL, [one])
            ours.append(one.id)

    threads = [threading.Thread(target=append) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    told = [line for process in running for line in process.communicate(timeout=120)[0].split()]
    found = read_searches(tmp_path, "shop", MODEL, DIM)
    assert sorted(one.id for one in found.each) == sorted(told + ours)
    assert (len(told), len(ours), found.damaged) == (180, 160, 0)


def test_killed_process_loses_nothing_that_it_had_logged(tmp_path: Path) -> None:
    """Another process appends to the same file meanwhile and afterwards."""
    log, told, others = QueryLog(tmp_path, segment_bytes=100_000), list[str](), list[str]()
    for _ in range(3):
        command = [sys.executable, "-c", APPENDING, str(tmp_path), "100000", "1000000"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for _ in range(50):
                told.append(process.stdout.readline().strip())
                log.append("shop", MODEL, [one := search()])
                others.append(one.id)
            os.kill(process.pid, signal.SIGKILL)
            told += process.stdout.read().split("\n")[:-1]
    log.append("shop", MODEL, [last := search()])
    found = read_searches(tmp_path, "shop", MODEL, DIM, limit=1_000_000)
    assert {*told, *others, last.id} <= {one.id for one in found.each}
    assert found.damaged <= 3


@pytest.mark.parametrize("kept", [1, 40, -1])
def test_torn_line_damages_no_other(tmp_path: Path, kept: int) -> None:
    """Of a machine that lost power: the file ends within a line, and a running process goes on."""
    log = QueryLog(tmp_path)
    log.append("shop", MODEL, [one := search(1)])
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    log.append("shop", MODEL, [search(2)])
    with file.open("r+b") as opened:
        opened.truncate(len(whole) + kept if kept > 0 else file.stat().st_size - 1)
    assert read(tmp_path)[:1] == [one.id]
    log.append("shop", MODEL, [three := search(3)])
    found = read_searches(tmp_path, "shop", MODEL, DIM)
    assert [each.id for each in found.each][:: 2 if kept < 0 else 1] == [one.id, three.id]
    assert found.damaged == (kept > 0), "a line without its end only is whole"


def test_foreign_lines_are_counted_and_left_out(tmp_path: Path) -> None:
    log = QueryLog(tmp_path)
    log.append("shop", MODEL, [one := search()])
    (file,) = tmp_path.iterdir()
    entry = json.loads(file.read_text())
    wrong = [
        *({**entry, name: value} for name, value in (("vector", "!"), ("vector", "AAAA"), ("kind", "x"))),
        *({**entry, name: value} for name, value in (("hits", [[1]]), ("items", ["1"]), ("time", 3))),
        {**entry, "vector": None, "model": None},
        {"search": "a", "time": "t", "gallery": "shop", "item": "1", "outcome": "opened"},
        {"search": "a", "time": "t", "gallery": "shop", "item": 1, "outcome": "liked"},
        *([], 3, None, {}),
    ]
    lines = [json.dumps(value).encode() for value in wrong] + [b"\xff\xfe", b"[" * 100_000, b"\0" * 50]
    file.write_bytes(b"\n".join([*lines, file.read_bytes()]))
    found = read_searches(tmp_path, "shop", MODEL, DIM)
    assert [each.id for each in found.each] == [one.id]
    assert found.damaged == len(lines)


def test_failures(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(InputError, match="no log of searches"):
        read_searches(tmp_path, "shop", MODEL, DIM)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="not a folder"):
        QueryLog(tmp_path / "file" / "log")
    log = QueryLog(tmp_path / "log")
    (tmp_path / "log").rmdir()
    (tmp_path / "log").touch()
    for _ in range(3):
        log.append("shop", MODEL, [search()])  # no error
    assert caplog.text.count("searches are not logged") == 1
