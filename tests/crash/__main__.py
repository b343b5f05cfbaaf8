"""Accidents by the thousand: `make crash` runs this for an hour, and goes on where it ended.

    python -m tests.crash --out build/crash --minutes 60
    python -m tests.crash --out build/crash --only teach --accident power --minutes 5

Every attempt is a line of OUT/attempts.jsonl, with its seed: `--seed N` repeats one. With --write, the totals
go into docs/reliability.md.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from pathlib import Path

from tests.crash.harness import BrokenPromiseError, Site
from tests.crash.operations import ACCIDENTS, OPERATIONS

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
_BEGIN, _END = "<!-- crashes -->", "<!-- end of crashes -->"


def table(lines: list[dict[str, str]]) -> str:
    """Return the attempts by command and accident as a table of Markdown."""
    counts = Counter((line["command"], line["accident"]) for line in lines)
    failed = Counter(line["command"] for line in lines if line["problem"])
    head = ["command", *ACCIDENTS.values(), "promises broken"]
    rows = [
        [f"`{name}`", *(str(counts[name, accident]) for accident in ACCIDENTS), str(failed[name])]
        for name in OPERATIONS
    ]
    total = ["all", *(str(sum(counts[name, one] for name in OPERATIONS)) for one in ACCIDENTS)]
    rows.append([*total, str(sum(failed.values()))])
    shown = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in shown)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.crash",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for galleries and the log")
    parser.add_argument("--minutes", type=float, default=60, help="time (default: 60)")
    parser.add_argument("--only", nargs="+", choices=OPERATIONS, default=[*OPERATIONS], help="only these")
    parser.add_argument("--accident", nargs="+", choices=ACCIDENTS, default=[*ACCIDENTS], help="only these")
    parser.add_argument("--seed", type=int, help="only the attempt of this seed")
    parser.add_argument("--write", action="store_true", help="write the totals into docs/reliability.md")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    log, site, end = (
        args.out / "attempts.jsonl",
        Site(args.out.resolve()),
        time.monotonic() + 60 * args.minutes,
    )
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    pairs = [(name, one) for name in args.only for one in OPERATIONS[name].accidents if one in args.accident]
    seeds = iter([args.seed]) if args.seed is not None else iter(range(len(lines), 10**9))
    for seed in seeds:
        if time.monotonic() > end:
            break
        name, accident = pairs[seed % len(pairs)]
        problem, where = "", ""
        try:
            where = site.attempt(name, accident, random.Random(seed))
        except BrokenPromiseError as error:
            problem = str(error)
        line = {"seed": seed, "command": name, "accident": accident, "where": where, "problem": problem}
        lines.append(line)
        with log.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(f"{seed}: {name}, {ACCIDENTS[accident]}, {where or problem}", flush=True)
    site.close()
    if args.write:
        text = PAGE.read_text()
        before, after = text.split(_BEGIN)[0], text.split(_END)[1]
        PAGE.write_text(f"{before}{_BEGIN}\n{table(lines)}\n{_END}{after}")
    broken = sum(bool(line["problem"]) for line in lines)
    print(f"{len(lines):,} accidents, {broken} broken promises")


if __name__ == "__main__":
    main()
