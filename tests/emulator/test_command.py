"""The emulator's own command: kernels with arguments from the command line, and programs."""

import json

import numpy as np
import pytest

from ptx_emulator import LaunchError, TensorMap
from ptx_emulator.command import argument, main

from .kernels import simple
from .programs import SCALE

AXPY = simple(
    "mov.u32 %r1, %tid.x; mul.wide.u32 %d1, %r1, 4; ld.param.u64 %d2, [p0]; add.u64 %d2, %d2, %d1;\n"
    "ld.param.f32 %f2, [p1]; ld.param.u32 %r2, [p2]; setp.ge.u32 %p1, %r1, %r2; @%p1 bra DONE;\n"
    "ld.global.f32 %f1, [%d2]; mul.f32 %f1, %f1, %f2; st.global.f32 [%d2], %f1;\nDONE:",
    ".param .u64 p0, .param .f32 p1, .param .u32 p2",
)


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "k.ptx").write_text(AXPY)
    np.save("x.npy", np.arange(32, dtype=np.float32))
    return tmp_path


def test_a_kernel_runs_on_arrays_and_numbers_and_leaves_its_result(kernel, capsys):
    options = ["--block", "32", "--interleavings", "3", "--out", "made"]
    assert main(["run", *options, "k.ptx", "x.npy", "-2.5", "0x10", "--coverage"]) == 0
    printed = capsys.readouterr().out
    assert (
        printed.count("ok under") == 3
        and "What 3 runs reached together" in printed
        and "different" not in printed
    )
    x = np.arange(32, dtype=np.float32)
    np.testing.assert_array_equal(np.load("made/argument_0.npy"), np.where(x < 16, -2.5 * x, x))
    np.testing.assert_array_equal(np.load("x.npy"), x)  # the input file is unchanged


def test_a_finding_is_status_1_and_stands_in_the_json(kernel, capsys):
    command = [
        "run",
        "k.ptx",
        "zeros:float32:4x4",
        "1",
        "32",
        "--block",
        "32",
        "--interleavings",
        "2",
        "--json",
    ]
    assert main(command) == 1
    report = json.loads(capsys.readouterr().out)
    assert not report["ok"] and [run["errors"] for run in report["runs"]] == [1, 1]
    assert report["runs"][0]["findings"][0]["code"] == "out-of-bounds-global"


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["none.ptx"], "none.ptx"),
        (["k.ptx"], "0 arguments"),
        (["k.ptx", "y.npy", "1", "2"], "y.npy"),
        (["k.ptx", "x.npy", "many", "2"], "many"),
        (["k.ptx", "x.npy", "1", "2", "--interleavings", "0"], "at least 1"),
        (["k.ptx", "x.npy", "1", "2", "--block", "0"], "block"),
    ],
)
def test_what_cannot_be_run_is_status_2_with_the_fix(kernel, capsys, arguments, message):
    assert main(["run", "--block", "32", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error and "Fix: " in error


def test_arguments_are_read_as_the_help_says(kernel):
    assert (argument("none"), argument("-7"), argument("0x1F"), argument("1e3")) == (None, -7, 31, 1000.0)
    zeros = argument("zeros:float16:2x3")
    assert (zeros.shape, zeros.dtype) == ((2, 3), np.float16)
    tensor_map = argument("map:8x2:32B:zeros:float32:4x8")
    assert isinstance(tensor_map, TensorMap) and (tensor_map.box, tensor_map.swizzle) == ([8, 2], "32B")


@pytest.mark.parametrize(
    "text",
    [
        "", "zeros:float32", "zeros:float32:-4", "zeros:float32:99999x99999x99999", "zeros:object:4x",
        "k.npy:", "map:8", "u32:7",
        "map:8:32B:x", "map:axb:32B:x.npy",
    ],
)  # fmt: skip
def test_arguments_of_no_form_are_refused(kernel, text):
    with pytest.raises(LaunchError, match="Fix: give a number"):
        argument(text)


def test_a_program_runs_with_arguments_of_its_own(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    from .test_script import DRIVER_MAIN

    (tmp_path / "p.py").write_text(
        f"{DRIVER_MAIN}\nif __name__ == '__main__': main({SCALE!r}, int(sys.argv[sys.argv.index('--seed') "
        f"+ 1]))\n"
    )
    assert main(["script", "--interleavings", "2", "p.py", "--seed", "40"]) == 0
    assert "2 interleavings" in capsys.readouterr().out
    assert main(["script", "--json", "p.py"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert "ValueError" in report["failure"] and not report["launches"]
    assert main(["script", "q.py"]) == 2
