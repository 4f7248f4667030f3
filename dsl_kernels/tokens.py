"""Python source reduced to its significant tokens: the same as long as only comments and layout change."""

from __future__ import annotations

import io
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

_LAYOUT = ("NEWLINE", "INDENT", "DEDENT")
_SILENT = ("COMMENT", "NL", "ENCODING")


@lru_cache(maxsize=256)
def program(source: bytes) -> bytes:
    """The significant tokens of Python source, the same under every Python version; other text unchanged."""
    try:
        named = [
            (tokenize.tok_name[token.type], token.string, token.start, token.end)
            for token in tokenize.tokenize(io.BytesIO(source).readline)
        ]
        lines = io.StringIO(source.decode()).readlines()
    except (tokenize.TokenError, SyntaxError, UnicodeDecodeError):
        return source
    tokens = [
        (kind, "" if kind in _LAYOUT else string)
        for kind, string in whole_strings(named, lines)
        if kind not in _SILENT
    ]
    significant: list[str] = []
    for i, (kind, string) in enumerate(tokens):
        # Drop a string that is a statement: the token before it ends a line or begins a block.
        if kind == "STRING" and (i == 0 or tokens[i - 1][0] in _LAYOUT) and tokens[i + 1][0] == "NEWLINE":
            tokens[i + 1] = ("NL", "")
        elif kind != "NL":
            significant.append(f"{kind} {string}")
    return "\n".join(significant).encode()


# Kind, text, and the rows (from 1) and columns where a token starts and ends.
Token = tuple[str, str, tuple[int, int], tuple[int, int]]


def whole_strings(tokens: Iterable[Token], lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Kinds and texts of tokens. An f-string is one STRING, as before Python 3.12, which splits it."""
    depth, begin = 0, (1, 0)
    for kind, string, start, end in tokens:
        if kind in ("FSTRING_START", "TSTRING_START"):
            begin = begin if depth else start
            depth += 1
        elif kind in ("FSTRING_END", "TSTRING_END"):
            depth -= 1
            if not depth:
                yield "STRING", _between(lines, begin, end)
        elif not depth:
            yield kind, string


def _between(lines: Sequence[str], start: tuple[int, int], end: tuple[int, int]) -> str:
    rows = list(lines[start[0] - 1 : end[0]])
    rows[-1] = rows[-1][: end[1]]
    rows[0] = rows[0][start[1] :]
    return "".join(rows)
