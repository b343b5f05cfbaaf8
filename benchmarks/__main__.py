"""Run every benchmark in sequence: `make bench`."""

import pkgutil
import runpy

import benchmarks

for module in pkgutil.iter_modules(benchmarks.__path__):
    if not module.name.startswith("_") and not module.ispkg:  # packages have their own commands
        print(f"\n== {module.name}", flush=True)
        runpy.run_module(f"benchmarks.{module.name}", run_name="__main__")
