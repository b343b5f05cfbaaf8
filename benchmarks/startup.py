"""Start-up time of `lookalike --help` and of an empty Python, medians of interleaved runs. Goal: 0.5 s."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "lookalike --help": ["-m", "lookalike", "--help"],
    "lookalike search --help": ["-m", "lookalike", "search", "--help"],
}


def seconds(words: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, *words], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


def main() -> None:
    rounds = [{name: seconds(words) for name, words in COMMANDS.items()} for _ in range(9)]
    for name in COMMANDS:
        print(f"{name:26}{statistics.median(taken[name] for taken in rounds):8.3f} s")


if __name__ == "__main__":
    main()
