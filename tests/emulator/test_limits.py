"""Hostile and malformed programs and launches give a typed error or a finding, no crash and no false ok."""

import importlib
import pickle
import re

import numpy as np
import pytest

from ptx_emulator import (
    EmulatorError,
    Interleaving,
    LaunchError,
    PtxEmulatorError,
    PtxSyntaxError,
    TensorMap,
    UnsupportedInstruction,
    launch,
    parser,
)
from ptx_emulator.parser import MAX_REGISTERS
from ptx_emulator.script.errors import UnsupportedCall

from .kernels import REDUCE, elementwise, simple

COUNT = (
    "ld.param.u64 %d1, [p0]; mov.u32 %r1, 0;\nLOOP: add.u32 %r1, %r1, 1; "
    "st.relaxed.gpu.global.u32 [%d1], %r1; bra LOOP;"
)


def codes(report):
    return {f.code for f in report.errors}


def test_an_error_at_a_line_of_a_declaration_keeps_what_it_holds():
    with pytest.raises(EmulatorError) as raised:
        launch(NOISY, 1, 1, [np.zeros(4, np.uint32)])
    placed = raised.value.at("program.py:7: row")
    again = pickle.loads(pickle.dumps(placed))
    for error in (placed, again):
        assert type(error) is EmulatorError and str(error) == f"program.py:7: row: {raised.value}"
        assert error.where == "program.py:7: row" and error.finding.code == "out-of-bounds-global"
        assert error.report.warning_count == 8
    call = UnsupportedCall("cuThing", fix="leave it out").at("program.py:7: row")
    assert str(pickle.loads(pickle.dumps(call))) == str(call)
    assert str(call).startswith("program.py:7: row: error[SCRIPT_UNSUPPORTED] cuThing: expected")


# Eight warnings (divisions by zero), then an error: a load outside the array.
NOISY = simple(
    "mov.u32 %r1, 0;\n"
    + "div.u32 %r2, 7, %r1;\n" * 8
    + "ld.param.u64 %d1, [p0]; ld.global.u32 %r3, [%d1+4096];"
)


@pytest.mark.parametrize("kept", [0, 1, 8, 50])
def test_no_error_is_dropped_for_the_warnings_before_it(kept):
    x = np.zeros(4, np.uint32)
    report = launch(NOISY, 1, 1, [x], check="report", max_findings=kept)
    assert not report.ok and codes(report) == {"out-of-bounds-global"}
    assert (report.error_count, report.warning_count) == (1, 8)
    assert len(report.findings) == 1 + min(kept, 8)
    with pytest.raises(EmulatorError) as raised:
        launch(NOISY, 1, 1, [x], max_findings=kept)
    assert raised.value.finding.code == "out-of-bounds-global"


def test_errors_beyond_max_findings_are_kept():
    stores = "".join(f"st.shared.u32 [%r2+{4 * i}], %r3;\n" for i in range(6))
    ptx = simple(
        ".shared .align 4 .b8 buf[64];\nmov.u32 %r1, %tid.x; mov.u32 %r2, buf; shr.u32 %r3, %r1, 5;\n"
        + stores,
        "",
    )
    report = launch(ptx, 1, 64, check="report", max_findings=2)
    assert len(report.errors) == report.error_count == 6 and not report.ok


def test_an_error_travels_between_processes():
    with pytest.raises(EmulatorError) as raised:
        launch(NOISY, 1, 1, [np.zeros(4, np.uint32)])
    again = pickle.loads(pickle.dumps(raised.value))
    assert isinstance(again, PtxEmulatorError) and str(again) == str(raised.value)
    assert again.finding == raised.value.finding and again.code == "EMULATOR"


LOCAL = simple(
    ".local .align 16 .b8 depot[64];\nmov.u32 %r1, 1; mov.u64 %d1, depot; cvta.local.u64 %d2, %d1; "
    "ld.param.u64 %d3, [p0];\n@",
)


@pytest.mark.parametrize(
    ("access", "code"),
    [
        ("st.local.u32 [-16], %r1;", "out-of-bounds-local"),
        ("st.local.u32 [%d1+-16], %r1;", "out-of-bounds-local"),
        ("ld.local.u32 %r2, [-4];", "out-of-bounds-local"),
        ("st.local.u32 [%d1+64], %r1;", "out-of-bounds-local"),
        ("st.local.v4.u32 [%d1+56], {%r1, %r1, %r1, %r1};", "out-of-bounds-local"),
        ("st.local.u32 [%d1+2], %r1;", "misaligned"),
        ("st.u32 [%d2+64], %r1;", "out-of-bounds-local"),
        ("ld.param.u32 %r2, [-8];", "out-of-bounds-param"),
        ("ld.param.v2.u64 {%d4, %d5}, [p0+-16];", "out-of-bounds-param"),
        ("ld.global.u32 %r2, [-4];", "out-of-bounds-global"),
        ("ld.global.v4.u32 {%r2, %r3, %r4, %r5}, [%d3+16];", "out-of-bounds-global"),
        ("st.shared.u32 [-16], %r1;", "out-of-bounds-shared"),
        ("atom.shared.add.u32 %r2, [-8], %r1;", "out-of-bounds-shared"),
        ("cp.async.ca.shared.global [-16], [%d3], 16;", "out-of-bounds-shared"),
        ("bar.sync 16;", "barrier-number"),
        ("bar.sync -1;", "barrier-number"),
        ("bar.sync 1, 40;", "barrier-count"),
        ("mbarrier.init.shared.b64 [-8], 1;", "out-of-bounds-shared"),
    ],
)  # fmt: skip
def test_every_access_is_checked(access, code):
    report = launch(LOCAL.replace("@", access), 1, 1, [np.zeros(4, np.uint32)], check="report")
    assert codes(report) == {code}, report


def test_tensor_memory_is_checked():
    """Lanes and columns from a register, in the operands of a matrix instruction and of copies."""
    from .kernels import TMEM_A, run_tmem_a

    for old, new, code in [
        ("add.u32 %r20, %r6, 16;", "add.u32 %r20, %r6, 0x7FFF0010;", "tmem-lane"),
        ("add.u32 %r20, %r6, 16;", "add.u32 %r20, %r6, 0xFFF0;", "tmem-out-of-bounds"),
    ]:
        assert old in TMEM_A
        report, _ = run_tmem_a(TMEM_A.replace(old, new), Interleaving.lockstep())
        assert code in codes(report), report


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (f".reg .b32 %q<{MAX_REGISTERS}>;", "registers"),
        (".local .align 8 .b8 depot[100000000000];", "local memory"),
        (".local .align 8 .b8 depot[9000000000000];", "depot has"),
        (".shared .align 8 .b8 depot[300000];", "shared memory"),
        (".global .align 8 .b8 depot[100000000000];", "module variables"),
        (".shared .align 3 .b8 depot[3];", "power of two"),
        (".shared .align 0 .b8 depot[3];", "power of two"),
        (".global .b32 depot[2] = {1, 2, 3};", "longer"),
        (".global .b32 depot[2] = {1, x};", "not a list"),
        (".shared .b8 a[4]; .shared .b8 a[8];", "twice"),
    ],
)
def test_sizes_are_limited(text, why):
    with pytest.raises((PtxSyntaxError, LaunchError), match=why):
        launch(simple(text, ""), 1, 1)


def test_a_box_larger_than_shared_memory_is_not_enumerated():
    x = np.zeros((1, 1, 1, 1, 16), np.uint8)
    load = simple(
        """
.shared .align 128 .b8 buf[128];
.shared .align 8 .b8 bar[8];
mov.u32 %r1, buf; mov.u32 %r2, bar; mov.u32 %r3, 0; mov.u64 %d1, p0; cvta.param.u64 %d1, %d1;
mbarrier.init.shared.b64 [%r2], 1;
cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r1], [%d1, {%r3, %r3, \
%r3, %r3, %r3}], [%r2];
""",
        ".param .align 64 .b8 p0[128]",
    )
    report = launch(load, 1, 1, [TensorMap(x, box=(16, 256, 256, 256, 256))], check="report")
    assert codes(report) == {"out-of-bounds-shared"}


@pytest.mark.parametrize(
    ("change", "error", "why"),
    [
        ({"grid": (2**31, 1, 1)}, LaunchError, "limit"),
        ({"grid": (1, 65536)}, LaunchError, "limit"),
        ({"grid": (2**31 - 1, 65535, 65536)}, LaunchError, "limit"),
        ({"block": (1, 1, 128)}, LaunchError, "limit"),
        ({"grid": "all"}, LaunchError, "integers"),
        ({"grid": 1.5}, LaunchError, "integers"),
        ({"grid": ()}, LaunchError, "one to three"),
        ({"dynamic_smem": -1}, LaunchError, "outside"),
        ({"dynamic_smem": "much"}, LaunchError, "integer"),
        ({"registers_per_thread": 1 << 70}, LaunchError, "outside"),
        ({"max_findings": -1}, LaunchError, "outside"),
        ({"instruction_limit": "none"}, LaunchError, "integer"),
        ({"instruction_limit": -5}, LaunchError, "outside"),
        ({"instruction_limit": 10**5000}, LaunchError, "instruction_limit"),
        ({"grid": 10**5000}, LaunchError, "grid"),
        ({"args": [10**5000, 2]}, LaunchError, "does not fit"),
        ({"names": ["x"]}, LaunchError, "names"),
        ({"check": "never"}, LaunchError, "raise"),
        ({"ptx": b".version 8.7"}, LaunchError, "ptx"),
        ({"args": [np.array([None, 1]), np.zeros(1, np.float32)]}, LaunchError, "objects"),
        ({"args": [1 << 80, 2]}, LaunchError, "does not fit"),
        ({"args": [1e400, 2]}, LaunchError, "bytes|cannot be passed"),
    ],
)
def test_launches_that_cannot_be_are_refused(change, error, why):
    kw = {
        "ptx": REDUCE,
        "grid": 1,
        "block": 256,
        "args": [np.zeros(256, np.float32), np.zeros(1, np.float32)],
    }
    with pytest.raises(error, match=why):
        launch(**{**kw, **change})


@pytest.mark.parametrize(
    "fields",
    [{"seed": 1 << 64}, {"seed": 10**5000}, {"seed": 1.5}, {"resident": 0}, {"slow_warp": 99},
     {"choices": (-1,)}, {"async_policy": "never"}]
)  # fmt: skip
def test_schedules_are_checked(fields):
    with pytest.raises(LaunchError):
        Interleaving(**fields)


@pytest.mark.parametrize(
    "fields",
    [{"dims": ("x",)}, {"dims": (10**5000,)}, {"offset": 10**5000}, {"dims": (1 << 40,)}, {"box": (1.5,)},
     {"dtype": "pred"}, {"dtype": "none"}, {"offset": 1 << 70}],
)  # fmt: skip
def test_tensor_maps_are_checked(fields):
    with pytest.raises(LaunchError):
        launch(
            simple("", ".param .align 64 .b8 p0[128]"),
            1,
            1,
            [TensorMap(np.zeros(64, np.uint8), **{"box": (16,), **fields})],
        )


def test_an_endless_loop_ends_by_default(monkeypatch):
    monkeypatch.setattr(importlib.import_module("ptx_emulator.launch"), "INSTRUCTIONS_PER_CTA", 5000)
    x = np.zeros(1, np.uint32)
    with pytest.raises(EmulatorError, match="more than 5000 warp instructions for each") as raised:
        launch(simple(COUNT), (1 << 30, 5), 1, [x])
    assert raised.value.finding.code == "instruction-limit"
    assert 1000 < x[0] < 5000
    ends = COUNT.replace("bra LOOP;", "setp.lt.u32 %p1, %r1, 900; @%p1 bra LOOP;")
    launch(simple(ends), 3, 1, [x])  # the limit is per CTA, not per grid
    with pytest.raises(EmulatorError, match="more than 700 warp"):
        launch(simple(COUNT), 1, 1, [x], instruction_limit=700)
    launch(
        simple(COUNT.replace("bra LOOP;", "setp.lt.u32 %p1, %r1, 9000; @%p1 bra LOOP;")),
        1,
        1,
        [x],
        instruction_limit=0,
    )


def test_nested_blocks_are_looked_through_once(monkeypatch):
    """However deep blocks are nested, the text is scanned once, and a name is looked up once."""
    searched, walked = [], []
    find = parser._Parser.find_labels
    monkeypatch.setattr(parser._Parser, "find_labels", lambda self: searched.append(0) or find(self))
    monkeypatch.setattr(parser._Parser, "matching_brace", lambda self, start: searched.append(start))
    monkeypatch.setattr(
        parser._Registers,
        "hidden",
        property(lambda self: walked.append(0), lambda self, x: None),
        raising=False,
    )
    levels = "{ .reg .b32 %r<1>;\n.reg .b32 one;\nL: mov.b32 %r0, one; mov.b32 %d1, %d2; bra L;\n"
    program = parser.parse(simple("mov.b32 %r63, %r0;" + levels * 5000 + "}" * 5000)).entries["k"]
    assert len(program.body) == 2 + 3 * 5000 and len(program.labels) == 5000
    assert len(searched) == 1 and len(walked) <= 3 * 5000


def test_a_name_means_what_the_innermost_block_declares():
    text = """
{ .reg .b32 %r<2>; .reg .b32 x; mov.b32 x, %r1; mov.b32 x, %r2;
  { .reg .b32 %r1; .reg .b32 %r1<3>; mov.b32 x, %r1; mov.b32 x, %r12; mov.b32 x, %r13; }
  mov.b32 x, %r1;
L: { bra L; L: bra L; }
  bra L; }
mov.b32 %r0, %r1; bra L; L: ret;
"""
    entry = parser.parse(simple(text)).entries["k"]
    sources = [(s.operands[1].slot, s.operands[1].name) for s in entry.body if s.opcode == "mov.b32"]
    outer = {name: slot for slot, name in sources}["%r2"] - 2  # the slot of the kernel's own %r0
    slots = [slot for slot, _ in sources]
    inner = slots[0]
    assert slots == [inner, outer + 2, inner + 2, inner + 3 + 2, outer + 13, inner, outer + 1]
    targets = [entry.labels[s.operands[0].name] for s in entry.body if s.opcode == "bra"]
    assert targets == [7, 7, 6, 11]


@pytest.mark.parametrize("text", ["/*" * 3 + "ret;}", "{" * 3 + "ret;}", "ret;", "{ mov.b32 %q0, 1; }"])
def test_blocks_and_comments_that_do_not_end_are_refused(text):
    with pytest.raises(PtxSyntaxError):
        parser.parse(simple("")[: -len("ret;\n}\n")] + text)


@pytest.mark.parametrize("guard", ["@%r1", "@!%r1", "@%laneid", "@%d1"])
def test_a_guard_is_a_predicate(guard):
    with pytest.raises(PtxSyntaxError, match="no predicate"):
        launch(simple(f"{guard} mov.u32 %r2, 1;"), 1, 1, [None])


@pytest.mark.parametrize(
    "body",
    [
        "add.f32 {%f1, %f2, %f3, %f4, %f5}, %f1, %f2;",
        "add.u32 5, %r1, %r2;",
        "add.u32 [%r1], %r1, %r2;",
        "add.u32 %r1, _, %r2;",
        "add.u32 %r1, {}, %r2;",
        "mov.b32 %r1, {};",
        "mov.b32 {}, %r1;",
        "mov.b32 %r1, {%h1, %h2, %h3};",
        "mov.none %r1, %r2;",
        "ld.global.pred %p1, [%d1];",
        "ld.global.v4.u32 {%r1, %r2}, [%d1];",
        "st.global.v2.u32 [%d1], {%r1, %r2, %r3};",
        "st.none [%d1], %r1;",
        "atom.global.add.u32 {%r1, %r2}, [%d1], %r3;",
        "red.global.add.u32 [%d1], {%r1, %r2};",
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.pred [%d1], [%r1], 16;",
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.b128 [%d1], [%r1], 16;",
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f1, %f2, %f3, %f4}, {%r1, %r2, %r3, %r4, "
        "%r5, %r6}, {%r1, %r2}, {%f1, %f2, %f3, %f4};",
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f1, %f2, %f3, 4}, {%r1, %r2, %r3, %r4}, "
        "{%r1, %r2}, {%f1, %f2, %f3, %f4};",
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f1, %f2, %f3, 7}, %d1, %d2, 1, 1, 1, 0, 0;",
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f1, %f2}, %d1, %d2, 1, 1, 1, 0, 0;",
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16;",
        "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r1, %r2, %r3}, [%r4];",
        "tcgen05.ld.sync.aligned.32x32b.x2.b32 {%r1, 7}, [%r4];",
        "tcgen05.alloc.sync.aligned.shared::cta.b32 [%r4], 32;",
        "tcgen05.cta_group::1;",
        "bra NOWHERE;",
        "brx.idx %r1, NOWHERE;",
        "mul.wide.s64 %d1, %d2, %d3;",
        "cvt.b128.u32 %r1, %r2;",
        "shfl.sync.idx.b32 %r1, %r2;",
        "mbarrier.arrive.shared.b64;",
        "mov.u32 %r1, 99999999999999999999999;",
        "mov.u32 %r1, [%r2+99999999999999999999999];",
        "mov.u32 %r1, %r2|%r3|%r4;",
        "mov.u32 %r1, ?x;",
        "mov.u32 %r1, {%r2;",
        "mov.u32 %r1, " + "{" * 3000 + "%r2" + "}" * 3000 + ";",
        "mov.u32 %r1, " + "[" * 3000 + "%r2" + "]" * 3000 + ";",
        "mov.u32 %r1, %r" + "9" * 6000 + ";",
        "X: X: add.u32 %r1, %r1, 1;",
        "X: add.u32 %r1, %r1, 1; X: add.u32 %r1, %r1, 1;",
        ".loc 1 zz 3\nadd.u32 %r1, %r1, 1;",
        "mov.u32 %r1, \u00b2;",
        ".reg .wow %q<3>;",
        ".reg .b32 %q<99999999999999999999>;",
    ],
)  # fmt: skip
def test_malformed_instructions_are_refused_with_their_line(body):
    with pytest.raises((PtxSyntaxError, UnsupportedInstruction), match=r"PTX line \d+"):
        launch(simple(body), 1, 32, [np.zeros(64, np.uint32)])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("{\n.reg", "\n.reg"),
        (".param .u64 p0", ".param .wow p0"),
        (".param .u64 p0", ".param .align 3 .b8 p0[64]"),
        (".param .u64 p0", ".param .b8 p0[99999999999]"),
        (".entry k(", ".entry ("),
        ("ret;\n}", "ret;\n"),
        (".visible", ".section .debug\n.visible"),
        (".visible", ".visible .entry k() { ret; }\n.visible"),
        ("\n\n{", "\n.maxnreg\n{"),
        ("\n\n{", "\n.reqntid 0, 99999999999999999999\n{"),
        (".target sm_90a", ".target"),
        (".version 8.7", "\x00"),
    ],
)
def test_malformed_modules_are_refused(old, new):
    text = simple("add.u32 %r1, %r1, 1;")
    assert old in text
    with pytest.raises((PtxSyntaxError, LaunchError, EmulatorError)):
        launch(text.replace(old, new, 1), 1, 1, [np.zeros(1, np.uint32)])


def test_every_error_names_what_came_and_how_to_fix_it():
    with pytest.raises(UnsupportedInstruction) as raised:
        launch(elementwise("frobnicate.b32 %r20, %r10;", 1), 1, 32, [np.zeros(32, np.uint32)] * 2)
    error = raised.value
    assert error.code == "PTX_UNSUPPORTED" and re.search(r"PTX line \d+", error.got)
    assert error.expected and error.fix
