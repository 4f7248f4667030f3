"""What the site needs beyond mkdocs (`make site`): pages of the checkout's root, and links to its sources.

Documents are written for a checkout, where README.md and the sources are beside docs/. On the site the root's
documents are pages, and each file that a document links to is a copy below `source/`, as text.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# Documents of the checkout's root, and the pages that they are on the site.
ROOT_PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "AGENTS.md": "agents.md",
    "CHANGELOG.md": "changelog.md",
}
LINK = re.compile(r"(!?\[[^\]]*\]\()([^)#\s]+)((?:#[^)\s]*)?\))")
FENCE = re.compile(r"(^ *```.*?^ *```)", re.MULTILINE | re.DOTALL)


def page_of(path: str) -> str | None:
    """The page of the site that a document of the checkout is; None of what is no document."""
    if path in ROOT_PAGES:
        return ROOT_PAGES[path]
    return path.removeprefix("docs/") if path.startswith("docs/") else None


def document_of(page: str) -> str:
    """The document of the checkout that a page of the site is."""
    return next((document for document, name in ROOT_PAGES.items() if name == page), f"docs/{page}")


def copy_of(path: str) -> str:
    """Where the site keeps a source: as text, which browsers show and do not offer to save."""
    return f"source/{path}.txt"


def target_of(document: str, link: str) -> str | None:
    """What a link of a document leads to, by its path in the checkout; None where that is not there."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(document), link))
    return path if not path.startswith("..") and (ROOT / path).exists() else None


def relinked(document: str, text: str) -> tuple[str, set[str]]:
    """A document with the links that its page has on the site, and the sources that the page links to."""
    here = posixpath.dirname(page_of(document) or "")
    sources: set[str] = set()

    def link(match: re.Match[str]) -> str:
        target = None if "://" in match[2] else target_of(document, match[2])
        if target is None:
            return match[0]
        page = page_of(target)
        if page is None:
            sources.add(target)
            page = copy_of(target)
        return f"{match[1]}{posixpath.relpath(page, here or '.')}{match[3]}"

    # Fences stay as they are; what is between two of them is looked through for links.
    parts = FENCE.split(text)
    parts[::2] = [LINK.sub(link, part) for part in parts[::2]]
    return "".join(parts), sources


def listing(path: Path) -> str:
    """A source as text, or the names of what is in a folder."""
    if path.is_dir():
        names = sorted(p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file())
        return "\n".join(name for name in names if "__pycache__" not in name) + "\n"
    return path.read_text()


def on_files(files: Any, config: Any) -> Any:
    """Add the pages of the checkout's root, and a copy of every source that a document links to."""
    from mkdocs.structure.files import File

    sources: set[str] = set()
    documents = [document_of(file.src_uri) for file in files.documentation_pages()] + list(ROOT_PAGES)
    for document in documents:
        sources |= relinked(document, (ROOT / document).read_text())[1]
    for document, page in ROOT_PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / document).read_text()))
    for source in sorted(sources):
        files.append(File.generated(config, copy_of(source), content=listing(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Links as the site has them."""
    return relinked(document_of(page.file.src_uri), markdown)[0]
