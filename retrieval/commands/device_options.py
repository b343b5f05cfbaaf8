"""Options of all commands that run a network: --device, --batch-size and --provider."""

from __future__ import annotations

import click

from retrieval.devices import Device
from retrieval.embedder import PROVIDERS
from retrieval.errors import InputError


def _parse_device(text: str) -> Device:
    try:
        return Device.parse(text)
    except InputError as error:
        raise click.BadParameter(str(error)) from error


device_option = click.option(
    "--device",
    type=_parse_device,
    default="auto",
    show_default=True,
    metavar="auto|cpu|cuda[:N]",
    help="Where the network runs. auto: the first GPU that works, else the CPU.",
)
batch_size_option = click.option(
    "--batch-size",
    type=click.IntRange(1),
    metavar="N",
    help="Images per pass through the network.  [default: chosen for the device]",
)
provider_option = click.option(
    "--provider",
    type=click.Choice(PROVIDERS),
    default="auto",
    show_default=True,
    help="Execution provider of ONNX Runtime. auto: the fastest that works on --device.",
)
