"""tcgen05.mma with block-scaled operands of 4, 6 and 8 bits, from shared memory to the accumulator."""

import numpy as np
import pytest

from ptx_emulator import Interleaving, UnsupportedInstruction, interleavings, launch

from .kernels import assembles, simple
from .probes import canonical
from .test_narrow import FORMATS, table
from .test_tensor_core import HEAD, sm100_desc, stage

CODES = {"e4m3": 0, "e5m2": 1, "e2m3": 3, "e3m2": 4, "e2m1": 5}
STEPS = 4  # instructions along K; each reads 32 bytes of a row


def values(fmt: str, codes: np.ndarray) -> np.ndarray:
    bits = sum(FORMATS[fmt])
    return table(fmt)[codes & ((1 << bits) - 1)] * np.where(codes >> bits, -1.0, 1.0)


def drawn(fmt: str, shape: tuple[int, int], seed: int) -> np.ndarray:
    """Codes of small numbers of a format, whose products add up exactly."""
    rng = np.random.default_rng(seed)
    small = np.flatnonzero((table(fmt) <= 4) & (table(fmt) % 0.25 == 0))
    return rng.choice(small, shape) | rng.integers(0, 2, shape) << sum(FORMATS[fmt])


def pack(fmt: str, codes: np.ndarray, wide: bool) -> np.ndarray:
    """Rows of bytes: two codes of e2m1 per byte; if `wide`, sixteen per 16 bytes, packed at the start."""
    bits = 1 + sum(FORMATS[fmt])
    if not wide:
        return (codes[:, 0::2] | codes[:, 1::2] << 4).astype(np.uint8)
    groups = codes.reshape(len(codes), -1, 16).astype(object)
    out = np.zeros((*groups.shape[:2], 16), np.uint8)
    for r, row in enumerate(groups):
        for g, group in enumerate(row):
            number = sum(int(x) << (bits * i) for i, x in enumerate(group))
            out[r, g] = np.frombuffer(number.to_bytes(16, "little"), np.uint8)
    return out.reshape(len(codes), -1)


def cells(factors: np.ndarray, halves: bool) -> np.ndarray:
    """Rows of four factors as tcgen05.cp reads them: row r of 32 has those of rows r, r + 32, r + 64, ..."""
    images = []
    for part in (
        np.split(factors, 2) if halves else [factors[i : i + 128] for i in range(0, len(factors), 128)]
    ):
        image = np.zeros((32, 16), np.uint8)
        for r, row in enumerate(part):
            image[r % 32, 4 * (r // 32) : 4 * (r // 32) + 4] = row
        images.append(image)
    return np.concatenate(images).reshape(-1)


class Product:
    """D = A B^T by ``STEPS`` instructions with random operands and factors, as a kernel and as numbers.

    TMEM: D in columns 0 to n - 1; the factors of A from 256 on, four columns per four factors of a row; those
    of B from 288 on, eight columns.
    """

    def __init__(
        self, form: str, a: str, b: str, m: int, n: int, block: int, scale: str, span: int, ctas: int = 1
    ) -> None:
        self.form, self.m, self.n, self.ctas = form, m, n, ctas
        self.rows = m // ctas
        wide = "mxf4" not in form
        depth = 32 if wide else 64
        self.factors = depth // block
        self.halves = self.rows == 64
        codes = [drawn(f, (size, STEPS * depth), i) for i, (f, size) in enumerate(((a, m), (b, n)))]
        rng = np.random.default_rng(9)
        shape = [(size, STEPS * self.factors) for size in (m, n)]
        if scale == "ue8m0":
            scales = [rng.integers(124, 130, s) for s in shape]
            numbers = [2.0 ** (x - 127) for x in scales]
        else:
            scales = [rng.integers(0x28, 0x48, s) for s in shape]
            numbers = [table("e4m3")[x] for x in scales]
        full = [values(f, c) * np.repeat(x, block, 1) for f, c, x in zip((a, b), codes, numbers, strict=True)]
        self.expect = full[0] @ full[1].T
        self.images, self.desc = [], []
        for f, c in zip((a, b), codes, strict=True):
            parts = [canonical(pack(f, x, wide), span, 0, 1) for x in np.split(c, ctas)]
            self.images.append(np.concatenate([x[0] for x in parts]))
            self.desc.append(sm100_desc(parts[0][2], span, parts[0][1]))
            self.step = (2 * parts[0][1] if span == 0 else 32) >> 4
        sets = STEPS * self.factors // 4
        for x, split in zip(scales, (True, False), strict=True):
            of_cta = np.split(x, ctas) if split else [x] * ctas
            halves = self.halves and not split
            self.images.append(
                np.concatenate([cells(p[:, 4 * s : 4 * s + 4], halves) for p in of_cta for s in range(sets)])
            )
        number = {f: CODES[f] if wide else 1 for f in (a, b)}
        self.idesc = (
            number[a] << 7 | number[b] << 10 | (n >> 3) << 17 | (m >> 4) << 24 | (scale == "ue8m0") << 23
        )

    def text(self) -> str:
        ctas, n = self.ctas, self.n
        sizes = [len(x) // ctas for x in self.images]
        at = [sum(sizes[:i]) for i in range(4)]
        columns = n // 2 if self.halves else n
        load = "".join(
            f"add.u32 %r30, %r10, {c};\ntcgen05.ld.sync.aligned.32x32b.x8.b32 "
            f"{{{', '.join(f'%r{50 + i}' for i in range(8))}}}, [%r30];\n"
            "tcgen05.wait::ld.sync.aligned;\n"
            + "".join(f"st.global.b32 [%d9+{4 * (c + i)}], %r{50 + i};" for i in range(8)) + "\n"
            for c in range(0, columns, 8)
        )  # fmt: skip
        copies = ""
        sets = STEPS * self.factors // 4
        for operand, first, stride in ((2, 256, 4), (3, 288, 8)):
            halves = self.halves and operand == 3
            shape, size = ("64x128b.warpx2::01_23", 1024) if halves else ("32x128b.warpx4", 512)
            for s in range(sets):
                for part in range(sizes[operand] // sets // size):
                    offset = (at[operand] + s * (sizes[operand] // sets) + part * size) >> 4
                    copies += (
                        f"add.u64 %d5, %d1, {sm100_desc(128, 0, 16) + offset}; "
                        f"add.u32 %r31, %r10, {first + stride * s + 4 * part};\n"
                        f"tcgen05.cp.cta_group::{ctas}.{shape} [%r31], %d5;\n"
                    )
        steps = ""
        for i in range(STEPS):
            byte, cell = i * self.factors % 4, i * self.factors // 4
            steps += (
                f"add.u64 %d2, %d1, {self.desc[0] + (at[0] >> 4) + i * self.step}; "
                f"add.u64 %d3, %d1, {self.desc[1] + (at[1] >> 4) + i * self.step};\n"
                f"mov.u32 %r7, {self.idesc | byte << 29 | byte << 4}; setp.ne.u32 %p4, {i}, 0;\n"
                f"add.u32 %r32, %r10, {256 + 4 * cell}; add.u32 %r33, %r10, {288 + 8 * cell};\n"
                f"tcgen05.mma.cta_group::{ctas}.{self.form} [%r10], %d2, %d3, %r7, [%r32], [%r33], %p4;\n"
            )
        stages = "".join(
            stage(f"p{i}", "%r2", size, at[i]).replace(f"ld.param.u64 %d20, [p{i}];",
                f"ld.param.u64 %d20, [p{i}]; mul.wide.u32 %d23, %r9, {size}; add.u64 %d20, %d20, %d23;")
            for i, size in enumerate(sizes)
        )  # fmt: skip
        every = (
            "bar.sync 0;" if ctas == 1 else "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
        )
        commit = (
            "shared::cluster.b64 [%r3]" if ctas == 1 else "shared::cluster.multicast::cluster.b64 [%r3], %h1"
        )
        return simple(
            f"""
.shared .align 8 .b8 bar[8];
.shared .align 4 .b8 tm[4];
mov.u32 %r1, %tid.x; mov.u32 %r2, dyn; mov.u32 %r3, bar; mov.u32 %r4, tm; mov.u32 %r9, %cluster_ctarank; \
mov.u16 %h1, 3;
setp.ne.u32 %p1, %r1, 0; shr.u32 %r5, %r1, 5; setp.ne.u32 %p2, %r5, 0;
@!%p1 mbarrier.init.shared::cta.b64 [%r3], 1;
fence.mbarrier_init.release.cluster;
@%p2 bra ALLOCATED;
tcgen05.alloc.cta_group::{ctas}.sync.aligned.shared::cta.b32 [%r4], 512;
ALLOCATED:
{stages}
fence.proxy.async.shared::cta;
{every}
ld.shared.u32 %r10, [%r4];
setp.ne.u32 %p6, %r9, 0; or.pred %p1, %p1, %p6;
@%p1 bra WAIT;
shr.u32 %r6, %r2, 4; cvt.u64.u32 %d1, %r6;
{copies}{steps}
tcgen05.commit.cta_group::{ctas}.mbarrier::arrive::one.{commit};
WAIT:
mbarrier.try_wait.parity.shared::cta.b64 %p5, [%r3], 0;
@!%p5 bra WAIT;
tcgen05.fence::after_thread_sync;
mad.lo.u32 %r36, %r9, 128, %r1;
mul.wide.u32 %d8, %r36, {4 * columns}; ld.param.u64 %d9, [p4]; add.u64 %d9, %d9, %d8;
{load}
tcgen05.fence::before_thread_sync;
{every}
@%p2 bra DONE;
tcgen05.dealloc.cta_group::{ctas}.sync.aligned.b32 %r10, 512;
DONE:
""",
            ", ".join(f".param .u64 p{i}" for i in range(5)),
            target="sm_100a",
            head=HEAD,
        ).replace(".version 8.7", ".version 8.8")

    def run(self, text: str | None = None, **kw):
        """The report, and whether D is right."""
        columns = self.n // 2 if self.halves else self.n
        out = np.zeros((self.ctas, 128, columns), np.float32)
        report = launch(
            text or self.text(), self.ctas, 128, [*self.images, out], cluster=self.ctas,
            dynamic_smem=sum(map(len, self.images)) // self.ctas, **kw,
        )  # fmt: skip
        if self.halves:  # lanes 64 to 127 hold the second half of N
            out = np.concatenate([out[:, :64], out[:, 64:]], 2)
        return report, (out.reshape(self.m, self.n) == self.expect).all()


MX8 = "kind::mxf8f6f4.block_scale"
FORMS = {
    "mxf8": (MX8, "e4m3", "e5m2", 32, "ue8m0"),
    "mxf8-block32": (MX8 + ".block32", "e5m2", "e4m3", 32, "ue8m0"),
    "mxf6": (MX8 + ".scale_vec::1X", "e2m3", "e3m2", 32, "ue8m0"),
    "mxf4-wide": (MX8, "e2m1", "e4m3", 32, "ue8m0"),
    "mxf4": ("kind::mxf4.block_scale.scale_vec::2X", "e2m1", "e2m1", 32, "ue8m0"),
    "mxf4-default": ("kind::mxf4.block_scale", "e2m1", "e2m1", 32, "ue8m0"),
    "nvf4": ("kind::mxf4nvf4.block_scale.scale_vec::4X", "e2m1", "e2m1", 16, "ue4m3"),
    "nvf4-block16": ("kind::mxf4nvf4.block_scale.block16", "e2m1", "e2m1", 16, "ue8m0"),
    "nvf4-2X": ("kind::mxf4nvf4.block_scale.block32", "e2m1", "e2m1", 32, "ue8m0"),
}


def product(name: str, m: int = 128, n: int = 64, span: int = 128, ctas: int = 1) -> Product:
    form, a, b, block, scale = FORMS[name]
    return Product(form, a, b, m, n, block, scale, span, ctas)


@pytest.mark.parametrize("n", [8, 136])
@pytest.mark.parametrize("span", [0, 128])
@pytest.mark.parametrize("name", FORMS)
def test_scaled_products(name, span, n):
    report, right = product(name, n=n, span=span).run(strict_fences=True)
    assert report.ok and right, report


@pytest.mark.parametrize("m", [128, 256])
@pytest.mark.parametrize("name", ["mxf8", "mxf4", "nvf4"])
def test_scaled_products_of_two_ctas(name, m):
    report, right = product(name, m=m, n=128, ctas=2).run(interleaving=Interleaving.random(m))
    assert report.ok and right, report


def test_a_scaled_product_is_right_under_many_interleavings():
    case = product("nvf4")
    for s in interleavings(20):
        report, right = case.run(interleaving=s, strict_fences=True, strict_lapping=True, strict_exits=True)
        assert report.ok and right, f"{report} under {s}"


@pytest.mark.parametrize("fmts", [("e2m1", "e4m3"), ("e2m3", "e3m2"), ("e5m2", "e2m1")])
def test_operands_of_4_and_6_bits_without_factors(fmts):
    case = Product("kind::f8f6f4", *fmts, 128, 32, 32, "ue8m0", 128)
    text = case.text()
    case.expect = None
    ones = [np.full_like(x, 127) if i > 1 else x for i, x in enumerate(case.images)]
    scaled = text.replace("kind::f8f6f4", MX8)
    plain = text.replace(", [%r32], [%r33]", "")
    for old in (case.idesc | b << 29 | b << 4 for b in range(4)):
        plain = plain.replace(f"mov.u32 %r7, {old};", f"mov.u32 %r7, {case.idesc & ~(1 << 23) | 1 << 4};")
    outs = []
    for t in (scaled, plain):
        outs.append(np.zeros((128, 32), np.float32))
        launch(t, 1, 128, [*ones, outs[-1]], dynamic_smem=sum(map(len, ones)))
    assert (outs[0] == outs[1]).all() and outs[0].any()


def code_of(case: Product, text: str) -> set[str]:
    return {f.code for f in case.run(text, check="report")[0].errors}


def test_slips_are_found():
    case = product("mxf8")
    text = case.text()
    assert code_of(case, text) == set()
    lines = text.splitlines(keepends=True)
    copies = [i for i, x in enumerate(lines) if x.startswith("tcgen05.cp")]
    without = "".join(x for i, x in enumerate(lines) if i != copies[-1])
    assert code_of(case, without) == {"uninit-memory"}, "factors of B that nothing wrote"
    others = text.replace("32x128b.warpx4", "64x128b.warpx2::02_13", 1)
    assert "scale-factor-copies" in code_of(case, others), "two quarters of the lanes have other factors"
    for old, new, code in [
        (f"mov.u32 %r7, {case.idesc};", f"mov.u32 %r7, {case.idesc ^ 1 << 23};", "instruction-descriptor"),
        (f"mov.u32 %r7, {case.idesc};", f"mov.u32 %r7, {case.idesc | 1 << 31};", "unsupported"),
        ("add.u32 %r32, %r10, 256;", "add.u32 %r32, %r10, 510;", "tmem-out-of-bounds"),
        ("add.u32 %r32, %r10, 256;", "add.u32 %r32, %r10, 0x200100;", "tmem-lane"),
    ]:
        assert old in text
        assert code in code_of(case, text.replace(old, new)), new


def test_the_version_of_sparsity_says_nothing_of_a_dense_product():
    """CuTe DSL sets bit 12, which does not belong to B's format beside 4-bit formats."""
    case = product("nvf4")
    text = case.text().replace(f"mov.u32 %r7, {case.idesc};", f"mov.u32 %r7, {case.idesc | 1 << 12};")
    assert text != case.text() and code_of(case, text) == set()


@pytest.mark.parametrize(
    "bit", [29, 15, 16, 3, 6], ids=["id", "A MN-major", "B MN-major", "reserved", "reserved 6"]
)
def test_fields_of_the_instruction_descriptor_are_checked(bit):
    case = product("nvf4")
    text = case.text()
    wrong = text.replace(f"mov.u32 %r7, {case.idesc};", f"mov.u32 %r7, {case.idesc | 1 << bit};")
    assert "instruction-descriptor" in code_of(case, wrong)


@pytest.mark.parametrize(
    "form",
    [
        "kind::mxf8f6f4.block_scale.scale_vec::2X",
        "kind::mxf4.block_scale.block16",
        "kind::mxf4nvf4.block_scale",
        "kind::mxf4nvf4",
        "sp.kind::mxf4.block_scale",
        "kind::f16.block_scale",
    ],
)
def test_forms_that_do_not_exist_are_refused(form):
    case = product("mxf4")
    with pytest.raises(UnsupportedInstruction):
        case.run(case.text().replace(case.form, form))


@pytest.mark.parametrize("name", FORMS)
def test_ptxas_accepts(name, tmp_path):
    assembles(product(name, n=8).text(), tmp_path)


def test_ptxas_accepts_two_ctas(tmp_path):
    assembles(product("nvf4", m=128, n=128, ctas=2).text(), tmp_path)
