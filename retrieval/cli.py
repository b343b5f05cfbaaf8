"""The `lookalike` command: lazy sub-commands, error messages and exit codes."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import FrameType
from typing import Any, cast

import click
from click.shell_completion import CompletionItem

from retrieval.errors import LookalikeError, describe_os_error, did_you_mean
from retrieval.machine.extras import missing_extra
from retrieval.old_names import renew
from retrieval.plugins import import_files
from retrieval.text import printable, printable_lines

# Sub-commands by topic, what most people need first: where each one is defined, and its line in `lookalike
# --help`. This is the only place where `retrieval` names train, export and serve: by string, so that nothing
# is imported before it is used.
TOPICS = {
    "Begin here": {
        "up": ("serve.up:up", "Search a folder of pictures in the browser: all in one."),
        "index": (
            "retrieval.commands.index:index",
            "Build a gallery of your images, and keep it up to date.",
        ),
        "search": ("retrieval.commands.search:search", "Find the images of a gallery that look like yours."),
        "serve": (
            "serve.commands:serve",
            "Serve galleries: a page in the browser, and an API for programs.",
        ),
        "check": (
            "retrieval.commands.check:check",
            "Find what is wrong with a gallery: duplicates, wrong labels, bad pictures.",
        ),
        "evaluate": (
            "train.commands.evaluate:evaluate",
            "Measure a run, a model or a gallery on labelled images.",
        ),
        "train": ("train.commands.train:train", "Fine-tune an embedder on labelled images."),
        "export": (
            "export.commands:export",
            "Export a training run, a pretrained backbone, or a pair of image and text encoder.",
        ),
        "demo": ("retrieval.demo:demo", "Train, export, index, evaluate and serve a small example."),
    },
    "Improve a gallery without training a network": {
        "improve": (
            "train.commands.layers:improve",
            "Try all that labels and machine allow, and keep the best, with proof: use it first.",
        ),
        "teach": ("train.commands.layers:teach", "Teach a gallery from labels which images belong together."),
        "adapt": (
            "train.commands.layers:adapt",
            "Adapt an embedding to your images without labels, by half-whitening.",
        ),
        "calibrate": (
            "retrieval.commands.calibrate:calibrate",
            "Learn the probability that a hit shows the same thing as the query, from labels.",
        ),
        "coverage": (
            "retrieval.commands.coverage:coverage",
            "Show what visitors searched for and did not find, and which labels would help.",
        ),
    },
    "Models and data": {
        "model": (
            "retrieval.commands.model:model",
            "List networks to start from, and describe one or a model file.",
        ),
        "hub": (
            "retrieval.commands.hub:hub",
            "Publish models on the Hugging Face Hub and get them from there.",
        ),
        "datasets": ("train.commands.datasets:datasets", "List, fetch and inspect data sets."),
    },
    "Experiments": {
        "compare": (
            "retrieval.commands.compare:compare",
            "Compare evaluation reports with the first one, or two galleries by what visitors choose.",
        ),
        "gate": (
            "train.commands.gate:gate",
            "Decide by an exit code whether a new model, gallery or report may replace an old one.",
        ),
        "sweep": ("train.commands.sweep:sweep", "Train variants over several seeds and compare them."),
        "tune": (
            "train.commands.tune:tune",
            "Search the hyper-parameters of methods on held-out classes, then measure them on the test "
            "split.",
        ),
        "losses": ("train.commands.losses:losses", "List losses, negatives, miners and regularizers."),
        "recipes": (
            "train.papers.recipe_commands:recipes",
            "List, show and run experiments: the tables of five papers, and good defaults.",
        ),
        "analyze": (
            "train.papers.analyze:analyze",
            "Draw the papers' figures from a run, a model or embeddings.",
        ),
    },
    "Machines and programs": {
        "doctor": (
            "retrieval.commands.doctor:doctor",
            "Show GPUs and installed builds, what each command runs on, problems and their repairs.",
        ),
        "plan": (
            "retrieval.commands.plan:plan",
            "Plan a gallery of up to 10^11 images: memory, disk, time and machines.",
        ),
        "mcp": ("serve.mcp_server:mcp", "Let an assistant search galleries, by the Model Context Protocol."),
    },
}
COMMANDS = {name: place for commands in TOPICS.values() for name, place in commands.items()}

json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on stdout.")


class LazyGroup(click.Group):
    """A click group that imports a sub-command when it is used.

    Args:
        lazy: For each sub-command its location, "module:attribute", and its line in the list of commands.
        topics: The same sub-commands by topic; `None` for a list without topics.
    """

    def __init__(
        self,
        *args: Any,
        lazy: Mapping[str, tuple[str, str]],
        topics: Mapping[str, Mapping[str, tuple[str, str]]] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self._lazy = lazy
        self._topics = topics or {"Commands": lazy}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._lazy)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in self._lazy:
            return None
        try:
            return load_command(self._lazy[name][0])
        except ModuleNotFoundError as error:
            if hint := missing_extra(error):
                raise LookalikeError(f"`{ctx.command_path} {name}` {hint}") from error
            raise

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self._lazy and not args[0].startswith("-"):
            hint = did_you_mean(args[0], self._lazy, "choose another one")
            ctx.fail(f"no such command {args[0]!r}; {hint}")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the sub-commands that begin so, without importing them."""
        found = [
            CompletionItem(name, help=line)
            for name, (_, line) in self._lazy.items()
            if name.startswith(incomplete)
        ]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, self._lazy))
        for topic, commands in self._topics.items():
            with formatter.section(topic):
                formatter.write_dl([(name.ljust(width), line) for name, (_, line) in commands.items()])


class _Root(LazyGroup):
    """The group of all commands, which also knows the old names."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        args, notes = renew(args)
        for note in notes:
            print_status(note)
        if args and args[0] not in self._lazy and (os.path.isdir(args[0]) or "://" in args[0]):
            args = ["up", *args]
        return super().parse_args(ctx, args)


def load_command(place: str) -> click.Command:
    """Import a command of any package by its location; see `load`."""
    return cast(click.Command, load(place))


def load(place: str) -> Any:
    """Import a command or function of any package by its location, "module:attribute".

    Raises:
        ModuleNotFoundError: The packages that it needs are not installed.
    """
    module, attribute = place.split(":")
    return getattr(import_module(module), attribute)


@click.group(
    cls=_Root, lazy=COMMANDS, topics=TOPICS, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(package_name="lookalike")
@click.option(
    "--debug", is_flag=True, help="Show the traceback of an error; accepted anywhere on the command line."
)
@click.option(
    "--import",
    "files",
    multiple=True,
    metavar="FILE.py",
    callback=lambda _ctx, _param, files: import_files(files),
    help="Import a file that registers losses, metrics or others first; accepted anywhere, repeatable.",
)
def cli(debug: bool, files: None) -> None:
    """Train an image embedder, index a gallery with it and find similar images.

    \b
    Search your own folder of images, on a page in the browser; `up` may be left out:
      lookalike up shop

    \b
    The same, step by step:
      lookalike index build shop.gallery shop
      lookalike search shop.gallery query.jpg
      lookalike serve shop.gallery

    \b
    Make it better, if there is a sub-folder for each class, or a table of labels:
      lookalike improve shop.gallery
      lookalike train --data folder:shop --out run

    Each command has examples: `lookalike COMMAND --help`.

    Exit codes: 0 done; 1 failed; 2 wrong usage or unusable input; 3 done, but some files were unusable.
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    with _interrupt_on_sigterm():
        code = _run([argument for argument in given if argument != "--debug"], debug)
    sys.exit(code)


def _import_plugins(arguments: Sequence[str]) -> list[str]:
    """Import the files of --import, anywhere among arguments, and return the others."""
    others, words = [], iter(arguments)
    for word in words:
        if word == "--import":
            import_files([next(words, "")])
        elif word.startswith("--import="):
            import_files([word.removeprefix("--import=")])
        else:
            others.append(word)
    return others


def run_command(*arguments: str) -> None:
    """Run a command within another one: of any package, without importing it here.

    Raises:
        LookalikeError: As the command.
    """
    cli.main(list(arguments), prog_name="lookalike", standalone_mode=False)


@contextmanager
def _interrupt_on_sigterm() -> Iterator[None]:
    """Handle the first SIGTERM like Ctrl-C, so that commands keep their finished work; ignore further ones.

    `timeout` and some service managers send it twice, and the second one would end the commit, or the
    process before it has said what is kept.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    process = os.getpid()

    def interrupt(number: int, frame: FrameType | None) -> None:
        if os.getpid() == process:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            raise KeyboardInterrupt
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # in a forked worker process
        signal.raise_signal(signal.SIGTERM)

    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGTERM) is interrupt:  # after one, the process ends by itself
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _run(arguments: list[str], debug: bool) -> int:
    try:
        code = cli.main(_import_plugins(arguments), prog_name="lookalike", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return 2
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "lookalike"
        return _fail(f"{error.format_message().rstrip('.')} (see `{command} --help`)", 2)
    except (click.Abort, KeyboardInterrupt) as error:
        # click replaces a KeyboardInterrupt by an Abort without a message.
        return _fail(
            str(error.__cause__ or error) or "interrupted; run the same command again to continue",
            1,
        )
    except BrokenPipeError:  # the reader of our output, such as `head`, has exited
        sys.stderr.close()
        return 0
    except LookalikeError as error:
        return _fail(str(error), error.exit_code, debug)
    except ModuleNotFoundError as error:  # of an import within a command
        hint = missing_extra(error)
        return _fail(f"this command {hint}" if hint else f"{error}; --debug shows the traceback", 1, debug)
    except OSError as error:
        return _fail(describe_os_error(error) or _unexpected(error), 1, debug)
    except MemoryError:
        return _fail("it needs more memory than this process may have; a damaged file may be why", 1, debug)
    except RecursionError:
        return _fail("a file or value is nested too deeply to be read; it is damaged, or made so", 1, debug)
    except Exception as error:
        return _fail(_unexpected(error), 1, debug)


def _unexpected(error: Exception) -> str:
    return f"{type(error).__name__}: {error}; --debug shows the traceback"


def _fail(message: str, code: int, debug: bool = False) -> int:
    if debug:
        click.echo(printable_lines(traceback.format_exc()), err=True, nl=False)
    print_status(f"lookalike: {' '.join(message.split())}")
    return code


def print_status(message: str) -> None:
    """Print a status message of one line for people on stderr; stdout is for results."""
    click.echo(printable(message), err=True)


def print_next(*words: str) -> None:
    """Print the command that usually comes next, for people: nothing unless stderr is a terminal."""
    if sys.stderr.isatty():
        print_status(f"next: lookalike {shlex.join(words)}")


def print_result(result: Any, as_json: bool, text: str | Sequence[str], *, indent: int | None = 2) -> None:
    """Print the result of a command on stdout.

    Args:
        result: Result as JSON values.
        as_json: Print `result` as JSON instead of `text`.
        text: Result for people, or its lines. Line breaks within a line are escaped, those of a text are not:
            names from a gallery belong into lines.
        indent: Indentation of the JSON; `None` for one line, as one of several results.
    """
    lines = printable_lines(text) if isinstance(text, str) else "\n".join(map(printable, text))
    click.echo(json.dumps(result, indent=indent) if as_json else lines)


if __name__ == "__main__":  # the former name of `python -m lookalike`
    from runpy import run_module

    run_module("lookalike", run_name="__main__")
