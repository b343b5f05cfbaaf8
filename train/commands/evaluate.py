"""The `lookalike evaluate` command."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from retrieval.cli import json_option, print_result, print_status
from retrieval.commands.device_options import runtime_options
from retrieval.commands.search_options import combine_options, search_option
from retrieval.errors import InputError
from retrieval.files import check_folder
from retrieval.galleries.database_folder import is_gallery
from retrieval.search.options import SearchOptions, search_options
from train import data as data_sets
from train.commands import DATA_HELP
from train.data.judged import load_judged

if TYPE_CHECKING:
    from retrieval.gallery import Gallery
    from retrieval.model.runtime import Runtime
    from train.config import ProbeLabels

# Options of a search that change the order of the hits.
_ranking_options = combine_options(
    *(search_option(one) for one in search_options() if one.name in ("order", "diversity", "rerank"))
)


@click.command()
@click.argument("target", type=click.Path(path_type=Path), metavar="RUN|MODEL|GALLERY")
@click.option(
    "--data",
    help=f"Labelled images: {DATA_HELP} Their test split is used, or all of them. Optional for a gallery and "
    "a run.",
)
@click.option("--out", type=click.Path(path_type=Path), help="Folder for report.json and report.html.")
@click.option(
    "--baseline",
    "baselines",
    multiple=True,
    type=click.Choice(["pixels", "backbone", "untrained", "none"]),
    help="Also measure raw pixels, the pretrained backbone without a head, or the network before training. "
    "Repeatable. The backbone of a run is measured in any case, unless this is none.",
)
@click.option(
    "--which",
    metavar="best|last|STEP",
    help="Checkpoint of a run: the best epoch on held-out images, the last, or a step that "
    "checkpoints.at or checkpoints.every kept; by default the best and the last.",
)
@click.option(
    "--linear-probe",
    is_flag=False,
    flag_value="clean",
    type=click.Choice(["clean", "noisy"]),
    help="Also classify the test images by a linear classifier on the embeddings of the training images, "
    "learnt from their true labels (clean, if no value is given) or from the noisy labels of the run. By "
    "default as linear_probe in the run's settings.",
)
@_ranking_options
@runtime_options
@json_option
@click.pass_context
def evaluate(
    ctx: click.Context,
    target: Path,
    data: str | None,
    out: Path | None,
    baselines: tuple[str, ...],
    which: str | None,
    linear_probe: ProbeLabels | None,
    order: str | None,
    diversity: float,
    rerank: str,
    runtime: Runtime,
    as_json: bool,
) -> None:
    """Measure a run, a model or a gallery on labelled images.

    With a run or a model, every image of the data is a query among the others, or in the data's gallery if it
    has one. A run has its own data, unless --data names others. Runs of a paper's recipe are shown beside the
    published numbers. A gallery is searched with the images of the data; an image that is in the gallery does
    not retrieve itself. Without --data, the gallery's own labelled images are the queries, by their stored
    embeddings; no image is read. A gallery also stores the report and shows it in the browser.

    The networks of a run compute in full float32 on every device, so that the numbers of a GPU and a CPU
    differ by rounding alone.

    A pretrained backbone without a head, with the preprocessing published for it, is the baseline of a run:
    the network before training is worse, because its embedding layer is random.

    The report has Recall@K, Precision@K, MAP@R, R-Precision and mAP with 95% intervals, NMI and F1 with
    their spread over repetitions of k-means, the
    similarities of classes, the classes that are confused, the hardest queries with their results, and a
    table of all classes. `lookalike compare` puts several reports side by side. A different report that is in
    the folder of --out already is moved to DIR-1, or the next free number.

    An interval for other classes like these resamples whole classes: expect it of classes that you will add.
    That for these classes resamples queries, and is narrower. If a baseline was measured, or the gallery has
    been evaluated with another model, a sentence says whether the model certainly finds more.

    A gallery of products is also measured with products as hits, by each score of a product.

    Instance retrieval is measured with judged queries: --data judged:DIR, roxford5k:ROOT, rparis6k:ROOT,
    gldv2:ROOT, ilias:ROOT, uned:ROOT or met:ROOT. Each query has a list of images to find among distractors,
    and the report has the measures of the set by protocol. A gallery is searched with its index, and with
    --rerank, if given.

    With --order, --diversity or --rerank, up to 2,000 images of a gallery also search it with and without
    them, and the differences say what they cost: hits of the right label among the first ten.

    \b
      lookalike evaluate run --out report
      lookalike evaluate run --data folder:other --which 1000
      lookalike evaluate run --data folder:shop --device cuda:1 --batch-size 512
      lookalike evaluate shop.gallery --data folder:queries --out report
      lookalike evaluate shop.gallery
      lookalike evaluate shop.gallery --order "score + 0.1 * in_stock desc"
      lookalike evaluate shop.gallery --data judged:rooms --rerank k-reciprocal
    """
    from retrieval.evaluation.ranking_rules import ranking_cost
    from retrieval.reports.folder import evaluate_and_keep, save_report, set_aside
    from retrieval.reports.text_tables import ranking_table, report_table

    if out is not None:
        check_folder(out)
    options = SearchOptions(order=order, diversity=diversity, rerank=rerank)
    is_ranked = options != SearchOptions()
    if data is None and (target / "config.yaml").is_file():
        from train.loop.run_folder import Run

        data = Run.open(target).config.data
        print_status(f"data: {data}, which {target} was trained with")
    judged = None if data is None else load_judged(data)
    if is_ranked and data is not None and (judged is None or not is_gallery(target)):
        raise click.UsageError(
            "--order, --diversity and --rerank are for a gallery; leave out --data, or give judged queries"
        )
    if judged is not None and linear_probe:
        raise click.UsageError("--linear-probe needs classes, and judged queries have none; leave it out")
    named = [name for name in baselines if name != "none"]
    cost = None
    if data is None:
        if baselines or which or linear_probe:
            raise click.UsageError("--baseline, --which and --linear-probe need images; give --data")
        gallery = _open_gallery(target, runtime)
        cost = ranking_cost(gallery, options, show_progress=True) if is_ranked else None
        report = evaluate_and_keep(gallery, show_progress=True)
    elif judged is not None:
        from train.experiments.judged_evaluation import evaluate_judged

        report = evaluate_judged(
            target,
            judged,
            named,
            options=options,
            which=which,
            runtime=runtime,
            with_backbone="none" not in baselines,
            show_progress=True,
        )
    else:
        from train.experiments import evaluation

        dataset = data_sets.load(data)
        report = evaluation.evaluate_target(
            target,
            dataset,
            named,
            which=which,
            linear_probe=linear_probe,
            runtime=runtime,
            with_backbone="none" not in baselines,
            show_progress=True,
        )
    if out is not None:
        if earlier := set_aside(report, out):
            print_status(f"{out}: another report was there; it is in {earlier} now")
        save_report(report, out)
    result, table = report.to_dict(), report_table(report)
    if cost is not None:
        result["ranking"] = asdict(cost)
        table += f"\n\n{ranking_table(cost)}"
    print_result(result, as_json, table)
    if out is not None:
        print_status(f"report: {out / 'report.html'}")
    if report.bad_files:
        print_status(f"{len(report.bad_files)} files could not be read and were left out; see the report")
        ctx.exit(3)


def _open_gallery(target: Path, runtime: Runtime) -> Gallery:
    from retrieval.gallery import Gallery

    if not target.exists():
        raise InputError(f"{target}: there is no such run, model or gallery")
    if not is_gallery(target):
        raise InputError(f"{target}: not a gallery; to evaluate a model, pass labelled images by --data")
    return Gallery.open(target, runtime=runtime)
