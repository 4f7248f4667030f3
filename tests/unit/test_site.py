"""The site: every page has a place, stays short, and reads alike in a checkout and on the site."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))


def script(name: str) -> ModuleType:
    """A module of scripts/, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


site_hooks = script("site_hooks")
DOCUMENTS = [*(ROOT / name for name in site_hooks.ROOT_PAGES), *PAGES]


def settings() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "mkdocs.yml").read_text())


def entries(nav: Any) -> Iterator[str]:
    """The pages of a nav, from the first to the last."""
    if isinstance(nav, str):
        yield nav
    for item in nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ():
        yield from entries(item)


def test_every_page_is_in_the_nav_once_and_every_entry_exists() -> None:
    listed = list(entries(settings()["nav"]))
    pages = [path.relative_to(DOCS).as_posix() for path in PAGES] + list(site_hooks.ROOT_PAGES.values())
    assert sorted(listed) == sorted(pages)


def test_the_site_asks_no_other_host_and_fails_on_what_is_broken() -> None:
    configuration = settings()
    assert configuration["theme"]["font"] is False
    assert [
        path
        for path in (*configuration["extra_css"], *configuration["extra_javascript"])
        if not (DOCS / path).is_file()
    ] == []
    # With --quiet mkdocs counts no warning, and --strict has nothing to fail on.
    built = re.search(r"mkdocs build .*", (ROOT / "Makefile").read_text())[0]
    assert (
        set(configuration["validation"].values()) == {"warn"}
        and "--strict" in built
        and "--quiet" not in built
    )
    for path in (DOCS / "assets").iterdir():
        assert "://" not in path.read_text(), path.name


MOST_LINES = 300
# Each of these is one generated table with a few sentences; the site adds a filter or a list of contents.
TABLES = {
    "variants.md": "a row for each committed variant",
    "reference/commands.md": "a section for each command",
}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_no_page_is_longer_than_a_reader_bears(path: Path) -> None:
    text = path.read_text()
    page = path.relative_to(DOCS).as_posix() if path.is_relative_to(DOCS) else path.name
    if page in TABLES:
        text = re.sub(r"<!-- begin (\w+) -->.*?<!-- end \1 -->", "", text, flags=re.DOTALL)
    assert len(text.splitlines()) <= (40 if page in TABLES else MOST_LINES)


def test_tables_are_exempt_only_while_they_are_long() -> None:
    assert [page for page in TABLES if len((DOCS / page).read_text().splitlines()) <= MOST_LINES] == []


def prose(path: Path) -> list[tuple[str, str]]:
    """Each line outside of fences, with the line before it."""
    lines, inside, before = [], False, ""
    for line in path.read_text().splitlines():
        if line.lstrip().startswith("```"):
            inside = not inside
        elif not inside:
            lines.append((before, line))
        before = line
    return lines


ITEM = re.compile(r"(?:[-*]|\d+\.) ")


def run_on(path: Path) -> list[str]:
    """Lists, tables and headings that a paragraph runs into: the site takes them for its words."""
    lines = []
    for before, line in prose(path):
        comment = before.startswith("<!--")
        lists = ITEM.match(line) and before and not (ITEM.match(before) or before.startswith(" ") or comment)
        tables = line.startswith("|") and before and not (before.startswith("|") or comment)
        after = before.startswith("|") and line and not line.startswith(("|", "<!--"))
        if lists or tables or after or (line.startswith("#") and before and not comment):
            lines.append(line)
    return lines


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_lists_and_tables_stand_apart(path: Path) -> None:
    assert run_on(path) == []


def test_what_runs_on_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "Words:\n- a list\n\n- right\n- right\n\nWords\n| a |\n| - |\nWords\n\n```\nx\n- y\n```\n## Heading\n"
    )
    assert run_on(page) == ["- a list", "| a |", "Words", "## Heading"]


HEADING = re.compile(r"#{1,6} (.+)")


def anchors(path: Path) -> set[str]:
    """Anchors of headings: a checkout and the site spell them alike but for rare signs."""
    titles = [match[1] for _, line in prose(path) if (match := HEADING.match(line))]
    words = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower() for title in titles]
    checkout = {re.sub(r"[^\w\- ]", "", word).replace(" ", "-") for word in words}
    return checkout & {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", word).strip()) for word in words}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_anchors_of_links_exist(path: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", "\n".join(line for _, line in prose(path)))
    own = [(path.parent / page if page else path, anchor) for page, anchor in links if "://" not in page]
    assert [anchor for page, anchor in own if page.suffix == ".md" and anchor not in anchors(page)] == []


# What a reader who has never seen the project asks, and where README leads at once.
ASKED = {
    "how do I install it beside vLLM": "docs/vllm.md#install",
    "which variant runs at a shape, and why": "docs/tuning.md#which-variant-runs",
    "how does a barrier of attention come about": "docs/barriers.md",
    "how do I add an operation": "docs/new_kernel.md",
    "what is slower than a peer, and why": "docs/performance.md",
    "how exact is each operation": "docs/operations.md#what-is-exact",
    "my result is wrong: what do I look at and report": "docs/errors.md#a-wrong-result",
    "what does a call cost on the host, and a cold start": "docs/bundles.md#cost-on-the-host-and-cold-start",
    "I have a B200: what do I run and send": "docs/b200.md",
}


@pytest.mark.parametrize("question", ASKED)
def test_an_answer_is_one_click_from_the_readme(question: str) -> None:
    assert f"]({ASKED[question]})" in (ROOT / "README.md").read_text()


def test_links_lead_to_pages_and_to_copies_of_sources() -> None:
    links = "[v](docs/variants.md#each) [`x`](examples/ring.py) [w](https://a.b/c) ![p](docs/images/path.svg)"
    text = f"{links}\n```\n[v](docs/variants.md)\n```\n"
    done, sources = site_hooks.relinked("README.md", text)
    assert sources == {"examples/ring.py"}
    assert done == (
        "[v](variants.md#each) [`x`](source/examples/ring.py.txt) [w](https://a.b/c) ![p](images/path.svg)\n"
        "```\n[v](docs/variants.md)\n```\n"
    )
    assert (
        site_hooks.relinked("docs/log/host.md", "[a](../../README.md#times)")[0] == "[a](../index.md#times)"
    )
    # A link to nothing stays as it is, so that mkdocs refuses it.
    assert site_hooks.relinked("docs/clock.md", "[a](gone.md)")[0] == "[a](gone.md)"


def test_a_folder_is_listed() -> None:
    assert "attention.py" in site_hooks.listing(ROOT / "examples").splitlines()
