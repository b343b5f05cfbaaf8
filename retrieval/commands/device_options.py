"""Options of all commands that run a network: --device, --batch-size and --provider."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from retrieval.errors import InputError
from retrieval.machine.devices import Device
from retrieval.model.runtime import PROVIDERS, Runtime

Option = Callable[..., Callable[[Any], Any]]


def _parse_device(text: str) -> Device:
    try:
        return Device.parse(text)
    except InputError as error:
        raise click.BadParameter(str(error)) from error


def _device(
    option: Option, help: str = "Where the network runs. auto: the first GPU that works, else the CPU."
) -> Callable[[Any], Any]:
    return option(
        "--device",
        type=_parse_device,
        default="auto",
        show_default=True,
        metavar="auto|cpu|cuda[:N]",
        help=help,
    )


def _batch_size(option: Option) -> Callable[[Any], Any]:
    return option(
        "--batch-size",
        type=click.IntRange(1),
        metavar="N",
        help="Images per pass through the network.  [default: chosen for the device]",
    )


def _provider(option: Option) -> Callable[[Any], Any]:
    return option(
        "--provider",
        type=click.Choice(PROVIDERS),
        default="auto",
        show_default=True,
        help="Execution provider of ONNX Runtime. auto: the fastest that works on --device.",
    )


training_device_option = click.option(
    "--device",
    type=_parse_device,
    metavar="auto|cpu|cuda[:N]",
    help="Where to train; wins over the recipe and --set device=.  [default: as set, which is auto]",
)
device_option, batch_size_option, provider_option = (
    add(click.option) for add in (_device, _batch_size, _provider)
)
# --device of commands without a network.
search_device_option = _device(
    click.option,
    "Where FAISS computes. auto: a GPU if there is one and it pays, else the CPU.",
)


def separate_runtime_options(option: Option) -> Callable[[Any], Any]:
    """Return a decorator that adds --device, --provider and --batch-size, made by `option`, to a command."""

    def add(command: Any) -> Any:
        for make in (_batch_size, _provider, _device):
            command = make(option)(command)
        return command

    return add


def runtime_options(command: Callable[..., Any]) -> Any:
    """Add --device, --provider and --batch-size to a command, as one argument `runtime`."""

    @wraps(command)
    def run(*args: Any, device: Device, provider: str, batch_size: int | None, **others: Any) -> Any:
        return command(*args, runtime=Runtime(device, provider, batch_size), **others)

    return separate_runtime_options(click.option)(run)
