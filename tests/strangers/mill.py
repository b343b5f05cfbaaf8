"""Opens files of every kind, changed at random, by the command line, in a process with limits.

    python -m tests.strangers.mill FOLDER KIND COUNT [FIRST]

Each attempt is a forked process with limits on its address space and its time, and with a hook by which
Python reports what it does. A command must succeed, or end with one line that is no internal error. It may
not run other programs, connect to a network, unpickle, or open files outside its folder and the installation.
The number of an attempt gives its seed: the same one changes the same file in the same way.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import resource
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faiss  # noqa: F401  # once, before the forks
import numpy as np
import onnxruntime  # noqa: F401
import pyarrow.parquet  # noqa: F401
import torch  # noqa: F401

from retrieval.cli import main
from retrieval.files import sha256_of
from retrieval.storage import database, facts, schema, segments

_MEMORY = 2 << 30  # bytes beyond those of the process when it begins
_SECONDS = 60  # of the processor
_PATIENCE = 600  # seconds, on a busy machine
_WEIRD: tuple[Any, ...] = (
    None, True, -1, 0, 2**31, 2**63, 10**80, 1e308, float("nan"), "", "x", "../../etc/passwd", "\ud800",
    "%s{0}", [], [[]], {}, {"a": []}, ["x"] * 3,
)  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """A kind of file.

    Attributes:
        files: Patterns of the files of a folder that are changed.
        commands: Commands that open them, in the folder.
        change: Changes one of the files.
        seal: Makes the checksums of others right again.
    """

    files: tuple[str, ...]
    commands: tuple[tuple[str, ...], ...]
    change: Callable[[Path, random.Random], None]
    seal: Callable[[Path, Path], None] | None = None


# ---- changes


def change_bytes(file: Path, draw: random.Random) -> None:
    """Flip, overwrite, cut, double or insert some bytes."""
    data = bytearray(file.read_bytes())
    for _ in range(draw.choice((1, 1, 1, 4, 32))):
        at = draw.randrange(min(len(data), draw.choice((64, 512, 1 << 30))) or 1)
        match draw.randrange(6):
            case 0 | 1:
                data[at : at + 1] = bytes([draw.randrange(256)])
            case 2:
                number = draw.choice((-1, 2**31 - 1, 2**62, 0, 2**40, draw.randrange(2**32)))
                data[at : at + 8] = number.to_bytes(8, "little", signed=True)
            case 3:
                del data[at : at + draw.choice((1, 8, 100, len(data)))]
            case 4:
                data[at:at] = data[at : at + draw.choice((1, 8, 100))] * draw.choice((1, 50))
            case 5:
                data[at:at] = draw.randbytes(draw.choice((1, 8, 1000)))
    file.write_bytes(data)


def _replaced(value: Any, draw: random.Random) -> Any:
    """Return a JSON value with one of its parts replaced, deleted or nested."""
    if isinstance(value, dict) and value and draw.random() < 0.8:
        key = draw.choice([*value])
        changed = {**value, key: _replaced(value[key], draw)}
        if draw.random() < 0.2:
            del changed[key]
        return changed
    if isinstance(value, list) and value and draw.random() < 0.8:
        at = draw.randrange(len(value))
        return [*value[:at], _replaced(value[at], draw), *value[at + 1 :]]
    return draw.choice(_WEIRD)


def change_json(file: Path, draw: random.Random) -> None:
    """Replace a part of a JSON file, or of one of its lines, by another type; or nest it deeply."""
    lines = file.read_text().splitlines() if file.suffix == ".jsonl" else [file.read_text()]
    at = draw.randrange(len(lines))
    match draw.randrange(8):
        case 0:
            change_bytes(file, draw)
            return
        case 1:
            lines[at] = "[" * 100_000
        case 2:
            lines[at] = '{"a":' * 100_000
        case _:
            lines[at] = json.dumps(_replaced(json.loads(lines[at]), draw))
    file.write_text("".join(f"{line}\n" for line in lines))


def change_yaml(file: Path, draw: random.Random) -> None:
    """Replace the value of a line, add tags that make objects, or aliases that grow."""
    lines = file.read_text().splitlines()
    at = draw.randrange(len(lines))
    name = lines[at].partition(":")[0]
    match draw.randrange(7):
        case 0:
            change_bytes(file, draw)
            return
        case 1:
            lines[at] = f"{name}: !!python/object/apply:os.system ['touch pwned']"
        case 2:
            lines[at] = f"{name}: !!python/name:os.system"
        case 3:
            grown = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
            grown += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
            lines = [*grown, *lines, f"{name}: *a11"]
        case 4:
            lines[at] = f"{name}: {'[' * 5000}"
        case _:
            lines[at] = f"{name}: {json.dumps(draw.choice(_WEIRD))}"
    file.write_text("\n".join(lines), errors="surrogatepass")


def change_npy(file: Path, draw: random.Random) -> None:
    """Give an array another header: type, shape, order."""
    if draw.random() < 0.5:
        change_bytes(file, draw)
        return
    array = np.load(file, mmap_mode="r")
    headers = {
        "descr": draw.choice([array.dtype.str, "|O", "<f8", "<U4", "|V8", "<f4", [("a", "<f4")], "M8[s]"]),
        "fortran_order": draw.choice([False, True]),
        "shape": draw.choice([array.shape, (2**40, 2**20), (0,), (), (-1, 4), array.shape[::-1], (2**62,)]),
    }
    stream = io.BytesIO()
    with contextlib.suppress(ValueError):
        np.lib.format.write_array_header_1_0(stream, headers)
    file.write_bytes(stream.getvalue() + array.tobytes())


def change_rows(file: Path, draw: random.Random) -> None:
    """Change numbers in a file of rows."""
    rows = np.load(file)
    rows[draw.randrange(3), draw.randrange(rows.shape[1])] = draw.choice((-1, 0, 2**62, -(2**63), 3))
    np.save(file, rows)


def change_facts(file: Path, draw: random.Random) -> None:
    """Write facts of other types, whose checksums are right."""
    count = len(np.load(file.with_name(f"{file.stem}.rows.npy"))[0])
    known = facts.FactsFile(file, count)
    texts = known.texts(range(count))
    at = draw.randrange(count)
    texts[at] = (
        b"[" * 100_000 if draw.random() < 0.1 else json.dumps(_replaced(json.loads(texts[at]), draw)).encode()
    )
    facts.write(file, count, [texts])


def change_database(file: Path, draw: random.Random) -> None:
    """Change a cell, whose checksums are right, or what SQLite runs: views, triggers, generated columns."""
    with closing(sqlite3.connect(file)) as db:
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        crafted = (
            "CREATE TRIGGER bad AFTER INSERT ON items BEGIN SELECT randomblob(2000000000); END",
            "ALTER TABLE items RENAME TO real; CREATE VIEW items AS SELECT * FROM real, real",
            "ALTER TABLE segments ADD COLUMN loud GENERATED ALWAYS AS (zeroblob(900000000))",
            "ALTER TABLE meta RENAME TO real; CREATE VIEW meta AS WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL "
            "SELECT n + 1 FROM c) SELECT n AS key, n AS value FROM c",
            "PRAGMA writable_schema = ON; UPDATE sqlite_master SET sql = 'CREATE TABLE items (x)' "
            "WHERE name = 'items'",
        )
        if draw.random() < 0.15:
            db.executescript(draw.choice(crafted))
        else:
            for _ in range(draw.choice((1, 1, 3))):
                table = draw.choice(tables)
                columns = [row[1] for row in db.execute(f"PRAGMA table_info ({table})")]
                rows = [row for (row,) in db.execute(f"SELECT rowid FROM {table}")]
                if not rows:
                    continue
                value = draw.choice(
                    (None, -1, 0, 2**62, 1e300, "x", "../../x", "[" * 50_000, b"\xff\0", "{}")
                )
                with contextlib.suppress(sqlite3.DatabaseError):
                    column = schema.quoted(draw.choice(columns))
                    db.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (value, draw.choice(rows)))
        db.commit()


# ---- checksums


def seal_database(folder: Path, file: Path) -> None:
    """Make the checksums of items and of the small tables right."""
    crafted = contextlib.suppress(sqlite3.DatabaseError, TypeError, ValueError)
    with crafted, closing(sqlite3.connect(folder / "gallery.db")) as db:
        names = [row[1] for row in db.execute("PRAGMA table_info (metadata)")][1:]
        values = "".join(f", metadata.{schema.quoted(name)}" for name in names)
        columns = ", ".join(f"items.{name}" for name in schema.FACTS)
        query = f"SELECT {columns}{values} FROM items LEFT JOIN metadata ON metadata.id = items.id"
        checksum, end = schema.ItemChecksum(names), len(schema.FACTS)
        for row in db.execute(query).fetchall():
            crc = checksum.of(row[:end], row[end:])
            db.execute("UPDATE items SET crc = ? WHERE id = ?", (crc, row[0]))
        text = json.dumps(database.seal(db))
        db.execute("INSERT OR REPLACE INTO meta VALUES ('seal', ?)", (text,))
        db.commit()


def seal_index(folder: Path, file: Path) -> None:
    """Let the database have the checksums of the index's files."""
    digests = [sha256_of(file.with_name(name)) for name in ("index.faiss", "card.json")]
    with closing(sqlite3.connect(folder / "gallery.db")) as db:
        db.execute("UPDATE indexes SET sha256 = ?, card_sha256 = ?", digests)
        db.commit()
    seal_database(folder, file)


def seal_rows(folder: Path, file: Path) -> None:
    """Make the checksums of a segment's rows right."""
    with contextlib.suppress(ValueError, OSError, IndexError, TypeError):
        vectors = file.with_name(file.name.replace(".rows", ""))
        rows, stored = np.load(vectors.with_name(f"{vectors.stem}.rows.npy")), np.load(vectors)
        rows[segments.CHECKSUM] = segments.checksums(stored, rows)
        np.save(vectors.with_name(f"{vectors.stem}.rows.npy"), rows)


# ---- kinds

_GALLERY = (
    ("search", "g", "photos/red/0.png", "-k", "3", "--where", "price > 1"),
    ("search", "g", "photos/blue/0.png"),
    ("index", "info", "g"),
    ("check", "decisions", "g"),
    ("index", "verify", "g"),
    ("index", "add", "g", "more"),
    ("index", "verify", "g", "--repair"),
    ("search", "g", "photos/red/0.png"),
)
_MODEL = (("model", "info", "model.onnx", "--no-latency"),)
_IMPORT = ("--embedding", "x")

KINDS: dict[str, Kind] = {
    "model": Kind(("model.onnx",), _MODEL, change_bytes),
    "archive": Kind(
        ("pair.zip",),
        (
            ("model", "info", "pair.zip", "--no-latency"),
            ("index", "build", "new", "photos", "--model", "pair.zip"),
            ("search", "new", "--text", "red"),
        ),
        change_bytes,
    ),
    "gallery: any file": Kind(("g/**/*.*",), _GALLERY, change_bytes),
    "gallery: database": Kind(("g/gallery.db",), _GALLERY, change_database, seal_database),
    "gallery: facts": Kind(("g/segments/*.facts",), _GALLERY, change_facts),
    "gallery: rows": Kind(("g/segments/*.rows.npy",), _GALLERY, change_rows, seal_rows),
    "gallery: vectors": Kind(("g/segments/*.npy",), _GALLERY, change_npy, seal_rows),
    "gallery: index": Kind(("g/indexes/*/index.faiss",), _GALLERY, change_bytes, seal_index),
    "gallery: card": Kind(("g/indexes/*/card.json",), _GALLERY, change_json, seal_index),
    "gallery: JSON": Kind(("g/*.json", "g/decisions.jsonl"), _GALLERY, change_json),
    "run": Kind(
        ("run/config.yaml", "run/checkpoints/*/state.safetensors", "run/metrics.jsonl"),
        (("export", "run", "--out", "exported.onnx"),),
        change_bytes,
    ),
    "run: settings": Kind(("run/config.yaml",), (("export", "run", "--out", "exported.onnx"),), change_yaml),
    "settings": Kind(("settings.yaml",), (("recipes", "show", "settings.yaml", "--full"),), change_yaml),
    "vectors: npy": Kind(
        ("vectors.npy",), (("index", "import", "new", "vectors.npy", *_IMPORT),), change_npy
    ),
    "vectors: npz": Kind(
        ("vectors.npz",), (("index", "import", "new", "vectors.npz", *_IMPORT),), change_bytes
    ),
    "vectors: Parquet": Kind(
        ("vectors.parquet",), (("index", "import", "new", "vectors.parquet", *_IMPORT),), change_bytes
    ),
    "table": Kind(
        ("photos/prices.csv",),
        (("index", "build", "new", "photos", "--model", "intact.onnx", "--metadata", "photos/prices.csv"),),
        change_bytes,
    ),
}


# ---- attempts


def _watch(folder: Path) -> None:
    """End this process where Python does what a file must not make it do."""
    allowed = (
        str(folder),
        sys.prefix,
        sys.base_prefix,
        str(Path(__file__).parents[2]),
        "/proc",
        "/sys",
        "/dev",
    )
    forbidden = (
        "os.system",
        "os.exec",
        "os.posix_spawn",
        "subprocess.Popen",
        "socket.connect",
        "pickle.find_class",
    )

    def hook(event: str, args: tuple[Any, ...]) -> None:
        bad = event in forbidden
        if event == "open" and isinstance(args[0], str | bytes):
            path = os.path.abspath(os.fsdecode(args[0]))
            bad = not path.startswith(allowed) and not path.startswith(("/etc/", "/usr/", "/lib"))
            bad |= path == "/etc/passwd"
        if bad:
            os.write(2, f"FORBIDDEN {event} {args!r:.300}\n".encode())
            os._exit(71)

    sys.addaudithook(hook)


def _limit() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    size = pages * resource.getpagesize() + _MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
    resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))


def _open(kind: Kind, folder: Path, log: Path) -> None:
    """Run the commands of a kind, in a forked process; its exit code is 0 if they keep the promises."""
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(out, 1), os.dup2(out, 2)
    os.chdir(folder)
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "TMPDIR"):
        os.environ[name] = str(folder)
    tempfile.tempdir = str(folder)
    _limit()
    _watch(folder)
    for words in kind.commands:
        stderr = io.StringIO()
        try:
            with contextlib.redirect_stderr(stderr):
                main(words)
        except SystemExit as left:
            text = stderr.getvalue()
            if left.code not in (0, 1, 2, 3, None) or "--debug shows" in text or "Traceback" in text:
                print(f"{words}: exit code {left.code}: {text[-2000:]}", flush=True)
                os._exit(70)
    os._exit(0)


def attempt(kind: Kind, sample: Path, work: Path, seed: int) -> str:
    """Return what a changed copy of a folder did that it must not do; empty for nothing."""
    draw, folder, log = random.Random(seed), work / "folder", work / "log"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(sample, folder)
    files = sorted(path for pattern in kind.files for path in folder.glob(pattern) if path.is_file())
    file = draw.choice(files)
    kind.change(file, draw)
    if kind.seal:
        kind.seal(folder / "g", file)
    child = os.fork()
    if child == 0:
        try:
            _open(kind, folder, log)
        except BaseException as error:
            os.write(1, f"{type(error).__name__}: {error}\n".encode())
        os._exit(72)
    end = time.monotonic() + _PATIENCE
    while not (done := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return f"{file.relative_to(folder)}: no end within {_PATIENCE} seconds"
        time.sleep(0.002)
    code = os.waitstatus_to_exitcode(done[1])
    if (folder / "pwned").exists():
        return f"{file.relative_to(folder)}: it ran a command"
    return f"{file.relative_to(folder)}: {code}: {log.read_text(errors='replace')[-2500:]}" if code else ""


def run() -> None:
    sample, name, count, *first = sys.argv[1:]
    start = int(first[0]) if first else 0
    work = Path(sample).parent / "work"
    work.mkdir(exist_ok=True)
    for seed in range(start, start + int(count)):
        problem = attempt(KINDS[name], Path(sample), work, zlib.crc32(f"{name} {seed}".encode()))
        print(json.dumps({"kind": name, "seed": seed, "problem": problem}), flush=True)


if __name__ == "__main__":
    run()
