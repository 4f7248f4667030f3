"""What commands of the laboratory share: options, patterns and rates."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated

import typer

from dsl_kernels.errors import InvalidArgumentError

Sizes = Annotated[
    list[str] | None,
    typer.Option("--dim", help="As --dim of other commands; of values separated by /, all are taken."),
]


def rate(per_second: Mapping[str, float] | None) -> str | None:
    """A rate as text, such as `583K trajectories`; None if no rate is known."""
    for name, count in (per_second or {}).items():
        power = min(3, max(0, int(math.log10(max(count, 1.0)) // 3)))
        return f"{count / 1000**power:.3g}{('', 'K', 'M', 'G')[power]} {name}"
    return None


def pattern(option: str, text: str | None) -> re.Pattern[str]:
    """The regular expression that a user gave; without one, an expression that matches everything."""
    try:
        return re.compile(text or "")
    except re.error as error:
        raise InvalidArgumentError(
            option,
            expected="a regular expression",
            got=f"{text!r}: {error}",
            fix="escape what is meant literally",
        ) from None
