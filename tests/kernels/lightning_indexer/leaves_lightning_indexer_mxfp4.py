"""Cases of the leaves of scoring over keys of 4 bits."""

from __future__ import annotations

import torch
from leaf_probes import Probe, case
from leaves_lightning_indexer_sm100 import _given, _integers, _logits

from dsl_kernels.kernels.lightning_indexer.leaves import mxfp4 as text


@case(text.place_factors, rows=(128, 64, 32))
def place_factors(p: Probe, rows: int) -> None:
    p.threads = 32
    words = torch.arange(rows, dtype=torch.int32) * 0x01020304
    p.call(
        p.shared("factors", (32, 4), torch.zeros(32, 4, dtype=torch.int32), slot=True, out=True),
        p.shared("scales", (rows,), words, slot=True),
    )


@case(text.store_scores, length=(128, 170, 300))
def store_scores(p: Probe, length: int) -> None:
    lengths = _integers(p, "length", [length, *[0] * 31], out=False)
    p.call(_logits(p, 3, 1), _given(p, "logit"), lengths, p.dim("seq", 2), p.dim("key", 128))
