"""Rows per second of `lookalike index import` into each store, of the same import again, and of an export.

The source is a Parquet file with two columns of metadata, the vectors are those of `benchmarks.search`.
"load" has no index, "index" is the time until the database has completed it. Stores are those of the tests,
started for this run from wheels, or running ones given by address.

    python -m benchmarks.store_transfer --kinds postgres milvus
    python -m benchmarks.store_transfer --stores postgresql://me@db.example/shop --json store_transfer.json
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when numpy is imported

import argparse
import json
import tempfile
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.gallery_scale import commit, machine
from benchmarks.search import draw
from benchmarks.store_recall import metadata_of
from retrieval.galleries.database import DatabaseView
from retrieval.gallery import Gallery
from retrieval.stores.address import PASSWORD, Address
from retrieval.stores.opening import parse_address

NAME = "benchmark"  # of the embedding


def write_source(file: Path, vectors: np.ndarray) -> None:
    """Write the Parquet file that is imported."""
    columns: dict[str, Any] = {"id": [f"k{n}" for n in range(len(vectors))], **metadata_of(vectors)}
    flat = pa.array(vectors.reshape(-1))
    columns["vector"] = pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
    pq.write_table(pa.table(columns), file)


def seconds(run: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def measured(folder: Path, source: Path, address: Address | None) -> dict[str, float]:
    """Return rows per second and the seconds of the index; without an address, of a gallery in files."""
    index = 0.0
    optimize = DatabaseView.complete_index

    def timed(self: DatabaseView, *arguments: Any, **options: Any) -> None:
        nonlocal index
        index += seconds(lambda: optimize(self, *arguments, **options))

    DatabaseView.complete_index = timed  # type: ignore[method-assign]
    try:
        load = seconds(lambda: Gallery.import_vectors(folder, source, name=NAME, store=address)) - index
        first, index = index, 0.0
        again = seconds(lambda: Gallery.import_vectors(folder, source, name=NAME)) - index
    finally:
        DatabaseView.complete_index = optimize  # type: ignore[method-assign]
    gallery = Gallery.open(folder)
    out = seconds(lambda: gallery.export(folder.with_suffix(".parquet")))
    count = len(gallery)
    return {"load": count / load, "again": count / again, "export": count / out, "index_s": first}


def print_line(name: str, found: dict[str, float]) -> None:
    """Print the results of one store."""
    rates = "  ".join(f"{what} {found[what]:8,.0f} rows/s" for what in ("load", "again", "export"))
    print(f"{name:18} {rates}  index {found['index_s']:.1f} s", flush=True)


def main() -> None:
    """Print a line for each store, and write the numbers as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=50_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--kinds", nargs="*", default=["postgres"], help="databases started from wheels")
    parser.add_argument("--stores", nargs="*", default=[], help="addresses of free collections")
    parser.add_argument("--json", type=Path, help="file with the results; other stores in it are kept")
    args = parser.parse_args()
    results: dict[str, Any] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        write_source(folder / "source.parquet", draw(args.count, args.dim, 1))
        results["files"] = measured(folder / "files", folder / "source.parquet", None)
        print_line("files", results["files"])
        addresses = {address.split("@")[-1]: address for address in args.stores}
        for kind in args.kinds:
            running = import_module(f"tests.retrieval.stores.{kind.replace('-', '_')}_server").running
            (folder / kind).mkdir()
            server = stack.enter_context(running(folder / kind))
            addresses[kind] = server.collection(f"transfer_{uuid.uuid4().hex[:8]}")
        for number, (name, text) in enumerate(addresses.items()):
            address = parse_address(text)
            os.environ[PASSWORD] = address.password
            results[name] = measured(folder / f"store{number}", folder / "source.parquet", address)
            print_line(name, results[name])
    if args.json:
        shape = f"{args.count} x {args.dim}"
        before = json.loads(args.json.read_text()) if args.json.exists() else {}
        at = {"machine": machine(), "commit": commit()}
        runs = before.get(shape, {}) | {name: found | at for name, found in results.items()}
        args.json.write_text(json.dumps(before | {shape: runs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
