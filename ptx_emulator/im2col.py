"""im2col tensor maps: they walk the pixels of images in the order in which a convolution gathers them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .checks import checked, shown
from .errors import LaunchError

#: rank of the tensor -> limit of a corner's coordinates, which are from -limit to limit - 1
_CORNERS = {3: 1 << 15, 4: 1 << 7, 5: 1 << 4}
CHANNELS, PIXELS = 256, 1024  # the most channels per pixel and pixels per column


@checked
@dataclass(frozen=True)
class Im2col:
    """The arguments of ``cuTensorMapEncodeIm2col`` besides the tensor (channels innermost, images outermost).

    The box of such a map is ``(channels per pixel, pixels per column)``. Each sequence here has an entry for
    every dimension between channels and images, innermost first: W; W and H; or W, H and D. ``lower`` and
    ``upper`` are the offsets of the bounding box's corners from the first and the last pixel of an image; the
    box holds every position of a filter's first element. A filter of 3 with padding of 1 has corners -1 and
    -1. ``steps`` are the traversal strides, 1 to 8.
    """

    lower: Sequence[int]
    upper: Sequence[int]
    steps: Sequence[int] | None = None

    def fields(
        self, dims: Sequence[int], box: Sequence[int], bad: Callable[[str], LaunchError]
    ) -> tuple[int, list[int], list[int], list[int]]:
        """Pixels per column, and the lower corner, the upper corner and the steps, each padded to length 3.

        Raises:
            LaunchError: made by ``bad``; the map exceeds the hardware's limits.
        """
        rank = len(dims)
        if rank not in _CORNERS:
            raise bad(f"im2col takes tensors of 3 to 5 dimensions, not of {rank}")
        if len(box) != 2:
            raise bad(
                f"the box of an im2col map is (channels per pixel, pixels per column), not {shown(list(box))}"
            )
        lower, upper = list(self.lower), list(self.upper)
        steps = [1] * (rank - 2) if self.steps is None else list(self.steps)
        limit = _CORNERS[rank]
        for name, values, low, high in (
            ("lower corner", lower, -limit, limit - 1),
            ("upper corner", upper, -limit, limit - 1),
            ("steps", steps, 1, 8),
        ):
            if len(values) != rank - 2 or any(not low <= n <= high for n in values):
                raise bad(
                    f"{name} {shown(values)}: expected {rank - 2} numbers from {low} to {high} "
                    f"for a tensor of {rank} dimensions"
                )
        if not 1 <= box[0] <= CHANNELS or not 1 <= box[1] <= PIXELS:
            raise bad(
                f"box {shown(list(box))}: expected 1 to {CHANNELS} channels a pixel "
                f"and 1 to {PIXELS} pixels a column"
            )
        for n, low, high in zip(dims[1:-1], lower, upper, strict=True):
            if n - 1 + high < low:
                raise bad(
                    f"the bounding box from {low} to {n - 1 + high} in a dimension of {n} pixels is empty"
                )

        def three(values: list[int], fill: int) -> list[int]:
            return [*values, *[fill] * (3 - len(values))]

        return box[1], three(lower, 0), three(upper, 0), three(steps, 1)
