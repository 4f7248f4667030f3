"""Device functions: parameters in memory and in registers, returns of single lanes, nested calls."""

import shutil
import subprocess

import numpy as np
import pytest

from ptx_emulator import EmulatorError, PtxSyntaxError, UnsupportedInstruction, launch

from .kernels import HEADER, assembles

FUNCTIONS = """
.func (.param .b32 result) square(.param .b32 x)
{
.reg .b32 %r<4>;
ld.param.b32 %r1, [x]; mul.lo.u32 %r2, %r1, %r1; st.param.b32 [result], %r2;
ret;
}
.func (.reg .b32 out) clamp(.reg .b32 x, .reg .b32 limit)
{
.reg .pred %p<2>;
mov.b32 out, x;
setp.le.u32 %p1, x, limit;
@%p1 ret;
mov.b32 out, limit;
}
.func (.param .b32 result) both(.param .b32 x)
{
.reg .b32 %r<8>;
.local .align 8 .b8 kept[8];
ld.param.b32 %r1, [x]; st.local.u32 [kept+4], %r1;
{
.param .b32 a; .param .b32 b;
st.param.b32 [a], %r1;
call.uni (b), square, (a);
ld.param.b32 %r2, [b];
}
call (%r3), clamp, (%r2, 50);
ld.local.u32 %r4, [kept+4]; add.u32 %r3, %r3, %r4;
st.param.b32 [result], %r3;
ret;
}
.func nothing() { ret; }
"""
KERNEL = (
    HEADER.format(target="sm_90a")
    + FUNCTIONS
    + """
.visible .entry k(.param .u64 p0)
{
.reg .pred %p<4>; .reg .b32 %r<16>; .reg .b64 %d<4>;
mov.u32 %r1, %tid.x; mul.wide.u32 %d1, %r1, 4; ld.param.u64 %d2, [p0]; add.u64 %d2, %d2, %d1;
mov.u32 %r5, 1000;
setp.lt.u32 %p1, %r1, 20;
@%p1 call nothing;
{
.param .b32 a; .param .b32 b;
st.param.b32 [a+0], %r1;
@!%p1 bra SKIP;
call (b), both, (a);
ld.param.b32 %r5, [b+0];
SKIP:
}
{
.param .b32 a; .param .b32 b;
st.param.b32 [a+0], 3;
call.uni (b), both, (a);
ld.param.b32 %r6, [b+0];
}
call (%r7), square, (%r6);
add.u32 %r5, %r5, %r7;
st.global.u32 [%d2], %r5;
ret;
}
"""
)


def test_calls_return_what_the_functions_compute():
    out = np.zeros(32, np.uint32)
    report = launch(KERNEL, 1, 32, [out])
    lane = np.arange(32)
    assert (
        report.ok and (out == np.where(lane < 20, np.minimum(lane**2, 50) + lane, 1000) + (9 + 3) ** 2).all()
    )


def test_ptxas_accepts(tmp_path):
    assembles(KERNEL, tmp_path)


def test_a_function_may_follow_its_caller():
    head, kernel = KERNEL.split(FUNCTIONS)
    declared = ".func (.param .b32 result) both(.param .b32 x);\n"
    out, after = np.zeros(32, np.uint32), np.zeros(32, np.uint32)
    launch(KERNEL, 1, 32, [out])
    launch(head + declared + kernel + FUNCTIONS, 1, 32, [after])
    assert (out == after).all()


def test_a_fault_in_a_function_names_its_line():
    text = KERNEL.replace("ld.local.u32 %r4, [kept+4];", "ld.local.u32 %r4, [kept+400];")
    line = text[: text.index("[kept+400]")].count("\n") + 1
    with pytest.raises(EmulatorError, match=f"PTX line {line}: ld.local"):
        launch(text, 1, 32, [np.zeros(32, np.uint32)])


def test_registers_of_a_call_start_unwritten():
    """A value that an earlier call left in a register of the function is not visible to the next call."""
    text = KERNEL.replace(
        "call (%r7), square, (%r6);", "call (%r8), clamp, (95, 99); call (%r7), clamp, (%r6, 99);"
    )
    assert launch(text, 1, 32, [np.zeros(32, np.uint32)]).ok
    text = text.replace("mov.b32 out, x;\n", "setp.ge.u32 %p1, x, 90; @%p1 mov.b32 out, x;\n")
    with pytest.raises(EmulatorError, match="never wrote|uninit"):
        launch(text, 1, 32, [np.zeros(32, np.uint32)])


@pytest.mark.parametrize(
    ("old", "new", "error", "why"),
    [
        ("st.param.b32 [a], %r1;", "call (b), both, (a);", UnsupportedInstruction, "calls itself"),
        ("call nothing;", "call %d1, ();", UnsupportedInstruction, "through a register"),
        ("call nothing;", "call (%r1), nothing;", PtxSyntaxError, "0 results"),
        ("call nothing;", "call (%r1), square, ();", PtxSyntaxError, "1 parameters"),
        ("call nothing;", "call;", PtxSyntaxError, "no function"),
        ("square(.param .b32 x)", "square(.param x)", PtxSyntaxError, "parameter"),
    ],
)
def test_other_calls_are_refused_before_the_launch(old, new, error, why):
    with pytest.raises(error, match=why):
        launch(KERNEL.replace(old, new, 1), 1, 32, [None])


def test_calls_that_unfold_to_too_much_are_refused(monkeypatch):
    from ptx_emulator import functions

    tower = "".join(f".func f{i}() {{ call f{i - 1}; call f{i - 1}; ret; }}\n" for i in range(1, 40))
    text = KERNEL.replace(
        ".func nothing() { ret; }", ".func f0() { ret; }\n" + tower + ".func nothing() { call f39; ret; }"
    )
    monkeypatch.setattr(functions, "MAX_INSTRUCTIONS", 5000)
    with pytest.raises(UnsupportedInstruction, match="5000 instructions"):
        launch(text, 1, 32, [None])
    deep = "".join(f".func f{i}() {{ call f{i - 1}; ret; }}\n" for i in range(1, 80))
    text = KERNEL.replace(
        ".func nothing() { ret; }", ".func f0() { ret; }\n" + deep + ".func nothing() { call f79; ret; }"
    )
    with pytest.raises(UnsupportedInstruction, match="deep"):
        launch(text, 1, 32, [None])


def test_a_function_without_a_body_is_reported_when_it_is_reached():
    text = KERNEL.replace("call nothing;", "call (%r2), __assertfail, (%d1, %d1);").replace(
        ".func nothing",
        ".extern .func (.param .b32 r) __assertfail (.param .b64 a, .param .b64 b);\n.func nothing",
    )
    report = launch(text, 1, 32, [np.zeros(32, np.uint32)], check="report")
    assert {f.code for f in report.errors} == {"call"}
    unreached = text.replace("setp.lt.u32 %p1, %r1, 20;", "setp.lt.u32 %p1, %r1, 0;")
    assert launch(unreached, 1, 32, [np.zeros(32, np.uint32)]).ok


def test_printf_prints_nothing_and_says_so():
    declared = ".extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);\n.func nothing"
    out, plain = np.zeros(32, np.uint32), np.zeros(32, np.uint32)
    launch(KERNEL, 1, 32, [plain])
    text = KERNEL.replace(".func nothing", declared)
    in_memory = (
        "{ .param .b32 said; call (said), vprintf, (%d1, %d1); ld.param.b32 %r5, [said]; "
        "add.u32 %r5, %r5, 1000; }"
    )
    for call in ("@%p1 call (%r6), vprintf, (%d1, %d1);", in_memory):
        report = launch(text.replace("@%p1 call nothing;", call), 1, 32, [out])
        assert report.ok and (out == plain).all()


SOURCE = """
struct Pair { float a; double b; int c[3]; };
__device__ __noinline__ Pair turn(Pair p, int i) {
  Pair q = p;
  q.a = p.b; q.b = p.a + i;
  for (int k = 0; k < 3; k++) q.c[k] = p.c[(k + i) % 3];
  return q;
}
__device__ __noinline__ float walk(const float* x, int n, float (&scratch)[8]) {
  for (int i = 0; i < 8; i++) scratch[i] = x[(n + i) & 31];
  if (n & 1) return -scratch[n & 7];
  return scratch[7 - (n & 7)];
}
extern "C" __global__ void k(const float* x, float* out) {
  int t = threadIdx.x;
  float scratch[8];
  Pair p{float(t), double(2 * t), {t, t + 1, t + 2}};
  for (int i = 0; i < 2; i++) p = turn(p, i + t);
  float w = walk(x, t, scratch);
  out[t] = p.a + float(p.b) + p.c[0] * 100 + p.c[1] * 10 + p.c[2] + w + scratch[2];
}
"""


@pytest.mark.skipif(not shutil.which("nvcc"), reason="needs nvcc")
def test_functions_that_nvcc_compiled(tmp_path):
    (tmp_path / "k.cu").write_text(SOURCE)
    command = ["nvcc", "-arch=sm_90a", "-ptx", "-o", str(tmp_path / "k.ptx"), str(tmp_path / "k.cu")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "k.ptx").read_text()
    assert text.count("call") >= 2
    x, out = np.random.default_rng(1).normal(size=32).astype(np.float32), np.zeros(32, np.float32)
    assert launch(text, 1, 32, [x, out]).ok
    for t in range(32):
        a, b, c = np.float32(t), float(2 * t), [t, t + 1, t + 2]
        for i in (t, t + 1):
            a, b, c = np.float32(b), float(a + np.float32(i)), [c[(k + i) % 3] for k in range(3)]
        scratch = [x[(t + i) & 31] for i in range(8)]
        w = -scratch[t & 7] if t & 1 else scratch[7 - (t & 7)]
        expect = np.float32(a) + np.float32(b)
        for term in (c[0] * 100, c[1] * 10, c[2], w, scratch[2]):
            expect = expect + np.float32(term)
        np.testing.assert_allclose(out[t], expect, rtol=1e-6)
