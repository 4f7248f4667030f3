"""What a release says, for the workflow that makes it: the section of its version in CHANGELOG.md.

    python scripts/release_notes.py v0.1.0       # prints the section; status 1 where the tag names no release

A tag is `v` and the version of `dsl_kernels/__init__.py`, and the version has a section with a date.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADING = re.compile(r"^## \[(?P<version>[^\]]+)\](?: - (?P<date>\d{4}-\d\d-\d\d))?$", re.MULTILINE)


def version(root: Path = ROOT) -> str:
    """The version of the checkout, read without importing it."""
    text = (root / "dsl_kernels" / "__init__.py").read_text()
    found = re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    if found is None:
        raise ValueError(
            'dsl_kernels/__init__.py: expected a line `__version__ = "..."`, got none. Fix: add it'
        )
    return found[1]


def sections(text: str) -> dict[str, tuple[str | None, str]]:
    """The date and the entries of each version of a changelog, the newest first."""
    found = list(HEADING.finditer(text))
    ends = [match.start() for match in found[1:]] + [len(text)]
    return {
        m["version"]: (m["date"], text[m.end() : end].strip()) for m, end in zip(found, ends, strict=True)
    }


def notes(tag: str, root: Path = ROOT) -> str:
    """The entries of the release that a tag names.

    Raises:
        ValueError: the tag differs from the checkout's version, or its section is missing, undated or empty.
    """
    held = version(root)
    if tag != f"v{held}":
        raise ValueError(
            f"tag {tag}: expected v{held}, the version in dsl_kernels/__init__.py. Fix: change one of them"
        )
    date, said = sections((root / "CHANGELOG.md").read_text()).get(held, (None, ""))
    if date is None or not said:
        raise ValueError(
            f"CHANGELOG.md: expected a section `## [{held}] - YYYY-MM-DD` with entries, got none. "
            "Fix: cut it from Unreleased"
        )
    return said


if __name__ == "__main__":
    try:
        print(notes(sys.argv[1] if len(sys.argv) == 2 else ""))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
