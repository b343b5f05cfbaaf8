"""Experiments of docs/experiments.md: data, runs, results and the page.

    python -m benchmarks.experiments data --cars ZIP --birds ZIP --cifar100 ZIP --omniglot ZIP \\
        --mobilenetv2 FILE --squeezenet FILE --out DATA
    python -m benchmarks.experiments run --data DATA --out OUT
    python -m benchmarks.experiments report --out OUT
    python -m benchmarks.experiments page
"""
