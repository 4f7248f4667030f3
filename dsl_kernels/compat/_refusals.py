"""Refusals under the names of the library whose signature was called."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ..errors import ArgumentTypeError, InvalidArgumentError


@contextlib.contextmanager
def their_names(**names: str) -> Iterator[None]:
    """Within it a refusal of an op's argument names the argument of the library that it came from.

    Args:
        names: the library's names by ours.
    """
    try:
        yield
    except (ArgumentTypeError, InvalidArgumentError) as error:
        if error.subject not in names:
            raise
        raise type(error)(
            names[error.subject], expected=error.expected, got=error.got, fix=error.fix, code=error.code
        ) from None
