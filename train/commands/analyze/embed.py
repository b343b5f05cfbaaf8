"""`lookalike analyze embed`."""

from __future__ import annotations

from pathlib import Path

import click

from train.commands.analyze.targets import TARGET, data_option, finish, open_sources, split_option, written


@click.command()
@click.argument("target", type=click.Path(path_type=Path), metavar=TARGET)
@data_option
@split_option("test")
@click.option("--untrained", is_flag=True, help="Of the network as it was before training.")
@written("The embeddings", ".npz")
@click.pass_context
def embed(
    ctx: click.Context, target: Path, data: str | None, split: str | None, untrained: bool, out: Path
) -> None:
    """Write the embeddings of images to a file.

    The file is an .npz with arrays `embeddings`, float32 [N, D] of unit length, `labels` and `paths`, text
    [N], and `synthetic`, true or false [N] (here always false). NumPy reads it, and every other figure that
    is drawn from embeddings takes it in place of a run or a model.

    \b
      lookalike analyze embed run --data folder:shop --out shop.npz
      lookalike analyze tsne shop.npz --out map.svg
    """
    sources = open_sources([target], data, untrained=untrained)
    source = sources[0]
    (part,) = source.choose(split, "test")
    source.embed(part).save(out)
    finish(ctx, [source], [out])
