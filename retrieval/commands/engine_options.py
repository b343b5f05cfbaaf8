"""Options of commands that embed images here or on Ray: --engine, --ray-address and --shards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import click

from retrieval.commands.search_options import combine_options
from retrieval.errors import InputError
from retrieval.ingest.ray_source import RaySource
from retrieval.ingest.ray_workers import check_ray
from retrieval.machine.devices import Device
from retrieval.model.runtime import Runtime

_options = combine_options(
    click.option(
        "--engine",
        type=click.Choice(["local", "ray"]),
        default="local",
        show_default=True,
        help="Where the images are embedded: in this process, or by workers on Ray.",
    ),
    click.option(
        "--ray-address",
        metavar="HOST:PORT",
        help="Ray cluster; auto for the one of this machine or job.  [default: start Ray on this machine]",
    ),
    click.option(
        "--shards",
        metavar="DIR|URI",
        help="Where the workers on Ray write the vectors, reachable from all machines, for example "
        "s3://bucket/shop. The next run uses what is there.  [default: GALLERY.shards]",
    ),
)


@dataclass(frozen=True)
class RayOptions:
    """Values of --ray-address and --shards.

    Attributes:
        address: Address of the cluster; `None` to start a local Ray.
        shards: Folder of the vector shards, or its URI; `None` for the default.
    """

    address: str | None
    shards: str | None

    def source(self, runtime: Runtime, *, retry: bool) -> tuple[RaySource, Runtime]:
        """Return what embeds the images on workers, and the runtime of the model in this process.

        Args:
            runtime: Runtime of the workers.
            retry: Retry unusable files.

        Raises:
            InputError: Ray is not installed, or the runtime names one of several GPUs.
        """
        check_ray()
        if runtime.device.index is not None:
            raise InputError(f"--device {runtime.device}: Ray chooses the GPUs; use --device cuda")
        return (
            RaySource(self.address, self.shards, runtime, retry, show_progress=True),
            Runtime(Device("cpu")),
        )


def ray_options(command: Callable[..., Any]) -> Any:
    """Add --engine, --ray-address and --shards to a command, as one argument `ray`, `None` for local."""

    @wraps(command)
    def run(*args: Any, engine: str, ray_address: str | None, shards: str | None, **others: Any) -> Any:
        ray = RayOptions(ray_address, shards) if engine == "ray" else None
        for name, value in (("--ray-address", ray_address), ("--shards", shards)):
            if value is not None and ray is None:
                raise click.UsageError(f"{name} needs --engine ray")
        return command(*args, ray=ray, **others)

    return _options(run)
