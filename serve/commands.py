"""`lookalike serve`, and the same as `python app.py`."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from retrieval.cli import main as lookalike
from retrieval.cli import print_status
from retrieval.errors import InputError

_PREFIX = "LOOKALIKE_SERVE"
_FILE = f"{__name__}.file"


def _place(context: click.Context, name: str) -> str | None:
    """What a setting is called where its value comes from, unless that is the command line or nowhere."""
    source = context.get_parameter_source(name)
    if source is ParameterSource.ENVIRONMENT:
        return f"{_PREFIX}_{name.upper()}"
    if source is ParameterSource.DEFAULT_MAP:
        return f"{context.meta[_FILE]}: {name.replace('_', '-')}"
    return None


class _Setting(click.Option):
    """An option; mistakes in its value are told under the name that it has where they were made."""

    def get_error_hint(self, ctx: click.Context | None) -> str:
        place = _place(ctx, self.name) if ctx and self.name else None
        return place or super().get_error_hint(ctx)


_option = partial(click.option, cls=_Setting)


@contextmanager
def _blaming_where_set(context: click.Context) -> Iterator[None]:
    """An error that begins with an option has, in its place, the name that it has where it was set."""
    try:
        yield
    except InputError as error:
        message = str(error)
        found = re.match("--([a-z-]+)", message)
        place = _place(context, found[1].replace("-", "_")) if found else None
        if not (found and place):
            raise
        raise InputError(message.replace(found[0], place, 1)) from error


def _from_file(context: click.Context, option: click.Parameter, file: Path | None) -> None:
    """Let a file say what neither the command line nor the environment does."""
    from serve.config import read_file, setting_hint

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
        with _blaming_where_set(context):
            found = read_file(file, options, negated)
        several = {name for name, one in options.items() if one.multiple or one.nargs == -1}
        context.default_map = {
            name: [value] if name in several and not isinstance(value, list) else value
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
    callback=_from_file,
    help="Read settings from a TOML file.",
)
@_option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@_option("--port", type=click.IntRange(0, 65535), default=7860, show_default=True, help="0 takes a free one.")
@_option("--page/--no-page", default=True, help="Serve the page, or the API alone.")
@_option(
    "--workers",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Processes that answer; more than one serve the API alone.",
)
@_option("--token-file", type=click.Path(path_type=Path), help="Tokens for programs, one a line.")
@_option("--user", help="The name to sign in with, on the page too.")
@_option("--password-file", type=click.Path(path_type=Path), help="The password that goes with it.")
@_option("--insecure", is_flag=True, help="Allow a --host that other machines can reach; nobody signs in.")
@_option(
    "--allow-host", multiple=True, metavar="NAME", help="A name this server has, such as search.example.com."
)
@_option("--allow-origin", multiple=True, metavar="URL", help="A site whose pages may ask the API (CORS).")
@_option(
    "--trusted-proxy",
    multiple=True,
    metavar="ADDRESS",
    help="A proxy or network of them, to be believed about its clients.",
)
@_option("--allow-changes", is_flag=True, help="Let those who may come in add images and remove them.")
@_option("--allow-urls", is_flag=True, help="Fetch pictures to search with from addresses on the internet.")
@_option(
    "--rate",
    type=click.FloatRange(0),
    help="Requests a second from one client, ten times as many at once; 0: no limit.  "
    "[default: 50; 0 where only this machine can ask]",
)
@_option(
    "--max-body",
    type=click.IntRange(1, 1024),
    default=32,
    show_default=True,
    help="The largest request, in MB.",
)
@_option(
    "--deadline",
    type=click.IntRange(1, 3600),
    default=30,
    show_default=True,
    help="Seconds that a request may take, waiting for its turn included.",
)
@_option(
    "--log-level",
    type=click.Choice(["error", "warning", "info", "debug"]),
    default="warning",
    show_default=True,
    help="From info on, one line a request.",
)
@_option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True)
def serve(gallery: tuple[str, ...], **options: Any) -> None:
    """Open a gallery in the browser: drop a picture, see what looks like it. Programs ask under /v1.

    \b
      lookalike serve shop.gallery
      lookalike serve shop.gallery --host 0.0.0.0 --user ann --password-file password
      lookalike serve birds.gallery cars=/data/all-cars
      lookalike serve --config serve.toml

    Of several galleries, the first is at the root, and each under its name: the page of cars at
    /galleries/cars/, its API at /v1/galleries/cars/.

    Every setting can also come from the environment (LOOKALIKE_SERVE_PORT=8000) or from a TOML file
    (port = 8000); the command line comes before the environment, and that before the file. Secrets come from
    files or from LOOKALIKE_TOKEN and LOOKALIKE_PASSWORD, never from the command line, which others can see.
    """
    from serve.config import settings
    from serve.server import run  # the web framework takes seconds to import

    with _blaming_where_set(click.get_current_context()):
        run(settings(gallery, **options))


def app() -> None:
    """`python app.py --gallery GALLERY`: the gallery is an option, the rest is as for `lookalike serve`."""
    parser = argparse.ArgumentParser(
        description="Open a gallery in the browser.",
        epilog="The options of `lookalike serve` work here too: --host, --port, --insecure and the others.",
    )
    parser.add_argument(
        "--gallery",
        required=True,
        action="append",
        help="a folder made by `lookalike index build`; repeatable",
    )
    known, others = parser.parse_known_args()
    lookalike(["serve", *known.gallery, *others])
