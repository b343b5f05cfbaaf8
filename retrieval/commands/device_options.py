"""Options of all commands that run a network: --device and --batch-size."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from retrieval.cli import print_status
from retrieval.errors import InputError
from retrieval.machine.devices import Device
from retrieval.model.runtime import PROVIDERS, Runtime

Option = Callable[..., Callable[[Any], Any]]


def _parse_device(text: str) -> Device:
    try:
        return Device.parse(text)
    except InputError as error:
        raise click.BadParameter(str(error)) from error


def _parse_runtime(text: str) -> Runtime:
    try:
        return Runtime.parse(text)
    except InputError as error:
        raise click.BadParameter(str(error)) from error


def _note_provider(_ctx: click.Context, _option: click.Parameter, provider: str | None) -> str | None:
    if provider is not None:
        print_status("--provider is now part of --device, as in --device openvino")
    return provider


training_device_option = click.option(
    "--device",
    type=_parse_device,
    metavar="auto|cpu|cuda[:N]",
    help="Where to train; wins over the recipe and --set device=.  [default: as set, which is auto]",
)
# --device of commands without a network.
search_device_option = click.option(
    "--device",
    type=_parse_device,
    default="auto",
    show_default=True,
    metavar="auto|cpu|cuda[:N]",
    help="Where FAISS computes. auto: a GPU if there is one and it pays, else the CPU.",
)


def separate_runtime_options(option: Option) -> Callable[[Any], Any]:
    """Return a decorator that adds --device and --batch-size, made by `option`; see `join_runtime`."""

    def add(command: Any) -> Any:
        for make in (
            option(
                "--batch-size",
                type=click.IntRange(1),
                metavar="N",
                help="Images per pass through the network.  [default: chosen for the device]",
            ),
            option("--provider", type=click.Choice(PROVIDERS), hidden=True, callback=_note_provider),
            option(
                "--device",
                type=_parse_runtime,
                default="auto",
                show_default=True,
                metavar="DEVICE",
                help="Where the network runs: auto (the first GPU that works, else the CPU), cpu, cuda, "
                "cuda:N, coreml or openvino.",
            ),
        ):
            command = make(command)
        return command

    return add


def join_runtime(device: Runtime, provider: str | None, batch_size: int | None) -> Runtime:
    """Return the values of --device, --batch-size and the former --provider as one.

    Raises:
        InputError: The provider does not run on the device.
    """
    return Runtime(device.device, provider or device.provider, batch_size)


def runtime_options(command: Callable[..., Any]) -> Any:
    """Add --device and --batch-size to a command, as one argument `runtime`."""

    @wraps(command)
    def run(*args: Any, device: Runtime, provider: str | None, batch_size: int | None, **others: Any) -> Any:
        return command(*args, runtime=join_runtime(device, provider, batch_size), **others)

    return separate_runtime_options(click.option)(run)
