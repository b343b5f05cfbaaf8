"""The documentation as a site: built without a warning, complete, and without requests to other hosts."""

from __future__ import annotations

import html
import inspect
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from pkgutil import resolve_name

import click
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser

from retrieval.cli import COMMANDS, cli
from retrieval.text import printed
from train import losses
from train.config import Config
from train.recipes import all_rows
from train.settings import fields

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site.

    The build fails for a broken link or anchor, and for a page outside the navigation.
    """
    source = tmp_path_factory.mktemp("docs") / "source"
    subprocess.run([sys.executable, ROOT / "docs" / "site", source], cwd=ROOT, check=True)
    build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--config-file", source / "mkdocs.yml"]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return source / "html"


class Silent(SimpleHTTPRequestHandler):
    """Handler that logs nothing."""

    def log_message(self, *words: object) -> None:
        pass


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def words(page: Path) -> str:
    """Return the visible text of a page, with single spaces."""
    text = re.sub(r"<(script|style).*?</\1>", "", page.read_text(), flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", "", text)).split())


def test_every_command_has_a_page_with_all_its_options(site: Path) -> None:
    def options(command: click.Command) -> Iterator[str]:
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                yield max(parameter.opts, key=len)
        if isinstance(command, click.Group):
            context = click.Context(command)
            for part in command.list_commands(context):
                found = command.get_command(context, part)
                assert found is not None
                yield from options(found)

    number = 0
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        text = words(site / "commands" / f"{name}.html")
        expected = set(options(command))
        number += len(expected)
        assert not {option for option in expected if option not in text}, name
    assert number > 200


def test_no_help_text_is_left_unrendered(site: Path) -> None:
    """Marks of click and of Markdown do not reach the reader."""
    for page in (site / "commands").iterdir():
        assert not re.search(r"\x08|\x0c|```|\\[_*<\[]|\]\(|&lt;", words(page)), page.name


def test_every_part_of_a_loss_has_a_page_with_formula_use_and_settings(site: Path) -> None:
    for kind in ("loss", "negatives", "mining", "regularizer"):
        for name, entry in losses.names(kind).items():
            page = site / "losses" / kind / f"{name}.html"
            text = page.read_text()
            (formula,) = re.findall(r"<math.*?</math>", text, re.DOTALL)
            assert "\\" not in formula, name  # a command of LaTeX that was not understood
            assert "Take it when" in text, name
            assert text.count('class="curve"') == (0 if kind == "mining" else 2), name
            assert "nan" not in "".join(re.findall(r'class="curve" d="([^"]*)"', text)), name
            settings = re.findall(r"<tr>\s*<td><code>(\w+)</code></td>(.*?)</tr>", text, re.DOTALL)
            assert {setting for setting, _ in settings} == set(entry.parameters), name
            assert not [setting for setting, cells in settings if "<td></td>" in cells], name


def test_every_public_name_is_described(site: Path) -> None:
    number = 0
    for page in (site / "python").iterdir():
        module = resolve_name(page.stem)
        text = page.read_text()
        names = [name for name in module.__all__ if not inspect.ismodule(getattr(module, name))]
        assert not [name for name in names if f'id="{page.stem}.{name}"' not in text], page.stem
        number += len(names)
        for name in names:
            for field in getattr(getattr(module, name), "model_fields", ()):  # of an answer of a server
                assert f"<code>{field}: " in text, (name, field)
    assert number > 50


def test_notebook_is_shown_with_its_pictures(site: Path) -> None:
    text = (site / "notebook.html").read_text()
    assert text.count("data:image/webp;base64,") > 20
    assert "polars" in words(site / "notebook.html")


def test_every_setting_is_listed_in_one_section(site: Path) -> None:
    text = (site / "settings.html").read_text()
    listed = re.findall(r"<dt><code>([\w.]+)(?: = [^<]*)?</code></dt>", text)
    assert sorted(listed) == sorted(name for name, _ in fields(Config))
    headings = re.findall(r'<h2 id="(\w+)"', text)
    assert len(headings) == len({name.rpartition(".")[0] for name in listed})


def test_every_row_of_the_papers_tables_is_shown_with_its_values(site: Path) -> None:
    rows = all_rows()
    assert len(rows) > 600
    text = {paper: words(site / "tables" / f"{paper}.html") for paper in {row.paper for row in rows}}
    for row in rows:
        end = row.name if row.reason is None else f"not run here: {' '.join(row.reason.split())[:20]}"
        facts = [row.data, row.setting, *map(printed, row.published_values.values()), end]
        assert re.search("(?: -)* ".join(map(re.escape, facts)), text[row.paper]), row.name


@pytest.mark.browser
def test_pages_are_readable_and_searched_without_other_hosts(address: str, browser: Browser) -> None:
    context = browser.new_context()
    page = context.new_page()
    asked: list[str] = []
    problems: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    for name in ("losses/loss/sct", "python/lookalike.datasets"):
        page.goto(f"{address}/{name}.html")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            page.reload()
            found = Axe().run(page, options={"runOnly": ["color-contrast", "link-in-text-block"]})
            assert not found.response["violations"], f"{name}, {scheme}"
    page.locator(".md-search-result__meta", has_text="Type to start").wait_for(
        state="attached", timeout=60_000
    )  # indexed
    page.get_by_role("textbox", name="Search").press_sequentially("half-whitening")
    page.locator(".md-search-result__item a", has_text="Without labels").first.wait_for()
    context.close()
    assert len(asked) > 8
    assert not [url for url in asked if not url.startswith((address, "data:", "blob:"))]
    assert not problems
