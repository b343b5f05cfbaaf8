"""Commands of the experiments; see `python -m benchmarks.experiments --help`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from benchmarks import experiments
from benchmarks.experiments.catalogue import choose_tables

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_FOLDER = click.Path(file_okay=False, path_type=Path)


@click.group(help=experiments.__doc__)
def main() -> None:
    """Commands of the experiments."""


@main.command("data")
@click.option("--cars", multiple=True, type=_FILE, help="Zip of Cars196, one folder a class. Repeatable.")
@click.option("--birds", multiple=True, type=_FILE, help="Zip of birds, one folder a species. Repeatable.")
@click.option(
    "--furniture", multiple=True, type=_FILE, help="Zip of furniture, one folder a type. Repeatable."
)
@click.option("--cifar100", multiple=True, type=_FILE, help="Zip of CIFAR-100: train/CLASS, test/CLASS.")
@click.option("--omniglot", multiple=True, type=_FILE, help="Zip of Omniglot: images_background, ...")
@click.option("--mobilenetv2", type=_FILE, help="Weights of timm's mobilenetv2_100, safetensors.")
@click.option("--squeezenet", type=_FILE, help="Weights of torchvision's squeezenet1_0, safetensors.")
@click.option("--out", required=True, type=_FOLDER, help="Folder for images, lists and weights.")
def make_data(
    cars: tuple[Path, ...],
    birds: tuple[Path, ...],
    furniture: tuple[Path, ...],
    cifar100: tuple[Path, ...],
    omniglot: tuple[Path, ...],
    mobilenetv2: Path | None,
    squeezenet: Path | None,
    out: Path,
) -> None:
    """Unpack the archives and write the lists of images."""
    from benchmarks.experiments.data import prepare

    archives = {
        "cars": cars,
        "birds": birds,
        "furniture": furniture,
        "cifar100": cifar100,
        "omniglot": omniglot,
    }
    weights = {"mobilenetv2": mobilenetv2, "squeezenet": squeezenet}
    for line in prepare(
        out,
        {name: list(files) for name, files in archives.items() if files},
        {name: file for name, file in weights.items() if file is not None},
    ):
        click.echo(line)


@main.command("run")
@click.argument("names", nargs=-1)
@click.option("--data", required=True, type=_FOLDER, help="Folder of `data --out`.")
@click.option("--out", required=True, type=_FOLDER, help="Folder of the runs.")
@click.option("--setup", "setups", multiple=True, help="Only this setup. Repeatable.")
def run_tables(names: tuple[str, ...], data: Path, out: Path, setups: tuple[str, ...]) -> None:
    """Run or resume tables, by default all but those of `networks`.

    A division of a table that has divisions is collected once it is finished, and skipped if the results of
    the table have it by the same settings, so that machines can take turns.
    """
    from benchmarks.experiments.results import complete
    from benchmarks.experiments.runs import jobs, run

    failed = [
        job.name
        for job in jobs([table for table in choose_tables(names) if not table.from_scratch], out)
        if (not setups or job.setup.name in setups)
        and (run if job.division is None else complete)(job, data.resolve())
    ]
    if failed:
        raise click.ClickException(
            f"failed: {', '.join(failed)}; see the messages above, and repeat to retry"
        )


@main.command("pack")
@click.option("--data", required=True, type=_FOLDER, help="Folder of `data --out`.")
@click.option("--out", required=True, type=_FOLDER, help="Folder for the arrays, about 32 MB.")
def pack_arrays(data: Path, out: Path) -> None:
    """Write CIFAR-100 and Omniglot as one array each, for `networks`."""
    from benchmarks.experiments.arrays import PACKED, pack

    for name in PACKED:
        click.echo(f"{pack(name, data, out)}")


@main.command("networks")
@click.argument("name", default="networks")
@click.option("--data", required=True, type=_FOLDER, help="Folder of `pack --out`.")
@click.option("--out", required=True, type=_FOLDER, help="Folder of the results, NAME.jsonl.")
@click.option("--device", default="cuda", type=click.Choice(["cuda", "cpu"]), show_default=True)
@click.option("--seconds", default=280.0, show_default=True, help="Time that the whole may take.")
@click.option("--steps", type=int, help="Steps of a run. Default: what fits into the time, on a GPU.")
@click.option("--processes", default=0, help="Processes without CUDA graphs. Default: as needed.")
@click.option("--graph", is_flag=True, hidden=True)
@click.option("--worker", nargs=2, type=int, hidden=True)
def train_networks(
    name: str,
    data: Path,
    out: Path,
    device: str,
    seconds: float,
    steps: int | None,
    processes: int,
    graph: bool,
    worker: tuple[int, int] | None,
) -> None:
    """Run or resume a table of networks that are trained from scratch."""
    from benchmarks.experiments import networks

    (table,) = choose_tables((name,))
    if worker is None:
        count = networks.train_table(
            table, data, out, device=device, seconds=seconds, steps=steps, processes=processes
        )
        click.echo(f"{out / name}.jsonl: {count} lines")
        return
    sys.exit(
        networks.work(
            table, data, out, device=device, seconds=seconds, steps=steps, graph=graph, share=worker
        )
    )


@main.command("report")
@click.argument("names", nargs=-1)
@click.option("--data", required=True, type=_FOLDER, help="Folder of `data --out`.")
@click.option("--out", required=True, type=_FOLDER, help="Folder of the runs.")
def report(names: tuple[str, ...], data: Path, out: Path) -> None:
    """Collect the results of finished runs into docs/experiments/results."""
    from benchmarks.experiments.networks import read_records
    from benchmarks.experiments.results import collect, collect_networks, save
    from benchmarks.experiments.runs import jobs

    for table in choose_tables(names):
        if table.from_scratch:
            file = out / f"{table.name}.jsonl"
            if file.is_file():
                click.echo(f"{save(table.name, collect_networks(table, read_records(file)))}")
            continue
        if table.divisions:  # collected by `run`
            continue
        results = collect(list(jobs([table], out)), data.resolve())
        if results["setups"]:
            click.echo(f"{save(table.name, results)}")


@main.command("page")
def page() -> None:
    """Write docs/experiments.md and its figures from the collected results."""
    from benchmarks.experiments.page import write_page

    for file in write_page():
        click.echo(file)


main(prog_name="python -m benchmarks.experiments")
