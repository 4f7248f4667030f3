"""Tensor copies in im2col mode: every element of every column against a convolution; stores; refusals."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest

from ptx_emulator import (
    Descriptor,
    EmulatorError,
    Im2col,
    LaunchError,
    RawArguments,
    Region,
    TensorMap,
    UnsupportedInstruction,
    launch,
)

from .kernels import assembles, simple
from .test_tma import HEAD, swizzled


def load_kernel(dims: int, nbytes: int, target: str = "sm_90a", multicast: bool = False) -> str:
    """Load one column of pixels to dynamic shared memory and copy it to p1."""
    coordinates = "".join(f"ld.param.u32 %r{20 + i}, [c{i}];\n" for i in range(dims))
    offsets = "".join(f"ld.param.u16 %h{1 + i}, [o{i}];\n" for i in range(dims - 2))
    at, moved = (
        ", ".join(names)
        for names in ([f"%r{20 + i}" for i in range(dims)], [f"%h{1 + i}" for i in range(dims - 2)])
    )
    cast, mask = (".multicast::cluster", ", %h15") if multicast else ("", "")
    return simple(
        f"""
.shared .align 8 .b8 bar[8];
mov.u32 %r1, %tid.x; mov.u32 %r2, dyn; mov.u32 %r3, bar; mov.b16 %h15, 1;
mov.b64 %d1, tm; cvta.param.u64 %d1, %d1;
{coordinates}{offsets}
setp.ne.u32 %p1, %r1, 0;
@%p1 bra READY;
mbarrier.init.shared::cta.b64 [%r3], 1;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], {nbytes};
cp.async.bulk.tensor.{dims}d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes{cast} [%r2], [%d1, \
{{{at}}}], [%r3], {{{moved}}}{mask};
READY:
bar.sync 0;
WAIT:
mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r3], 0;
@!%p2 bra WAIT;
ld.param.u64 %d2, [p1];
shl.b32 %r4, %r1, 2;
LOOP:
add.u32 %r5, %r2, %r4; ld.shared.u32 %r6, [%r5];
cvt.u64.u32 %d3, %r4; add.u64 %d4, %d2, %d3; st.global.u32 [%d4], %r6;
add.u32 %r4, %r4, 128; setp.lt.u32 %p3, %r4, {nbytes};
@%p3 bra LOOP;
""",
        ".param .align 64 .b8 tm[128], .param .u64 p1"
        + "".join(f", .param .u32 c{i}" for i in range(dims))
        + "".join(f", .param .u16 o{i}" for i in range(dims - 2)),
        head=HEAD,
        target=target,
    )


def load(tensor_map: TensorMap, coordinates, offsets, itemsize: int = 2, **kernel) -> np.ndarray:
    """The bytes of a column, in the order of shared memory."""
    out = np.zeros(math.prod(tensor_map.box) * itemsize, np.uint8)
    ptx = load_kernel(len(coordinates), out.size, **kernel)
    launch(ptx, 1, 32, [tensor_map, out, *coordinates, *offsets], dynamic_smem=out.size)
    return out


# Images (N, spatial..., C), filter, padding, stride and dilation of every spatial dimension, outermost first.
CONVOLUTIONS = {
    "3d": ((3, 11, 16), (3,), (1,), (2,), (1,)),
    "4d": ((2, 7, 6, 24), (3, 2), (1, 1), (1, 2), (2, 1)),
    "4d-no-padding": ((2, 6, 5, 8), (3, 3), (0, 0), (1, 1), (1, 1)),
    "5d": ((2, 4, 5, 6, 16), (2, 3, 2), (1, 1, 0), (1, 2, 3), (1, 1, 2)),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_columns_make_a_convolution(name: str) -> None:
    """The products of all columns with the filters are the convolution, computed from its definition."""
    shape, taps, padding, stride, dilation = CONVOLUTIONS[name]
    generator = np.random.default_rng(0)
    x = generator.integers(-8, 9, shape).astype(np.float16)
    filters = generator.integers(-3, 4, (5, *taps, shape[-1])).astype(np.float32)
    spatial = shape[1:-1]
    reach = [(k - 1) * d for k, d in zip(taps, dilation, strict=True)]
    sizes = [(n + 2 * p - r - 1) // s + 1 for n, p, r, s in zip(spatial, padding, reach, stride, strict=True)]
    outputs = list(itertools.product(range(shape[0]), *map(range, sizes)))

    def at(output, tap):
        """The place in the image of a filter's tap at an output."""
        return [
            o * s - p + t * d
            for o, s, p, t, d in zip(output[1:], stride, padding, tap, dilation, strict=True)
        ]

    def pixel(image: int, where) -> np.ndarray:
        inside = all(0 <= k < n for k, n in zip(where, spatial, strict=True))
        return x[(image, *where)] if inside else np.zeros(shape[-1], np.float16)

    channels, pixels = 8, 12
    walk = Im2col(
        [-p for p in reversed(padding)],
        [p - r for p, r in zip(reversed(padding), reversed(reach), strict=True)],
        list(reversed(stride)),
    )
    tensor_map = TensorMap(x, (channels, pixels), im2col=walk)
    sums = np.zeros((len(outputs), 5), np.float32)
    for tap in itertools.product(*map(range, taps)):
        offsets = [t * d for t, d in zip(reversed(tap), reversed(dilation), strict=True)]
        for first, c in itertools.product(
            range(0, len(outputs), pixels), range(0, shape[-1] + channels, channels)
        ):
            image, *_ = outputs[first]
            base = at(outputs[first], [0] * len(taps))
            column = load(tensor_map, [c, *reversed(base), image], offsets).view(np.float16)
            column = column.reshape(pixels, channels)
            expect = np.zeros_like(column)  # past the last image, and past the last channel
            for i, output in enumerate(outputs[first : first + pixels]):
                part = pixel(output[0], at(output, tap))[c : c + channels]
                expect[i, : len(part)] = part
            assert (column == expect).all(), (tap, first, c)
            if c < shape[-1]:
                rows = column[: len(outputs) - first]
                sums[first : first + len(rows)] += (
                    rows.astype(np.float32) @ filters[(slice(None), *tap, slice(c, c + channels))].T
                )
    direct = [
        sum(filters[(slice(None), *tap)] @ pixel(o[0],
            at(o, tap)).astype(np.float32) for tap in itertools.product(*map(range, taps)))
        for o in outputs
    ]  # fmt: skip
    assert (sums == np.array(direct)).all()


def test_a_column_begins_anywhere_in_the_box() -> None:
    """Examples 1 and 2 of im2col mode in the PTX ISA: 9 x 14 pixels, columns of 64, offsets 0 and 2."""
    x = np.arange(2 * 14 * 9 * 16, dtype=np.uint16).reshape(2, 14, 9, 16) + 1
    for low, high, offset in ((-1, -1, 0), (0, -2, 2)):
        column = TensorMap(x, (8, 64), im2col=Im2col([low] * 2, [high] * 2))
        last = 9 - 1 + high
        rows = load(column, (8, last, 4, 0), (offset, offset)).view(np.uint16).reshape(64, 8)
        box = list(itertools.product(range(2), range(low, 14 + high), range(low, last + 1)))
        begin = box.index((0, 4, last))
        for row, (n, h, w) in zip(rows, box[begin : begin + 64], strict=True):
            h, w = h + offset, w + offset
            inside = 0 <= h < 14 and 0 <= w < 9
            assert (row == (x[n, h, w, 8:] if inside else 0)).all(), (n, h, w)


X = np.random.default_rng(1).integers(1, 1 << 16, (2, 5, 6, 64)).astype(np.uint16)
WALK = Im2col((-1, -1), (-1, -1))


@pytest.mark.parametrize(("swizzle", "channels"), [("32B", 16), ("64B", 32), ("128B", 64), ("128B", 32)])
def test_swizzles(swizzle: str, channels: int) -> None:
    plain = load(TensorMap(X, (channels, 16), im2col=WALK), (0, 2, 1, 0), (1, 0)).reshape(16, -1)
    span = int(swizzle[:-1])
    expect = np.zeros((16, span), np.uint8)
    expect[:, : plain.shape[1]] = plain
    out = np.zeros(expect.size, np.uint8)
    tensor_map = TensorMap(X, (channels, 16), swizzle, im2col=WALK)
    ptx = load_kernel(4, out.size).replace(f"_, [%r3], {out.size};", f"_, [%r3], {plain.size};")
    if plain.size < out.size:  # the padding of a row is neither written nor read
        with pytest.raises(EmulatorError, match="uninit"):
            launch(ptx, 1, 32, [tensor_map, out, 0, 2, 1, 0, 1, 0], dynamic_smem=out.size)
        return
    launch(ptx, 1, 32, [tensor_map, out, 0, 2, 1, 0, 1, 0], dynamic_smem=out.size)
    assert (out == swizzled(expect.ravel(), swizzle)).all()


def test_a_mask_follows_the_offsets() -> None:
    tensor_map = TensorMap(X, (8, 16), im2col=WALK)
    plain = load(tensor_map, (8, 2, 1, 0), (2, 1))
    assert plain.any() and (plain == load(tensor_map, (8, 2, 1, 0), (2, 1), multicast=True)).all()


def test_what_lies_outside_is_filled_with_nan() -> None:
    x = np.ones((1, 3, 16), np.float32)
    tensor_map = TensorMap(x, (8, 6), im2col=Im2col((-1,), (1,)), fill="nan")
    got = load(tensor_map, (0, -1, 0), (0,), 4).view(np.float32).reshape(6, 8)
    assert np.isnan(got[[0, 4, 5]]).all() and (got[1:4] == 1).all()


STORE = simple(
    """
mov.u32 %r1, %tid.x; mov.u32 %r2, dyn; shl.b32 %r3, %r1, 4; add.u32 %r4, %r2, %r3;
mul.lo.u32 %r5, %r1, 4; add.u32 %r5, %r5, 1; add.u32 %r6, %r5, 1; add.u32 %r7, %r5, 2; add.u32 %r8, %r5, 3;
st.shared.v4.u32 [%r4], {%r5, %r6, %r7, %r8};
fence.proxy.async.shared::cta;
bar.sync 0;
setp.ne.u32 %p1, %r1, 0;
@%p1 bra DONE;
mov.b64 %d1, tm; cvta.param.u64 %d1, %d1; mov.u32 %r20, 4; mov.u32 %r21, 2; mov.u32 %r22, 1; mov.u32 %r23, 0;
cp.async.bulk.tensor.4d.global.shared::cta.im2col_no_offs.bulk_group [%d1, {%r20, %r21, %r22, %r23}], [%r2];
cp.async.bulk.commit_group;
cp.async.bulk.wait_group 0;
DONE:
""",
    ".param .align 64 .b8 tm[128]",
    head=HEAD,
)


@pytest.mark.parametrize("reduce", [False, True])
def test_a_store_goes_through_the_box_too(reduce: bool) -> None:
    """32 pixels of four channels from channel 4, column 2, row 1; the last column and row are excluded."""
    y = np.full((2, 4, 5, 8), 7, np.uint32)
    text = STORE
    if reduce:
        text = STORE.replace(
            "cp.async.bulk.tensor.4d.global.shared::cta.im2col_no_offs",
            "cp.reduce.async.bulk.tensor.4d.global.shared::cta.add.im2col_no_offs",
        )
    launch(text, 1, 32, [TensorMap(y, (4, 32), im2col=Im2col((0, 0), (-1, -1)))], dynamic_smem=512, cluster=1)
    expect = np.full_like(y, 7)
    stored = np.arange(1, 129, dtype=np.uint32).reshape(32, 4)
    box = [(n, h, w) for n in range(2) for h in range(3) for w in range(4)]
    for place, row in zip(box[box.index((0, 1, 2)) :], stored, strict=False):  # the rest is outside
        expect[(*place, slice(4, 8))] = row + 7 * reduce
    assert (y == expect).all()


def test_the_assembler_takes_the_kernels(tmp_path: Path) -> None:
    for text in (STORE, *(load_kernel(dims, 128) for dims in (3, 4, 5)), load_kernel(4, 128, multicast=True)):
        assembles(text, tmp_path)


@pytest.mark.parametrize(
    ("coordinates", "offsets", "message"),
    [
        ((0, 5, 0, 0), (0, 0), "base 5 in dimension 1 is outside of the bounding box, from -1 to 4"),
        ((0, 0, -2, 0), (0, 0), "base -2 in dimension 2 is outside"),
        ((0, 0, 0, 0), (256, 0), "im2col offset 256 exceeds 255"),
        ((4, 0, 0, 0), (0, 0), "no multiple of 16 bytes"),
    ],
)
def test_coordinates_that_cannot_be_meant(coordinates, offsets, message: str) -> None:
    with pytest.raises(EmulatorError, match=message) as error:
        load(TensorMap(X, (8, 4), im2col=WALK), coordinates, offsets)
    assert "[tensor-coordinate]" in str(error.value)


def test_a_map_and_a_copy_of_other_modes() -> None:
    out = np.zeros(64, np.uint8)
    args = [TensorMap(X, (8, 16, 1, 1)), out, 0, 0, 0, 0, 0, 0]
    with pytest.raises(EmulatorError, match="an im2col copy with a tiled map"):
        launch(load_kernel(4, 64), 1, 32, args, dynamic_smem=64)
    tiled = load_kernel(4, 64).replace(".im2col.", ".tile.").replace(", {%h1, %h2};", ";")
    with pytest.raises(EmulatorError, match="a tiled copy with an im2col map"):
        launch(tiled, 1, 32, [TensorMap(X, (8, 4), im2col=WALK), *args[1:]], dynamic_smem=64)


def test_a_map_that_the_kernel_copied() -> None:
    """Reading its bytes is allowed, but gives no encoding."""
    text = load_kernel(4, 64)
    read = (
        "ld.param.b64 %d5, [tm]; ld.param.b64 %d6, [tm+8]; ld.param.u64 %d7, [p1]; "
        "st.global.v2.b64 [%d7], {%d5, %d6};"
    )
    text = text.replace("cvta.param.u64 %d1, %d1;", f"cvta.param.u64 %d1, %d1; {read} mov.u64 %d1, %d7;")
    args = [TensorMap(X, (8, 4), im2col=WALK), np.zeros(128, np.uint8), 0, 0, 0, 0, 0, 0]
    with pytest.raises(EmulatorError, match="a copy of an im2col map"):
        launch(text, 1, 32, args, dynamic_smem=64)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ((".im2col.", ".im2col::w."), "im2col::w is not"),
        ((".4d", ".2d"), "3 to 5 dimensions"),
        ((", {%h1, %h2};", ";"), "3 operands, expected 4"),
        ((", {%h1, %h2};", ", {%h1};"), "im2col offsets has 1 items, expected 2"),
        ((".im2col.", ".im2col_no_offs."), "im2col_no_offs"),
    ],
)
def test_other_forms_are_refused(change: tuple[str, str], message: str) -> None:
    text = load_kernel(4, 64)
    assert change[0] in text
    with pytest.raises(UnsupportedInstruction, match=message):
        launch(text.replace(*change), 1, 32, [None] * 8)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"im2col": Im2col((-129, 0), (0, 0))}, "lower corner .* expected 2 numbers from -128 to 127"),
        ({"im2col": Im2col((0, 0), (0,))}, "upper corner .* expected 2 numbers"),
        ({"im2col": Im2col((0, 0), (0, 0), (1, 9))}, "steps .* from 1 to 8"),
        ({"im2col": Im2col((2, 0), (-4, 0))}, "from 2 to 1 in a dimension of 6 pixels is empty"),
        ({"box": (8, 1025)}, "1 to 1024 pixels"),
        ({"box": (8, 4, 1, 1)}, "channels per pixel, pixels per column"),
        ({"box": (4, 4)}, "8 bytes, not a multiple of 16"),
        ({"box": (64, 4), "swizzle": "64B"}, "more than the swizzle span"),
        ({"array": X[0, 0]}, "3 to 5 dimensions, not of 2"),
    ],
)
def test_maps_that_the_driver_would_refuse(fields: dict, message: str) -> None:
    tensor_map = TensorMap(**{"array": X, "box": (8, 4), "im2col": WALK, **fields})
    with pytest.raises(LaunchError, match=message):
        load(tensor_map, (0, 0, 0, 0), (0, 0))


def test_a_descriptor_says_what_the_call_says() -> None:
    """It is found in raw parameters, and its copy is that of a TensorMap."""
    strides = tuple(reversed(X.strides))[1:]
    d = Descriptor(
        X.ctypes.data,
        1,
        tuple(reversed(X.shape)),
        strides,
        (8, 12),
        (1, 2, 1, 1),
        lower=(-1, 0),
        upper=(0, -1),
    )
    assert Descriptor.decode(d.encode()) == d
    out = np.zeros(192, np.uint8)
    numbers = [n.to_bytes(4, "little") for n in (16, 1, 2, 0)] + [n.to_bytes(2, "little") for n in (0, 1)]
    params = [d.encode(), out.ctypes.data.to_bytes(8, "little"), *numbers]
    launch(load_kernel(4, 192), 1, 32, RawArguments(params, [Region(X), Region(out)]), dynamic_smem=192)
    same = TensorMap(X, (8, 12), im2col=Im2col((-1, 0), (0, -1), (2, 1)))
    assert out.any() and (out == load(same, (16, 1, 2, 0), (0, 1))).all()
    with pytest.raises(LaunchError, match="images one by one"):
        Descriptor(**{**vars(d), "element_strides": (1, 1, 1, 2)}).row(0, "x")


def test_a_tiled_map_with_element_strides_is_not_copied_as_if_it_had_none() -> None:
    strides = tuple(reversed(X.strides))[1:]
    d = Descriptor(X.ctypes.data, 1, tuple(reversed(X.shape)), strides, (8, 4, 1, 1), (1, 2, 1, 1))
    out = np.zeros(64, np.uint8)
    numbers = [(0).to_bytes(4, "little")] * 4 + [bytes(2)] * 2
    text = load_kernel(4, 64).replace(".im2col.", ".tile.").replace(", {%h1, %h2};", ";")
    with pytest.raises(EmulatorError, match="element stride 2"):
        params = [d.encode(), out.ctypes.data.to_bytes(8, "little"), *numbers]
        launch(text, 1, 32, RawArguments(params, [Region(X), Region(out)]), dynamic_smem=64)
