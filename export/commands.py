"""Command `lookalike export`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from retrieval.cli import json_option, print_next, print_result, print_status
from retrieval.commands.device_options import runtime_options
from retrieval.errors import LookalikeError
from retrieval.model.licenses import license_notice
from retrieval.model.runtime import Runtime
from retrieval.plugins import plugin_names

_BACKBONES = ("timm", "torchvision")
_PAIRS = ("open-clip", "transformers", "hub")


def _read_blend(ctx: click.Context, option: click.Parameter, text: str | None) -> float | str | None:
    if text is None or text == "auto":
        return text
    try:
        share = float(text)
    except ValueError:
        share = -1
    if not 0 <= share <= 1:
        raise click.BadParameter(f"expected a number from 0 to 1, or auto, got {text!r}")
    return share


def _read_source(ctx: click.Context, option: click.Parameter, text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    library, colon, name = text.partition(":")
    if not colon:  # as in model.backbone
        return "torchvision", text
    if library in plugin_names("embedders"):
        return library, name
    if library not in (*_BACKBONES, *_PAIRS) or not name:
        known = ", ".join(f"{one}:NAME" for one in (*_BACKBONES, *_PAIRS))
        raise click.BadParameter(f"expected one of {known}, got {text!r}")
    return library, name


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
    help="Labelled images to check the file on and to calibrate int8 with: folder:DIR, csv:FILE, "
    "hf:USER/NAME, NAME:ROOT, a bundled name, or 'noise'.  [default: the data set of the run]",
)
@click.option(
    "--blend",
    metavar="ALPHA|auto",
    callback=_read_blend,
    help="Share of the run in the backbone's weights, 0 to 1; the rest are those that it began with. auto: "
    "the best share on the held-out classes of the run.  [default: 1]",
)
@click.option("--accept-loss", is_flag=True, help="Keep fp16 or int8 regardless of the loss of accuracy.")
@click.option(
    "--from",
    "source",
    metavar="LIBRARY:NAME",
    callback=_read_source,
    help="Export what others have trained, in place of a run; see above.",
)
@click.option(
    "--weights",
    metavar="imagenet|NAME|FILE",
    help="Backbone weights: imagenet or a name of torchvision such as imagenet1k_v1 (downloaded), lite0 (of "
    "tf_efficientnet_lite0, in the extra demo), or a .safetensors file.  [default: imagenet]",
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
    type=click.Choice(["native", "mean", "gem", "cls"]),
    help="native: the network's own pooling and projection, its published embedding; mean: the mean of its "
    "features, which gives similarity maps; gem; cls.  [default: native]",
)
@runtime_options
@json_option
def export(
    run: Path | None,
    out: Path,
    checkpoint: str | None,
    precision: str,
    blend: Any,
    data: str | None,
    accept_loss: bool,
    source: tuple[str, str] | None,
    runtime: Runtime,
    as_json: bool,
    **backbone: Any,
) -> None:
    """Export a training run, a pretrained backbone, or a pair of image and text encoder.

    The file is compared with the checkpoint on real images and kept only if its embeddings are the same.

    \b
      lookalike export run --out model.onnx

    A smaller precision is compared with fp32 (size, time, cosine, Recall@1 on test images) and kept only
    if the mean cosine stays above 0.9999 (fp16) or 0.98 (int8) and Recall@1 within 1 point. --device
    selects where the files are compared.

    \b
      lookalike export run --out small.onnx --precision int8 --device cpu
      lookalike export run --out gpu.onnx --precision fp16

    Fine-tuning may cost what the pretrained backbone knew. --blend mixes the weights of the two (WiSE-FT,
    Wortsman et al. 2022), with the head of the run, and prints the curve that the share was chosen by.

    \b
      lookalike export run --out robust.onnx --blend auto

    \b
    In place of a run, --from takes what others have trained:
      timm:NAME, torchvision:NAME          a backbone
      open-clip:ARCH:TAG                   a pair of image and text encoder of open_clip; its weights may be
                                           yours: ARCH:FILE, hf-hub:USER/NAME, local-dir:DIR
      transformers:NAME, transformers:DIR  a pair of transformers: CLIP, SigLIP, SigLIP 2
      hub:USER/NAME, hub:DIR               encoders published as ONNX, as by immich or onnx-community
      NAME:ARGUMENT                        an embedder of a plug-in (docs/plugins.md); the file names it

    A pretrained backbone is exported as it is: the embedding is the one that its library
    publishes (attention pool of SigLIP, projection of CLIP, class token of DINOv2, ...), at unit length.
    There are similarity maps if that is a mean over locations, or with --pooling mean.

    \b
      lookalike export --from timm:mobilenetv3_large_100 --out model.onnx
      lookalike export --from timm:vit_base_patch16_siglip_224 --pooling mean --out maps.onnx
      lookalike export --from torchvision:resnet50 --size 288 --pooling gem --out model.onnx
      lookalike export --from timm:resnet50 --precision int8 --data folder:shop --out model.onnx

    A pair makes a gallery searchable by text. It is one archive of both encoders and the tokenizer, which is
    kept only if texts and images have the library's embeddings (docs/text.md).

    \b
      lookalike export --from open-clip:ViT-B-16-SigLIP2:webli --out siglip2.zip
      lookalike export --from transformers:openai/clip-vit-base-patch32 --out clip.zip
      lookalike export --from hub:immich-app/ViT-B-32__openai --out clip.zip
      lookalike export --from hub:onnx-community/dinov2-small --out dino.onnx
    """
    if (run is None) == (source is None):
        raise click.UsageError("give RUN or --from LIBRARY:NAME")
    given = {name: value for name, value in backbone.items() if value is not None}
    if run is not None and given:
        raise click.UsageError(f"--{next(iter(given))} applies to --from timm and --from torchvision only")
    if run is None and checkpoint is not None:
        raise click.UsageError("--checkpoint applies to runs only")
    if run is None and blend is not None:
        raise click.UsageError("--blend applies to runs only")
    if source is not None and source[0] in _PAIRS:
        if given or precision != "fp32":
            option = next(iter(given), "precision")
            raise click.UsageError(f"--{option} does not apply to --from {source[0]}")
        _export_published(*source, out, data, runtime, as_json)
        return
    if source is not None and source[0] not in _BACKBONES:
        if given or precision != "fp32" or data is not None:
            option = next(iter(given), "data" if data is not None else "precision")
            raise click.UsageError(f"--{option} does not apply to plug-ins")
        _export_plugin(*source, out, runtime, as_json)
        return
    from export.model_file import ExportOptions, export_run  # torch takes seconds to import
    from train.weights_origin import weights_origin

    options = ExportOptions(precision, accept_loss, show_progress=True, runtime=runtime)
    if run is not None:
        from train.loop.run_folder import Run

        trained = Run.open(run)
        model = trained.config.model
        exported = export_run(trained, out, checkpoint or "best", data=data, options=options, blend=blend)
    else:
        from export.pretrained import PretrainedBackbone, export_backbone

        assert source is not None
        pretrained = PretrainedBackbone(*source, **given)
        if pretrained.assumption is not None:
            print_status(pretrained.assumption)
        model = pretrained.model_config()
        exported = export_backbone(pretrained, out, data=data, options=options)
    if precision == "fp16" and exported.cost and exported.cost.provider.lower().startswith("cpu"):
        print_status(
            "fp16 is for GPUs: on a CPU, ONNX Runtime computes in float32 and converts back and forth"
        )
    restriction = license_notice(weights_origin(model.backbone, model.weights).license)
    if restriction:
        print_status(f"licence of the weights: {restriction}")
    proof, size = exported.proof, out.stat().st_size
    text = (
        f"{out}: {size / 1e6:.1f} MB; its embeddings of {proof.images} differ from the network's "
        f"by at most {proof.largest_difference:.1e} (lowest cosine {proof.lowest_cosine:.7f})"
    )
    if exported.blend is not None:
        text = f"{exported.blend.to_text()}\n{text}"
    if exported.cost is not None:
        text += f"\n{exported.cost.to_text()}"
    print_result({"model": str(out), "bytes": size, **exported.to_dict()}, as_json, text)
    print_next("index", "build", "GALLERY", "IMAGES", "--model", str(out))


def _export_plugin(name: str, argument: str, out: Path, runtime: Runtime, as_json: bool) -> None:
    """Write the file that names the embedder of a plug-in, once it has embedded noise."""
    import numpy as np

    from retrieval.model.embedder import Embedder  # ONNX Runtime takes long to import
    from retrieval.model.plugged import write_reference

    write_reference(out, name, argument, runtime.device)
    try:
        embedder = Embedder.open(out, runtime)
        side = embedder.preprocess.size
        embedder.embed_pixels(np.random.default_rng(0).integers(0, 256, (3, side, side, 3), np.uint8))
    except LookalikeError:
        out.unlink()
        raise
    origin = embedder.provenance["origin"]
    facts = {"model": str(out), "plug-in": f"{name}:{argument}", "origin": origin, "dim": embedder.dim}
    text = f"{out}: names the embedder {name} of {origin}, {embedder.dim} dimensions; it needs that plug-in"
    print_result(facts, as_json, text)
    print_next("index", "build", "GALLERY", "IMAGES", "--model", str(out))


def _export_published(
    library: str, name: str, out: Path, data: str | None, runtime: Runtime, as_json: bool
) -> None:
    """Export encoders that others have published, and print the proof."""
    from export.samples import NOISE, SampleImages

    samples = SampleImages.load(NOISE if data is None else data)
    if library == "hub":
        from export.published_pair import import_published, read_published

        published = read_published(name)
        facts, licence = import_published(published, out, samples, runtime), published.licence
    else:
        from export.open_clip_pair import open_clip_pair
        from export.pair import export_pair
        from export.transformers_pair import transformers_pair

        pair = (open_clip_pair if library == "open-clip" else transformers_pair)(name)
        facts, licence = export_pair(pair, out, samples, runtime).to_dict(), pair.facts["license"]
    restriction = license_notice(licence or "unknown")
    if restriction:
        print_status(f"licence of the weights: {restriction}")
    size = out.stat().st_size
    lines = [f"{out}: {size / 1e6:.1f} MB, licence {licence or 'unknown'}"]
    for what, proof in (("pictures", facts["proof"]), ("texts", facts.get("text_proof"))):
        if proof is not None:
            lines.append(
                f"embeddings of {proof[what]} differ from the published network's by at most "
                f"{proof['largest_difference']:.1e} (lowest cosine {proof['lowest_cosine']:.7f})"
            )
    facts = {"model": str(out), "bytes": size, "license": licence, **facts}
    print_result(facts, as_json, "\n".join(lines))
