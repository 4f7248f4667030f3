"""Cases of the leaves of sparse attention over fp8 tokens as they are stored."""

from __future__ import annotations

from typing import Any

import torch
from leaf_probes import Probe, case, spread
from leaves_sparse_mla import HEADS, _tokens, low_high, tile_ids
from leaves_sparse_mla_sm100 import _operand_of, _own

from dsl_kernels.kernels.sparse_mla.leaves import terms as text

E4M3 = "float8_e4m3"
GROUPS = 4


def _powers(p: Probe, *shape: int) -> torch.Tensor:
    return 2.0 ** p.integers(-12, 5, *shape)


def _units(p: Probe, **kind: Any) -> Any:
    return _own(p, "units", _powers(p, GROUPS).expand(128, GROUPS).clone(), GROUPS, **kind)


def _scales(p: Probe, value: torch.Tensor | None = None, **kind: Any) -> Any:
    return _own(p, "scales", value, 2 * GROUPS, **kind)


@case(text.split_queries, block=(8, 16))
def split_queries(p: Probe, block: int) -> None:
    p.threads = 128
    rows = p.normal(2, 32, 576) * _powers(p, 2, 32, 1)
    rows[1, 17, 128:256] = 0
    p.call(
        p.shared("target", (2 * HEADS, 512), dtype=E4M3, swizzle=128, out=True, slot=True),
        p.shared("unit_s", (HEADS, GROUPS), out=True),
        p.shared("rope", (HEADS, 64), dtype="bfloat16", swizzle=128, out=True, slot=True),
        spread(p, "q", rows[..., :512].bfloat16()),
        spread(p, "q_pe", rows[..., 512:].bfloat16()),
        p.dim("row", 1),
        p.dim("head0", 16),
        block,
    )


@case(text.copy_stored)
def copy_stored(p: Probe) -> None:
    p.threads, p.lands = 128, "cp_async"
    p.call(
        p.shared("kv", (64, 512), dtype=E4M3, swizzle=128, out=True, slot=True),
        p.shared("pe", (64, 64), dtype="bfloat16", swizzle=128, out=True, slot=True),
        p.shared("scale_s", (64, GROUPS), dtype="float32", out=True, slot=True),
        spread(p, "kv_cache", _tokens(p, 40)),
        *low_high(p, tile_ids(p, 40)),
        p.dim("n", 40),
    )


@case(text.take_scales)
def take_scales(p: Probe) -> None:
    p.threads = 128
    of_tile = p.uniform(64, GROUPS) * _powers(p, 64, 1)
    of_tile[::5] = 0
    of_tile[3, 2] = -100.0
    p.call(
        _scales(p),
        _own(p, "units", torch.full((128, GROUPS), 2.0**5), GROUPS),
        _own(p, "lift", None, GROUPS),
        p.shared("scale_s", (64, GROUPS), of_tile, slot=True),
    )


@case(text.find_risen, group=(None, 3))
def find_risen(p: Probe, group: int | None) -> None:
    p.threads = 128
    lift = torch.ones(128, GROUPS)
    if group is not None:
        lift[:, group] = 0.5
    p.call(p.var("risen", None, dtype="bool", out=True), _own(p, "lift", lift, GROUPS, out=False))


@case(text.join_partial_scores)
def join_partial_scores(p: Probe) -> None:
    p.threads, p.relative, p.absolute = 128, 1e-5, 1e-4
    p.call(
        _own(p, "scores", p.normal(128, HEADS // 2), HEADS // 2),
        _own(p, "partial", p.normal(128, 4 * HEADS), 4 * HEADS, out=False),
        _scales(p, p.uniform(128, 2 * GROUPS), out=False),
        p.shared("unit_s", (HEADS, GROUPS), _powers(p, HEADS, GROUPS)),
    )


@case(text.store_weights_in_terms)
def store_weights_in_terms(p: Probe) -> None:
    p.threads = 128
    scores = p.uniform(128, HEADS // 2) * 2.0 ** p.integers(-20, 1, 128, HEADS // 2)
    scores[::7] = 0
    p.call(
        p.shared("p_s", (64, 2 * GROUPS * HEADS), dtype=E4M3, swizzle=32, out=True, slot=True),
        _own(p, "scores", scores, HEADS // 2, out=False),
        _scales(p, p.uniform(128, 2 * GROUPS) / 2, out=False),
        _own(p, "units", torch.ones(128, GROUPS), GROUPS, out=False),
    )


@case(text.leave_group_factors)
def leave_group_factors(p: Probe) -> None:
    p.threads = 128
    factors = p.normal(GROUPS).expand(128, GROUPS).clone()
    p.call(
        p.shared("stat_s", (HEADS + GROUPS,), p.normal(HEADS + GROUPS), out=True),
        _own(p, "factors", factors, GROUPS, out=False),
        0.5,
    )


def _sums(p: Probe, **kind: Any) -> Any:
    return p.tensor("o_t", (128, 8 * HEADS), p.normal(128, 8 * HEADS), **kind)


def _factors(p: Probe) -> Any:
    return p.shared("stat_s", (HEADS + GROUPS,), p.normal(HEADS + GROUPS))


@case(text.rescale_terms)
def rescale_terms(p: Probe) -> None:
    p.threads, p.relative = 128, 1e-6
    p.call(_sums(p, out=True), _own(p, "held", None, 2 * HEADS, out=False), _factors(p))


@case(text.write_terms, split=(None, 2), some=(False, True), block=(8, 16))
def write_terms(p: Probe, split: int | None, some: bool, block: int) -> None:
    p.threads, p.relative, p.absolute = 128, 2.0**-7, 1e-6
    p.call(
        _operand_of(p, "to", split, 32, 512, dtype=torch.bfloat16 if split is None else torch.float32),
        _sums(p),
        p.dim("row", 1),
        p.dim("head0", 16),
        split if split is None else p.dim("split", split),
        p.var("some", some, dtype="bool"),
        _own(p, "held", None, 2 * HEADS, out=False),
        _factors(p),
        32,
        block,
        p.dim("splits", 3),
    )
