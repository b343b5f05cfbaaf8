"""Backbones to start from, of `lookalike model`: their list, and what is known of one."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from itertools import groupby
from typing import TYPE_CHECKING, Any

import click

from retrieval.cli import json_option, print_result
from retrieval.errors import InputError, did_you_mean
from retrieval.model.licenses import license_notice

if TYPE_CHECKING:
    from train.curated_backbones import CuratedBackbone


@click.command()
@click.argument("pattern", required=False)
@click.option("--all", "everything", is_flag=True, help="All weights of timm, not the curated list.")
@json_option
def list_models(pattern: str | None, everything: bool, as_json: bool) -> None:
    """List backbones: small and strong ones with permissive licences, fastest first.

    PATTERN selects names: a part of the name, or with * and ?. The time is CPU time for one image on one
    thread in ONNX Runtime, measured here with random weights. The dimension is that of the published
    embedding (model.pooling=native).

    ImageNet is a published accuracy in percent: top-1 of the network's own classifier, k-NN of its embedding,
    zero-shot with its text encoder; the three do not compare. Recall@1 and MAP@R are of a search for images
    of the same class without training, measured here, with the interval for other classes like them. - is
    unknown; `model info` names the sources.

    \b
      lookalike model list
      lookalike model list siglip
      lookalike model list --all "*dinov3*"

    \b
    The name is for training and for export:
      lookalike train --data folder:shop --out run --set model.weights=imagenet \\
          --set model.backbone=timm:tiny_vit_5m_224.dist_in22k --set model.pooling=native
      lookalike export --from timm:tiny_vit_5m_224.dist_in22k --out model.onnx
    """
    from train.curated_backbones import curated_backbones

    rows: list[dict[str, Any]]
    lines: Iterator[str]
    if everything:
        import timm  # slow to import

        from train.pretrained_configs import timm_configuration

        names = [name for name in timm.list_models(pretrained=True) if _matches(f"timm:{name}", pattern)]
        rows = [_published(name, timm_configuration(name)) for name in names]
        lines = _published_table(rows)
    else:
        curated = [row for row in curated_backbones() if _matches(row.name, pattern)]
        rows, lines = [row.to_dict() for row in curated], _curated_table(curated)
    if not rows:
        where = "of timm" if everything else "in the curated list; --all searches all of timm"
        raise InputError(f"model list: no name like {pattern!r} {where}")
    print_result(rows, as_json, list(lines))


@click.command()
@click.argument("name")
@json_option
def describe(name: str, as_json: bool) -> None:
    """Describe the backbone NAME, as in model.backbone: embedding, preprocessing and licence."""
    from train.curated_backbones import curated_backbones
    from train.pretrained_configs import has_projection, native_size, published_preprocess
    from train.weights_origin import weights_origin

    preprocess = published_preprocess(name, "imagenet")
    library, _, spec = name.partition(":")
    if preprocess is None or library == "bn-inception":
        raise InputError(f"model info: unknown backbone {name!r}; {_hint(name)}")
    dim, parameters = native_size(name)
    origin = weights_origin(name, "imagenet")
    curated = next((row for row in curated_backbones() if row.name == name), None)
    projects = library == "timm" and has_projection(spec)
    facts = {
        "name": name,
        "parameters": parameters,
        "embedding": {"dim": dim, "projection": projects},
        "preprocess": preprocess.to_dict(),
        "license": origin.license,
        "license_notice": license_notice(origin.license) or None,
        "address": origin.address,
        "curated": None if curated is None else curated.to_dict(),
    }
    seen = ", ".join(f"{key} {value}" for key, value in preprocess.to_dict().items() if value is not None)
    space = "the projection to the space of images and texts" if projects else "before the classifier, if any"
    lines = [
        f"name           {name}",
        f"parameters     {parameters / 1e6:.1f} million",
        f"embedding      {dim} dimensions: {space} (model.pooling=native)",
        f"preprocessing  {seen}",
        f"licence        {license_notice(origin.license) or origin.license or 'none stated by the library'}",
        f"weights        {origin.address or 'none published'}",
    ]
    if curated is not None:
        lines += [
            f"time           {curated.milliseconds:.0f} ms of CPU time for an image ({curated.speed})",
            f"suits          {curated.suits}",
        ]
        lines += [f"quality        {one.to_text()} on {one.on}: {one.source}" for one in curated.quality]
    print_result(facts, as_json, lines)


def _matches(name: str, pattern: str | None) -> bool:
    if pattern is None:
        return True
    wild = pattern if any(sign in pattern for sign in "*?[") else f"*{pattern}*"
    return fnmatchcase(name, wild) or fnmatchcase(name.removeprefix("timm:"), wild)


def _published(name: str, configuration: dict[str, Any]) -> dict[str, Any]:
    """Return what is known of weights of timm without their network."""
    return {
        "name": f"timm:{name}",
        "size": configuration["input_size"][-1],
        "license": configuration.get("license"),
        "license_notice": license_notice(configuration.get("license")) or None,
    }


def _curated_table(rows: list[CuratedBackbone]) -> Iterator[str]:
    """Yield two lines for each backbone, of at most 100 columns."""
    width = max(len(row.name) for row in rows)
    yield f"{'name':<{width}}  pixels   dim    ms  licence     ImageNet"
    for row in rows:
        numbers = f"{row.size:>7} {row.dim:>5} {row.milliseconds:>5.0f}"
        yield f"{row.name:<{width}} {numbers}  {row.license:<10}  {row.imagenet}"
        yield f"    {row.suits}"
        for on, found in groupby(row.retrieval, lambda one: one.on):
            yield f"    {', '.join(one.to_text() for one in found)} on {on}"


def _published_table(rows: list[dict[str, Any]]) -> Iterator[str]:
    width = max(len(row["name"]) for row in rows)
    yield f"{'name':<{width}} {'pixels':>7} licence"
    for row in rows:
        stated = row["license_notice"] or row["license"] or "none stated"
        yield f"{row['name']:<{width}} {row['size']:>7} {stated}"


def _hint(name: str) -> str:
    import timm

    from train.pretrained_configs import torchvision_names

    known = [*torchvision_names(), *(f"timm:{model}" for model in timm.list_models())]
    return did_you_mean(name.partition(".")[0], known, "see `lookalike model list --all`")
