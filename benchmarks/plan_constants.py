"""Constants of `lookalike plan`, taken from the results of the other benchmarks.

To repeat after a new benchmarks/*.json; it writes measured.json of the planner.

    python -m benchmarks.plan_constants
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from retrieval.planning.constants import MEASURED
from retrieval.search.kinds import AIM

HERE = Path(__file__).parent
LARGEST = "10000000"  # vectors of the gallery whose database and searches count


def results(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((HERE / name).read_text())
    return found


def source(name: str, machine: str, commit: str) -> str:
    return f"benchmarks/{name} ({machine}; commit {commit})"


def kinds() -> dict[str, Any]:
    """Return the costs of index kinds, and the bytes of a stored vector beside its numbers."""
    data = results("index_kinds.json")
    names = ("train_seconds", "add_seconds", "search")
    dims = {
        dim: {kind: {name: costs[name] for name in names} for kind, costs in of.items()}
        for dim, of in data["dims"].items()
    }
    dim, of = next(iter(data["dims"].items()))
    return {
        "source": source("index_kinds.json", data["machine"], data["commit"]),
        "count": data["count"],
        "growth": graph_growth(data, results("index_kinds_small.json")),
        "stored_bytes": of["flat"]["stored_bytes"] - 4 * int(dim),
        "dims": dims,
    }


def graph_growth(large: dict[str, Any], small: dict[str, Any]) -> float:
    """Return the power of the number of vectors by which searches of a graph grow at recall 0.95."""
    ratio = math.log(large["count"] / small["count"])
    times = {
        dim: [data["dims"][dim]["hnsw"]["search"]["0.95"]["ms"] for data in (small, large)]
        for dim in large["dims"].keys() & small["dims"].keys()
    }
    return max(math.log(more / less) / ratio for less, more in times.values())


def gallery(stored: float) -> dict[str, Any]:
    """Return what an item costs in a gallery beside its vector and the index."""
    data = results("gallery_scale.json")
    found = data["sizes"][LARGEST]
    search = found["search"]
    return {
        "source": source("gallery_scale.json", data["machine"], search["commit"]),
        "fact_bytes": found["import"]["disk_bytes"] / int(LARGEST) - 4 * data["dim"] - stored,
        "facts_ms": search["cpu_ms"] - search["bare_cpu_ms"],
        "effort": found["index"]["effort"],
        "place_ms": (search["cold_ms"] - search["ms"]) / (AIM * found["index"]["oversample"]),
    }


def stores() -> dict[str, Any]:
    """Return the costs of stores; `index` is the graph alone with Qdrant."""
    data = results("stores.json")
    cases = {}
    for name, sizes in data.items():
        if not isinstance(sizes, dict):
            continue
        shapes = {tuple(map(int, size.split(" x "))): found for size, found in sizes.items()}
        (count, dim), full = max(shapes.items())
        per_vector = sorted((d, found, n) for (n, d), found in shapes.items())
        cases[name] = {
            "count": count,
            "dim": dim,
            "build_seconds": (full["insert_cpu_seconds"] + full["build_cpu_seconds"]) / count,
            "search": full["search"],
            "index_bytes": {d: f.get("index_bytes", f.get("graph_bytes")) / n for d, f, n in per_vector},
            "disk_bytes": {
                d: (f["index_bytes"] + f["table_bytes"] if "table_bytes" in f else f["disk_bytes"]) / n
                for d, f, n in per_vector
            },
        }
    commits = {
        found["commit"] for sizes in data.values() if isinstance(sizes, dict) for found in sizes.values()
    }
    return {"source": source("stores.json", data["machine"], " and ".join(sorted(commits))), "cases": cases}


def images() -> dict[str, Any]:
    """Return the CPU time of an image."""
    data = results("indexing.json")
    taken = data["taken"]
    return {
        "source": source("indexing.json", data["machine"], data["commit"]),
        "decode_ms": 1000 * taken["decoding alone"]["processor"],
        "embed_ms": 1000 * taken["model alone"]["processor"],
    }


def constants() -> dict[str, Any]:
    """Return all constants, as `retrieval.planning.constants` reads them."""
    found = kinds()
    parts = {
        "kinds": found,
        "gallery": gallery(found["stored_bytes"]),
        "stores": stores(),
        "images": images(),
    }
    return dict(json.loads(json.dumps(parts)))


def main() -> None:
    MEASURED.write_text(json.dumps(constants(), indent=1) + "\n")


if __name__ == "__main__":
    main()
