"""Each constraint on its own: the code, the figure, the limit and the fix."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from codegen.check import RULES
from codegen.sweep import Filter, backends, combinations, leaf_modules, sweep, unspelled
from dsl_kernels import policies, programs
from dsl_kernels.arch import ARCHS
from dsl_kernels.tile.lang import Buffer, Engine, Mma, Pipeline, Reader, Role, Schedule, Space
from dsl_kernels.tile.text import Call, walk

HOPPER, BLACKWELL = ARCHS["sm_90a"], ARCHS["sm_100a"]
LEGAL = Schedule(
    roles=(Role("math", 4, 200), Role("copy", 4, 40)),
    buffers=(Buffer("a", Space.SHARED, (64, 64), "bfloat16", 2, swizzle=128),),
    pipelines=(Pipeline("a", ("a",), "copy", Engine.BULK, (Reader("math", Engine.WGMMA),), 2),),
    mmas=(Mma("mm", "wgmma", "math", 64, 16, 64, "bfloat16"),),
    grid=("1",),
)

GRID = Pipeline(
    "a", ("a",), "math", Engine.GRID, (Reader("math", Engine.THREADS),), rounds="once", through="x", meets="m"
)
PEERS = Pipeline("a", ("a",), "math", Engine.PEERS, (Reader("math", Engine.THREADS),), 2)


def codes(schedule: Schedule, arch=HOPPER) -> dict[str, str]:
    return {v.code: f"{v.figure} | {v.limit} | {v.fix}" for rule in RULES for v in rule(schedule, arch)}


def mma(**changes) -> Schedule:
    return replace(LEGAL, mmas=(replace(LEGAL.mmas[0], **changes),))


def test_a_legal_schedule_has_no_violation():
    assert codes(LEGAL) == {}


@pytest.mark.parametrize(
    "schedule,arch,code,says",
    [
        (replace(LEGAL, roles=(Role("math", 32), Role("copy", 4))), HOPPER, "THREADS", "1152 threads"),
        (
            replace(LEGAL, buffers=(Buffer("a", Space.SHARED, (512, 128), "bfloat16", 2),)),
            HOPPER, "SMEM_OVERFLOW", "262176 bytes of shared memory | at most 232448",
        ),
        (
            replace(LEGAL, buffers=(*LEGAL.buffers, Buffer("t", Space.TENSOR, (128, 64), "float32"))),
            HOPPER, "TMEM_MISSING", "no tensor memory on sm_90a",
        ),
        (
            replace(LEGAL, buffers=(*LEGAL.buffers, Buffer("t", Space.TENSOR, (128, 300), "float32", 2)),
                    mmas=()),
            BLACKWELL, "TMEM_OVERFLOW", "600 columns, allocated as 1024",
        ),
        (
            replace(LEGAL, buffers=(*LEGAL.buffers, Buffer("t", Space.TENSOR, (32, 64), "float32")), mmas=()),
            BLACKWELL, "TMEM_LANES", "t on 32 lanes",
        ),
        (replace(LEGAL, roles=(Role("math", 4, 201), Role("copy", 4, 40))), HOPPER, "REGISTER_BUDGET",
         "multiple of 8"),
        (replace(LEGAL, roles=(Role("math", 8, 240), Role("copy", 4, 40))), HOPPER, "REGISTERS",
         "66560 registers over all roles | at most 64512, what 384 threads hold"),
        (replace(LEGAL, roles=(Role("math", 4, 208), Role("copy", 4, 168), Role("issue", 1))), HOPPER,
         "REGISTERS", "what 288 threads hold at launch (168 each)"),
        (
            replace(LEGAL,
                    buffers=(*LEGAL.buffers, Buffer("f", Space.REGISTER, (512, 64), "float32", role="math"))),
            HOPPER, "FRAGMENTS", "256 registers a thread",
        ),
        (replace(LEGAL, named_barriers={f"b{i}": ("math",) for i in range(16)}), HOPPER, "NAMED_BARRIERS",
         "17"),
        (mma(unit="tcgen05"), HOPPER, "MMA_UNIT", "wgmma on sm_90a"),
        (mma(unit="wgmma"), BLACKWELL, "MMA_UNIT", "tcgen05 on sm_100a"),
        (mma(m=16), HOPPER, "MMA_M", "swap the operands"),
        (mma(n=12), HOPPER, "MMA_N", "multiple of 8"),
        (mma(k=24), HOPPER, "MMA_K", "multiple of 16"),
        (mma(dtype="float8_e4m3", k=64, a_major="mn"), HOPPER, "MMA_MAJOR", "transpose the tile"),
        (mma(dtype="float32"), HOPPER, "MMA_DTYPE", "one of bfloat16"),
        (replace(LEGAL, roles=(Role("copy", 2), Role("math", 4))), HOPPER, "WARPGROUP", "from warp 2"),
        (
            replace(LEGAL, buffers=(Buffer("a", Space.SHARED, (3, 3), "bfloat16", 2),)),
            HOPPER, "COPY_ALIGNMENT", "18 bytes a stage",
        ),
        (
            replace(LEGAL, buffers=(Buffer("a", Space.SHARED, (64, 64), "bfloat16", 2, swizzle=100),)),
            HOPPER, "SWIZZLE", "0, 32, 64 or 128",
        ),
        (replace(LEGAL, cluster=(32, 1, 1)), HOPPER, "CLUSTER", "32 CTAs"),
        (replace(LEGAL, group=(0,)), HOPPER, "CO_RESIDENCY", "a cluster"),
        (replace(LEGAL, pipelines=(PEERS,)), HOPPER, "PEERS", "filled by other CTAs"),
        (replace(LEGAL, pipelines=(replace(PEERS, stages=1),), cluster=(2, 1, 1)), HOPPER, "PEER_STAGES",
         "still reads"),
        (replace(LEGAL, pipelines=(GRID,)), HOPPER, "GRID_RESIDENCY", "runs at once"),
        (replace(LEGAL, pipelines=(GRID,), resident="1"), HOPPER, "GRID_WORDS", "4096 of bfloat16"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isupper() else "",
)  # fmt: skip
def test_rule(schedule: Schedule, arch, code: str, says: str) -> None:
    broken = codes(schedule, arch)
    assert code in broken, broken
    assert says in broken[code]


def test_fp8_may_be_transposed_on_blackwell_only():
    fp8 = mma(unit="tcgen05", m=128, k=64, dtype="float8_e4m3", a_major="mn")
    assert "MMA_MAJOR" not in codes(fp8, BLACKWELL)


@pytest.mark.parametrize("arch", ARCHS)
def test_the_committed_set_is_legal_and_wider_levels_contain_it(arch: str) -> None:
    for op in programs.names():
        program = programs.get(op)
        small = [tuple(k.items()) for k in combinations(program, ARCHS[arch], 0)]
        wide = [tuple(k.items()) for k in combinations(program, ARCHS[arch], 1)]
        assert set(small) <= set(wide)
        assert small
    refused = [c.id for c, _ in sweep(0).refused]
    assert refused == []


def test_a_dsl_leaves_out_what_it_says_it_cannot_spell() -> None:
    for op, backend in product(programs.names(), backends()):
        reason, program = unspelled(backend, op), programs.get(op)
        texts = {
            arch.name: [program.text(k, arch) for k in combinations(program, arch, 0)]
            for arch in ARCHS.values()
        }
        called = {name for parts in texts.values() for text in parts for name in text.leaves}
        assert reason <= called, f"{backend} says of {op} what no text calls: {sorted(reason - called)}"
        kept = sweep(0, Filter(op=op, backend=backend)).kept
        for instance in kept:
            arch = instance.arch
            spelled = {
                n for _, _, names in leaf_modules(backend, op, arch.tag.removesuffix("a")) for n in names
            }
            text = program.text(instance.knobs, arch)
            calls = (s for part in text.parts.values() for s in walk(part) if isinstance(s, Call))
            assert {s.leaf.name for s in calls if s.leaf.text is None} <= spelled, instance.id
        assert not reason or len(kept) < sum(map(len, texts.values()))


def test_a_dsl_leaves_out_knobs_that_are_unfit_for_it() -> None:
    for op in programs.names():
        unfit = policies.get(op).unfit
        assert set(unfit) <= set(backends())
        for backend, knobs in ((dsl, knobs) for dsl, each in unfit.items() for knobs in each):
            kept = [instance.knobs for instance in sweep(0, Filter(op=op, backend=backend)).kept]
            whole = [k for arch in ARCHS.values() for k in combinations(programs.get(op), arch, 0)]
            assert any(knobs.items() <= k.items() for k in whole), f"{backend}: no {op} has {knobs}"
            assert not any(knobs.items() <= k.items() for k in kept)


def test_variant_ids_are_distinct_and_are_identifiers():
    ids = [
        programs.get(op).variant_id(backend, arch, knobs)
        for op, backend, arch in product(programs.names(), backends(), ARCHS.values())
        for knobs in combinations(programs.get(op), arch, 1)
    ]
    assert len(ids) == len(set(ids))
    assert all(name.isidentifier() for name in ids)
