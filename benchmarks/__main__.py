"""The table of `make bench`: what costs how much, beside other libraries and limits. Goal: five minutes.

Both sides of a row run in turns on one thread, and the medians are compared. With --write, the numbers go
into benchmarks/results.json, docs/benchmarks.md and README.md.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when FAISS and numpy are imported

import argparse
from dataclasses import replace

from benchmarks import rows, table


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=rows.GROUPS, help="only these groups of rows")
    parser.add_argument("--seconds", type=float, default=4, help="time for a row (default: 4)")
    parser.add_argument("--write", action="store_true", help="write the results, their page and the README")
    args = parser.parse_args()
    if args.write and args.only:
        parser.error("--write needs all rows")
    found = []
    for row in rows.measured(args.only or rows.GROUPS, args.seconds):
        print(table.line(row), flush=True)
        found.append(row)
    if args.write:
        absent = {row.library for row in found if isinstance(row, table.Absent)}
        if absent:
            parser.error(f"--write needs all rows; install {', '.join(sorted(absent))}")
        measured = [row for row in found if isinstance(row, table.Row)]
        results, before = table.Results.of(measured, rows.ABOUT), table.Results.load()
        for name in before.groups.keys() - rows.GROUPS.keys():  # of benchmarks.gallery
            others = [row for row in before.rows if row.group == name]
            results = replace(
                results,
                groups={**results.groups, name: before.groups[name]},
                rows=[*results.rows, *others],
            )
        results.save()


if __name__ == "__main__":
    main()
