"""The command `lookalike serve`, also run by `python app.py`."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from retrieval.cli import main as lookalike
from retrieval.cli import print_status
from retrieval.commands.device_options import separate_runtime_options
from retrieval.errors import InputError
from serve.config import PUBLIC_CONNECTIONS, PUBLIC_RATE, Settings, read_file, setting_hint, settings
from serve.core.permissions import Permissions

_PREFIX = "LOOKALIKE_SERVE"
_FILE = f"{__name__}.file"


def _source_name(context: click.Context, name: str) -> str | None:
    """Return the name of a setting in the environment or file that set it; None for the command line."""
    source = context.get_parameter_source(name)
    if source is ParameterSource.ENVIRONMENT:
        return f"{_PREFIX}_{name.upper()}"
    if source is ParameterSource.DEFAULT_MAP:
        return f"{context.meta[_FILE]}: {name.replace('_', '-')}"
    return None


class _Setting(click.Option):
    """Option whose errors have the name of the environment variable or setting that they come from."""

    def get_error_hint(self, ctx: click.Context | None) -> str:
        source = _source_name(ctx, self.name) if ctx and self.name else None
        return source or super().get_error_hint(ctx)


_option = partial(click.option, cls=_Setting)


def _setting(name: str, **declared: Any) -> Callable[[Any], Any]:
    """Return the option of a field of `Settings`, with the default of the field."""
    default = getattr(Settings, name)
    shown = default not in ((), None)
    return _option(f"--{name.replace('_', '-')}", default=default, show_default=shown, **declared)


@contextmanager
def _naming_source(context: click.Context) -> Iterator[None]:
    """Replace the option at the start of an error by the variable or setting that set it."""
    try:
        yield
    except InputError as error:
        message = str(error)
        found = re.match("--([a-z-]+)", message)
        source = _source_name(context, found[1].replace("-", "_")) if found else None
        if not (found and source):
            raise
        raise InputError(message.replace(found[0], source, 1)) from error


def _read_config(context: click.Context, option: click.Parameter, file: Path | None) -> None:
    """Set the defaults of the options from a file, and warn about unknown environment variables."""
    options = {one.name: one for one in context.command.params if one.name and one is not option}
    negated = {
        word.lstrip("-").replace("-", "_"): name
        for name, one in options.items()
        for word in one.secondary_opts
    }
    for variable in os.environ:
        name = variable.removeprefix(f"{_PREFIX}_").lower()
        if variable.startswith(f"{_PREFIX}_") and name not in {*options, "config"}:
            hint = setting_hint(name, options)
            if name in negated:
                hint = f"write {_PREFIX}_{negated[name].upper()}=false"
            print_status(f"{variable}: no such setting, ignored; {hint}")
    if file is not None:
        context.meta[_FILE] = file
        with _naming_source(context):
            found = read_file(file, options, negated)
        multiple = {name for name, one in options.items() if one.multiple or one.nargs == -1}
        context.default_map = {
            name: [value] if name in multiple and not isinstance(value, list) else value
            for name, value in found.items()
        }


@click.command(context_settings={"auto_envvar_prefix": _PREFIX})
@click.argument(
    "gallery", nargs=-1, required=True, type=click.Path(), metavar="GALLERY...", envvar=f"{_PREFIX}_GALLERY"
)
@_option(
    "--config",
    type=click.Path(path_type=Path),
    is_eager=True,
    expose_value=False,
    callback=_read_config,
    help="Read settings from a TOML file.",
)
@_setting("host", help="Address to listen on.")
@_setting("port", type=click.IntRange(0, 65535), help="Port; 0 picks a free one.")
@_option("--page/--no-page", default=Settings.page, help="Serve the page beside the API.")
@_setting(
    "show",
    multiple=True,
    metavar="COLUMN",
    help="Column that the page shows with each image, such as price. Repeatable.",
)
@_setting(
    "workers",
    type=click.IntRange(1, 64),
    help="Number of processes, which divide the cores.",
)
@_option("--token-file", type=click.Path(path_type=Path), help="File of tokens for programs, one per line.")
@_option("--user", help="User name for sign-in.")
@_option("--password-file", type=click.Path(path_type=Path), help="File with the password of --user.")
@_option("--insecure", is_flag=True, help="Allow other machines without sign-in.")
@_option(
    "--allow-host",
    multiple=True,
    metavar="NAME",
    help="Accepted name in the Host header, such as search.example.com. Repeatable.",
)
@_option(
    "--allow-origin",
    multiple=True,
    metavar="URL",
    help="Site that may send cross-origin requests (CORS). Repeatable.",
)
@_option(
    "--trusted-proxy",
    multiple=True,
    metavar="ADDRESS",
    help="Address or network of a reverse proxy whose forwarded headers are trusted. Repeatable.",
)
@_option("--allow-changes", is_flag=True, help="Let visitors add and remove images.")
@_option(
    "--allow-urls",
    is_flag=True,
    help="Accept query images by URL, which the server downloads from the internet.",
)
@_option(
    "--share-pictures",
    type=click.IntRange(0, 720),
    default=Permissions.sharing,
    metavar="HOURS",
    help="Let visitors share links to searches with their own pictures, of which the server keeps small "
    "copies for so many hours.",
)
@_setting(
    "query_log",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Record searches in a folder, for `lookalike coverage`: vectors, filters, hits and what is opened; "
    "no pictures, texts or addresses. The page tells its visitors.",
)
@_setting(
    "against",
    type=click.Path(path_type=Path),
    metavar="GALLERY",
    help="With --query-log: mix in the hits of another gallery of the same images, such as one of a new "
    "model. What visitors open says which is better: `lookalike compare GALLERY GALLERY --log FOLDER`.",
)
@_setting(
    "on_device",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Let visitors search on their devices, without sending their pictures: gives them the model, and "
    "ONNX Runtime from this folder, the unpacked npm package onnxruntime-web.",
)
@_option(
    "--rate",
    type=click.FloatRange(0),
    help="Rate limit: requests per second and client, bursts of ten times as many; each megapixel that one "
    "has to decode counts as a further one; 0 for no limit.  "
    f"[default: {PUBLIC_RATE:g}; 0 on a loopback address]",
)
@_option(
    "--connections",
    type=click.IntRange(0, 512),
    help="Open connections of one client, such as 64; 0 for no limit. Behind a trusted proxy, its concurrent "
    f"requests.  [default: {PUBLIC_CONNECTIONS}; 0 on a loopback address]",
)
@_setting(
    "detector",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help='ONNX model of a detector, by which "Find objects" and /v1/objects take a picture apart; see '
    "docs/objects.md.",
)
@_setting(
    "max_body",
    type=click.IntRange(1, 1024),
    help="Largest request, in MB.",
)
@_setting(
    "max_pixels",
    type=click.IntRange(1, 100_000),
    help="Megapixels that the images of one request may have to decode; of a photo in JPEG, few of its own.",
)
@_setting(
    "deadline",
    type=click.IntRange(1, 3600),
    help="Time limit of a request in seconds, including its wait in the queue.",
)
@separate_runtime_options(_option)
@_setting(
    "log_level",
    type=click.Choice(["error", "warning", "info", "debug"]),
    help="Least level that is logged; info and debug log every request.",
)
@_setting(
    "log_format",
    type=click.Choice(["text", "json"]),
    help="Format of the log on stderr.",
)
def serve(gallery: tuple[str, ...], **options: Any) -> None:
    """Serve galleries: a page in the browser, and an API for programs under /v1.

    \b
      lookalike serve shop.gallery
      lookalike serve shop.gallery --host 0.0.0.0 --user ann --password-file password
      lookalike serve birds.gallery cars=/data/all-cars
      lookalike serve --config serve.toml

    A gallery in a database is served like one in files, also by several servers at once; the password of the
    database comes from $LOOKALIKE_STORE_PASSWORD.

    Of several galleries, the first is served at the root, and each under its name: the page of cars at
    /galleries/cars/, its API at /v1/galleries/cars/.

    Every option can also be set in the environment (LOOKALIKE_SERVE_PORT=8000) or in a TOML file
    (port = 8000). The command line overrides the environment, which overrides the file. Secrets are read from
    files or from LOOKALIKE_TOKEN and LOOKALIKE_PASSWORD; the command line is visible to other users.
    """
    from serve.server import run

    with _naming_source(click.get_current_context()):
        run(settings(gallery, **options))


def app() -> None:
    """Run `python app.py --gallery GALLERY` as `lookalike serve GALLERY`, with the same options."""
    parser = argparse.ArgumentParser(
        description="Serve a gallery in the browser.",
        epilog="The options of `lookalike serve` work here too: --host, --port, --insecure and the others.",
    )
    parser.add_argument(
        "--gallery",
        required=True,
        action="append",
        help="gallery folder built by `lookalike index build`; repeatable",
    )
    known, others = parser.parse_known_args()
    lookalike(["serve", *known.gallery, *others])
