"""Tensor copies of 1 to 5 dimensions: swizzles, out-of-bounds fill, gather4, stores, reductions, clusters."""

import itertools

import numpy as np
import pytest
import torch

from ptx_emulator import EmulatorError, Interleaving, LaunchError, TensorMap, launch

from .kernels import simple

MASK = {"none": 0, "32B": 0x10, "64B": 0x30, "128B": 0x70}
HEAD = ".extern .shared .align 1024 .b8 dyn[];\n"


def copy_kernel(dims, nbytes, mode="tile", coords=None, target="sm_90a"):
    """Load one box and dump the shared memory that it fills."""
    n = coords or dims
    loads = "".join(f"ld.param.u32 %r{20 + i}, [c{i}];\n" for i in range(n))
    c = ", ".join(f"%r{20 + i}" for i in range(n))
    return simple(
        f"""
.shared .align 8 .b8 bar[8];
mov.u32 %r1, %tid.x;
mov.u32 %r2, dyn;
mov.u32 %r3, bar;
mov.b64 %d1, tm; cvta.param.u64 %d1, %d1;
{loads}
setp.ne.u32 %p1, %r1, 0;
@%p1 bra READY;
mbarrier.init.shared::cta.b64 [%r3], 1;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], {nbytes};
cp.async.bulk.tensor.{dims}d.shared::cluster.global.{mode}.mbarrier::complete_tx::bytes [%r2], [%d1, \
{{{c}}}], [%r3];
READY:
bar.sync 0;
WAIT:
mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r3], 0;
@!%p2 bra WAIT;
ld.param.u64 %d2, [p1];
shl.b32 %r4, %r1, 2;
LOOP:
add.u32 %r5, %r2, %r4;
ld.shared.u32 %r6, [%r5];
cvt.u64.u32 %d3, %r4;
add.u64 %d4, %d2, %d3;
st.global.u32 [%d4], %r6;
add.u32 %r4, %r4, 128;
setp.lt.u32 %p3, %r4, {nbytes};
@%p3 bra LOOP;
""",
        ".param .align 64 .b8 tm[128], .param .u64 p1" + "".join(f", .param .u32 c{i}" for i in range(n)),
        head=HEAD,
        target=target,
    )


def load_box(tensor_map, coord, nbytes, mode="tile", target="sm_90a"):
    out = np.zeros(nbytes, np.uint8)
    dims = len(tensor_map.box)
    ptx = copy_kernel(dims, nbytes, mode, len(coord), target)
    launch(ptx, 1, 32, [tensor_map, out, *[int(c) & 0xFFFFFFFF for c in coord]], dynamic_smem=nbytes)
    return out


def swizzled(data, swizzle):
    """A box in shared memory that starts at a multiple of 1024."""
    out = np.zeros_like(data)
    a = np.arange(len(data))
    out[a ^ ((a >> 3) & MASK[swizzle])] = data
    return out


def box_of(x, coord, box):
    """Elements of a box, innermost coordinate first, zero outside."""
    out = np.zeros(tuple(reversed(box)), x.dtype)
    for idx in itertools.product(*[range(b) for b in reversed(box)]):
        at = [i + c for i, c in zip(idx, reversed(coord), strict=True)]
        if all(0 <= p < n for p, n in zip(at, x.shape, strict=True)):
            out[idx] = x[tuple(at)]
    return out


CASES = [
    ((80,), (64,), [(0,), (32,), (-8,)]),
    ((9, 40), (16, 8), [(0, 0), (24, 5), (-8, -3), (104, 0)]),
    ((3, 5, 24), (8, 4, 2), [(0, 0, 0), (16, 3, 2), (-8, -2, -1)]),
    ((2, 3, 5, 16), (8, 2, 2, 2), [(0, 0, 0, 0), (8, 4, 2, 1)]),
    ((2, 2, 3, 4, 16), (8, 2, 2, 2, 1), [(0, 0, 0, 0, 0), (8, 3, 2, 1, 1)]),
]


@pytest.mark.parametrize(("shape", "box", "coords"), CASES, ids=[f"{len(c[0])}d" for c in CASES])
def test_boxes_with_edges(shape, box, coords):
    x = np.arange(1, np.prod(shape) + 1, dtype=np.uint16).reshape(shape)
    for coord in coords:
        got = load_box(TensorMap(x, box), coord, int(np.prod(box)) * 2)
        assert (got.view(np.uint16) == box_of(x, coord, box).ravel()).all(), coord


@pytest.mark.parametrize("swizzle", MASK)
def test_swizzles(swizzle):
    span = {"none": 64, "32B": 32, "64B": 64, "128B": 128}[swizzle]
    x = np.random.default_rng(0).integers(0, 256, (48, 256)).astype(np.uint8)
    got = load_box(TensorMap(x, (span, 32), swizzle), (64, 8), span * 32)
    assert (got == swizzled(x[8:40, 64 : 64 + span].ravel(), swizzle)).all()


def test_out_of_bounds_fill_with_nan():
    x = np.ones((4, 16), np.float32)
    got = load_box(TensorMap(x, (8, 4), fill="nan"), (12, 2), 128).view(np.float32).reshape(4, 8)
    assert (got[:2, :4] == 1).all() and np.isnan(got[2:]).all() and np.isnan(got[:, 4:]).all()


@pytest.mark.parametrize("swizzle", ["none", "128B"])
def test_gather4(swizzle):
    x = np.arange(64 * 64, dtype=np.uint16).reshape(64, 64)
    rows = (5, 63, 0, 70)  # the last is outside: zeros
    got = load_box(TensorMap(x, (64, 1), swizzle), (0, *rows), 512, "tile::gather4", "sm_100a")
    expect = np.stack([x[r] if r < 64 else np.zeros(64, np.uint16) for r in rows])
    assert (got == swizzled(expect.view(np.uint8).ravel(), swizzle)).all()


STORE = simple(
    """
mov.u32 %r1, %tid.x;
mov.u32 %r2, dyn;
shl.b32 %r3, %r1, 4;
xor.b32 %r4, %r3, 0;
shr.u32 %r5, %r3, 3;
and.b32 %r5, %r5, @MASK@;
xor.b32 %r4, %r3, %r5;
add.u32 %r4, %r2, %r4;
mul.lo.u32 %r6, %r1, 4;
add.u32 %r7, %r6, 1; add.u32 %r8, %r6, 2; add.u32 %r9, %r6, 3;
cvt.rn.f32.u32 %f1, %r6; cvt.rn.f32.u32 %f2, %r7; cvt.rn.f32.u32 %f3, %r8; cvt.rn.f32.u32 %f4, %r9;
st.shared.v4.f32 [%r4], {%f1, %f2, %f3, %f4};
fence.proxy.async.shared::cta;
bar.sync 0;
setp.ne.u32 %p1, %r1, 0;
@%p1 bra DONE;
mov.b64 %d1, tm; cvta.param.u64 %d1, %d1;
ld.param.u32 %r20, [cx]; ld.param.u32 %r21, [cy];
@OP@ [%d1, {%r20, %r21}], [%r2];
cp.async.bulk.commit_group;
cp.async.bulk.wait_group.read 0;
DONE:
""",
    ".param .align 64 .b8 tm[128], .param .u32 cx, .param .u32 cy",
    head=HEAD,
)


@pytest.mark.parametrize("swizzle", ["none", "128B"])
@pytest.mark.parametrize("op", ["store", "add", "max"])
def test_tensor_store_and_reduction(swizzle, op):
    name = "cp.async.bulk.tensor" if op == "store" else "cp.reduce.async.bulk.tensor"
    red = "" if op == "store" else f".{op}"
    text = STORE.replace("@MASK@", str(MASK[swizzle])).replace(
        "@OP@", f"{name}.2d.global.shared::cta{red}.tile.bulk_group"
    )
    tile = np.arange(512, dtype=np.float32).reshape(16, 32)
    for cx, cy in [(0, 0), (16, 10), (40, 3)]:
        y = np.full((20, 64), 100, np.float32)
        expect = y.copy()
        part = expect[cy : cy + 16, cx : cx + 32]
        t = tile[: part.shape[0], : part.shape[1]]
        part[:] = t if op == "store" else part + t if op == "add" else np.maximum(part, t)
        launch(
            text,
            1,
            128,
            [TensorMap(y, (32, 16), swizzle), cx, cy],
            dynamic_smem=2048,
            interleaving=Interleaving.adversarial(cx),
        )
        assert (y == expect).all(), (cx, cy)


MULTICAST = simple(
    """
.shared .align 8 .b8 bar[8];
mov.u32 %r1, %tid.x;
mov.u32 %r2, dyn;
mov.u32 %r3, bar;
mov.u32 %r4, %cluster_ctarank;
mov.b64 %d1, tm; cvta.param.u64 %d1, %d1;
setp.ne.u32 %p1, %r1, 0;
@%p1 bra READY;
mbarrier.init.shared::cta.b64 [%r3], 1;
fence.mbarrier_init.release.cluster;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 256;
READY:
bar.warp.sync -1;
barrier.cluster.arrive.aligned;
barrier.cluster.wait.aligned;
@%p1 bra WAIT;
shl.b32 %r5, %r4, 7;
add.u32 %r6, %r2, %r5;
shl.b32 %r7, %r4, 1;
mov.u32 %r8, 0;
mov.u16 %h1, 3;
cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%r6], \
[%d1, {%r8, %r7}], [%r3], %h1;
WAIT:
mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [%r3], 0;
@!%p2 bra WAIT;
shl.b32 %r10, %r1, 3;
add.u32 %r11, %r2, %r10;
ld.shared.v2.u32 {%r12, %r13}, [%r11];
mov.u32 %r14, %ctaid.x;
shl.b32 %r15, %r14, 8;
add.u32 %r15, %r15, %r10;
cvt.u64.u32 %d2, %r15;
ld.param.u64 %d3, [p1];
add.u64 %d3, %d3, %d2;
st.global.v2.u32 [%d3], {%r12, %r13};
barrier.cluster.arrive.aligned;
barrier.cluster.wait.aligned;
""",
    ".param .align 64 .b8 tm[128], .param .u64 p1",
    head=HEAD,
)


def test_multicast_reaches_every_cta_of_the_mask():
    x = np.arange(4 * 32, dtype=np.uint16).reshape(4, 32)
    for seed in range(6):
        out = np.zeros((2, 128), np.uint16)
        launch(
            MULTICAST,
            2,
            32,
            [TensorMap(x, (32, 2)), out],
            cluster=2,
            dynamic_smem=256,
            interleaving=Interleaving.random(seed),
        )
        assert (out == x.ravel()).all()


@pytest.mark.parametrize(("box", "span"), [((16, 8), 64), ((48, 8), 128), ((16, 8), 32)])
def test_a_swizzle_pads_rows_to_its_span(box, span):
    x = np.random.default_rng(0).integers(0, 256, (16, 128)).astype(np.uint8)
    out = np.zeros(span * box[1], np.uint8)
    ptx = copy_kernel(2, box[0] * box[1]).replace(f"%p3, %r4, {box[0] * box[1]};", f"%p3, %r4, {len(out)};")
    args = [TensorMap(x, box, f"{span}B"), out, 32, 4]
    with pytest.raises(EmulatorError, match="uninit"):  # the padding is not written
        launch(ptx, 1, 32, args, dynamic_smem=len(out))
    launch(ptx, 1, 32, args, dynamic_smem=len(out), check="report")
    rows = np.zeros((box[1], span), np.uint8)
    rows[:, : box[0]] = x[4:12, 32 : 32 + box[0]]
    expect = swizzled(rows.ravel(), f"{span}B")
    written = swizzled(np.tile(np.arange(span) < box[0], box[1]).astype(np.uint8), f"{span}B") == 1
    assert (out[written] == expect[written]).all()


@pytest.mark.parametrize("coord", [(1, 0), (-3, 0), (100, 0)])
def test_the_innermost_coordinate_is_a_multiple_of_16_bytes(coord):
    x = np.zeros((8, 64), np.uint16)
    with pytest.raises(EmulatorError, match="tensor-coordinate"):
        load_box(TensorMap(x, (16, 8)), coord, 256)


def test_a_store_does_not_begin_before_the_tensor():
    text = STORE.replace("@MASK@", "0").replace(
        "@OP@", "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group"
    )
    for coord in [(-4, 0), (0, -1)]:
        with pytest.raises(EmulatorError, match="tensor-coordinate"):
            launch(
                text, 1, 128, [TensorMap(np.zeros((20, 64), np.float32), (32, 16)), *coord], dynamic_smem=2048
            )


def test_maps_are_checked():
    x = np.zeros((8, 64), np.float32)
    for bad, why in [
        (TensorMap(x, (33, 8)), "multiple of 16"),
        (TensorMap(x, (64, 8), "128B"), "swizzle span"),
        (TensorMap(x, (512, 8)), "256"),
        (TensorMap(x, (32,)), "rank"),
        (TensorMap(x[:, :63], (32, 8), strides=(252,)), "multiples of 16"),
        (TensorMap(x, (32, 8), "96B"), "swizzle"),
        (TensorMap(x, (32, 8), fill="one"), "fill"),
    ]:
        with pytest.raises(LaunchError, match=why):
            load_box(bad, (0,) * len(bad.box), 1024)


def test_a_copy_past_the_array_is_reported():
    x = np.zeros((8, 64), np.float32)
    with pytest.raises(EmulatorError, match="out-of-bounds-global"):
        load_box(TensorMap(x, (32, 8), dims=(64, 16)), (0, 8), 1024)


def test_torch_views_share_their_storage():
    base = torch.arange(8 * 96, dtype=torch.int16).reshape(8, 96)
    right = base[:, 64:]
    got = load_box(TensorMap(right, (32, 4)), (0, 2), 256)
    assert (got.view(np.int16).reshape(4, 32) == right[2:6].numpy()).all()
