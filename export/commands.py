"""Command `lookalike export`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from retrieval.cli import json_option, print_result, print_status
from retrieval.commands.device_options import runtime_options
from retrieval.inference.runtime import Runtime


@click.command()
@click.argument("run", required=False, type=click.Path(path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Model file to write.")
@click.option(
    "--checkpoint",
    metavar="best|last|STEP",
    help="Checkpoint of the run; STEP: kept by checkpoints.at or checkpoints.every.  [default: best]",
)
@click.option(
    "--precision",
    type=click.Choice(["fp32", "fp16", "int8"]),
    default="fp32",
    show_default=True,
    help="fp16: half precision, half the size, for GPUs. int8: a quarter of the size, for CPUs.",
)
@click.option(
    "--data",
    metavar="DATA",
    help="Labelled images to check the file on and to calibrate int8 with: folder:DIR, csv:FILE, NAME:ROOT, "
    "a bundled name, or 'noise' for random images.  [default: the data set of the run]",
)
@click.option("--accept-loss", is_flag=True, help="Keep fp16 or int8 regardless of the loss of accuracy.")
@click.option("--from-timm", metavar="NAME", help="Export a pretrained timm backbone instead of a run.")
@click.option(
    "--from-torchvision", metavar="NAME", help="Export a torchvision classifier's backbone instead of a run."
)
@click.option(
    "--weights",
    metavar="imagenet|NAME|FILE",
    help="Backbone weights: imagenet or a name of torchvision such as imagenet1k_v1 (downloaded), or a "
    ".safetensors file.  [default: imagenet]",
)
@click.option(
    "--size", type=click.IntRange(1), help="Side of the input images in pixels.  [default: the library's]"
)
@click.option(
    "--mean", nargs=3, type=float, help="Mean of each channel for the weights.  [default: the library's]"
)
@click.option("--std", nargs=3, type=float, help="Standard deviation of each channel, as --mean.")
@click.option(
    "--pooling",
    type=click.Choice(["mean", "gem", "cls"]),
    help="Pooling of the features; gem and cls give no similarity maps.  [default: mean]",
)
@runtime_options
@json_option
def export(
    run: Path | None,
    out: Path,
    checkpoint: str | None,
    precision: str,
    data: str | None,
    accept_loss: bool,
    from_timm: str | None,
    from_torchvision: str | None,
    runtime: Runtime,
    as_json: bool,
    **backbone: Any,
) -> None:
    """Export a training run or a pretrained backbone to one ONNX file.

    The file is compared with the checkpoint on real images and kept only if its embeddings are the same.

    \b
      lookalike export run --out model.onnx

    A smaller precision is compared with fp32 (size, time, cosine, Recall@1 on test images) and kept only
    if the mean cosine stays above 0.9999 (fp16) or 0.98 (int8) and Recall@1 within 1 point. --device and
    --provider select where the files are compared.

    \b
      lookalike export run --out small.onnx --precision int8 --device cpu
      lookalike export run --out gpu.onnx --precision fp16

    Without a run, a pretrained backbone is exported as it is: the embedding is its pooled features at unit
    length.

    \b
      lookalike export --from-timm mobilenetv3_large_100 --out model.onnx
      lookalike export --from-torchvision resnet50 --size 288 --pooling gem --out model.onnx
      lookalike export --from-timm resnet50 --precision int8 --data folder:shop --out model.onnx
    """
    sources = [source for source in (run, from_timm, from_torchvision) if source is not None]
    if len(sources) != 1:
        raise click.UsageError("give one of RUN, --from-timm NAME and --from-torchvision NAME")
    given = {name: value for name, value in backbone.items() if value is not None}
    if run is not None and given:
        raise click.UsageError(f"--{next(iter(given))} applies to --from-timm and --from-torchvision only")
    if run is None and checkpoint is not None:
        raise click.UsageError("--checkpoint applies to runs only")
    from export.model_file import ExportOptions, export_run  # torch takes seconds to import

    options = ExportOptions(precision, accept_loss, show_progress=True, runtime=runtime)
    if run is not None:
        from train.loop.run_folder import Run

        exported = export_run(Run.open(run), out, checkpoint or "best", data=data, options=options)
    else:
        from export.pretrained import PretrainedBackbone, export_backbone

        library, name = ("timm", from_timm) if from_timm else ("torchvision", from_torchvision)
        source = PretrainedBackbone(library, str(name), **given)
        if source.assumption is not None:
            print_status(source.assumption)
        exported = export_backbone(source, out, data=data, options=options)
    if precision == "fp16" and exported.cost and exported.cost.provider.lower().startswith("cpu"):
        print_status(
            "fp16 is for GPUs: on a CPU, ONNX Runtime computes in float32 and converts back and forth"
        )
    proof, size = exported.proof, out.stat().st_size
    text = (
        f"{out}: {size / 1e6:.1f} MB; its embeddings of {proof.images} differ from the network's "
        f"by at most {proof.largest_difference:.1e} (lowest cosine {proof.lowest_cosine:.7f})"
    )
    if exported.cost is not None:
        text += f"\n{exported.cost.to_text()}"
    print_result({"model": str(out), "bytes": size, **exported.to_dict()}, as_json, text)
