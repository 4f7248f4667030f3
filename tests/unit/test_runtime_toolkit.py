"""Finding the CUDA tools and parsing their output; only small fake tools run here."""

from pathlib import Path

import pytest

from dsl_kernels.errors import CompileError, ToolchainError
from dsl_kernels.runtime import toolkit

LOG = """
ptxas info    : 12 bytes gmem
ptxas info    : Compiling entry function 'k_kernel' for 'sm_90a'
ptxas info    : Function properties for k_kernel
    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 168 registers, used 9 barriers, 16 bytes cumulative stack size, 1088 bytes smem
"""

SASS = """
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/              @!P0 BRA `(.L_x_1) ;
        /*0020*/              @UP0 UTMALDG.2D [UR8], [UR4], desc[URZ] ;
        /*0030*/                   HGMMA.64x64x16.F32.BF16 R24, gdesc[UR4], R24, !UPT ;
        /*10040*/                  HGMMA.64x64x16.F32.BF16 R24, gdesc[UR4], R24 ;
        /*0050*/                   STL [R1], R2 ;
.L_x_1:
        /*0060*/                   EXIT ;
"""


def stand_in(path: Path, text: str, status: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{text}'\nexit {status}\n")
    path.chmod(0o755)
    return path


@pytest.fixture(autouse=True)
def bare(monkeypatch, tmp_path):
    """A machine without any toolkit."""
    for name in ("CUDA_HOME", "CUDA_PATH", "CXX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setattr(toolkit, "wheel_roots", lambda: [])
    toolkit._nvcc.cache_clear()
    toolkit._version.cache_clear()
    yield
    toolkit._nvcc.cache_clear()
    toolkit._version.cache_clear()


def test_flags_in_the_environment_do_not_reach_nvcc(tmp_path, monkeypatch):
    """They would change the code, and are in no key of an artifact."""
    monkeypatch.setenv("NVCC_PREPEND_FLAGS", "-O0")
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "-G")
    monkeypatch.setenv("KEPT", "kept")
    tool = stand_in(tmp_path / "nvcc", "$NVCC_PREPEND_FLAGS$NVCC_APPEND_FLAGS$KEPT")
    tool.write_text(tool.read_text().replace("'", '"'))
    assert toolkit._run([str(tool)], tmp_path, "k").strip() == "kept"


def test_nvcc_is_looked_up_in_order(tmp_path, monkeypatch):
    banner = "Cuda compilation tools, release 13.0, V13.0.88"
    places = {name: stand_in(tmp_path / name / "bin" / "nvcc", banner) for name in ("home", "path", "wheel")}
    monkeypatch.setattr(toolkit, "wheel_roots", lambda: [tmp_path / "wheel"])
    assert (toolkit.nvcc().path, toolkit.nvcc().origin) == (places["wheel"], "wheel nvidia-cuda-nvcc")
    monkeypatch.setenv("PATH", str(tmp_path / "path" / "bin"))
    assert (toolkit.nvcc().path, toolkit.nvcc().origin) == (places["path"], "PATH")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "home"))
    assert (toolkit.nvcc().path, toolkit.nvcc().origin, toolkit.nvcc().version) == (
        places["home"],
        "CUDA_HOME",
        "13.0.88",
    )


def test_no_nvcc_says_how_to_get_one():
    with pytest.raises(ToolchainError, match=r"none found.*toolkit"):
        toolkit.nvcc()


def test_a_wrong_cuda_home_is_not_passed_over(tmp_path, monkeypatch):
    stand_in(tmp_path / "path" / "nvcc", "release 13.0, V13.0.88")
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "nothing"))
    with pytest.raises(ToolchainError, match="CUDA_HOME"):
        toolkit.nvcc()


def test_an_old_nvcc_is_refused(tmp_path, monkeypatch):
    stand_in(tmp_path / "nvcc", "release 12.4, V12.4.131")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolchainError, match=r"12\.4\.131"):
        toolkit.nvcc()


def test_no_host_compiler_and_no_disassembler(tmp_path, monkeypatch):
    with pytest.raises(ToolchainError, match=r"g\+\+"):
        toolkit.host_compiler()
    stand_in(tmp_path / "bin" / "nvcc", "release 13.0, V13.0.88")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    with pytest.raises(ToolchainError, match="nvdisasm"):
        toolkit.nvdisasm()
    beside = stand_in(tmp_path / "bin" / "nvdisasm", "nvdisasm V13.0.39")
    assert toolkit.nvdisasm().path == beside
    monkeypatch.setenv("CXX", str(stand_in(tmp_path / "my-c++", "c++ 12.2.0")))
    assert (toolkit.host_compiler().version, toolkit.host_compiler().origin) == ("12.2.0", "CXX")


def test_describe_has_a_row_for_every_tool(tmp_path, monkeypatch):
    stand_in(tmp_path / "bin" / "nvcc", "release 13.0, V13.0.88")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    rows = {row["tool"]: row for row in toolkit.describe()}
    assert rows["nvcc"]["ok"] == "yes" and rows["nvcc"]["version"] == "13.0.88"
    assert rows["g++"]["ok"] == "no" and "apt-get" in rows["g++"]["fix"]
    assert rows["nvdisasm"]["ok"] == "no" and rows["nvdisasm"]["fix"]


def test_assembler_report():
    report = toolkit.parse_assembler(LOG)
    assert (report.registers, report.barriers, report.static_smem) == (168, 9, 1088)
    assert (report.stack, report.spill_stores, report.spill_loads) == (16, 8, 12)
    with pytest.raises(CompileError, match="resource report"):
        toolkit.parse_assembler("nothing of the kind")


def test_assembler_report_without_barriers_or_shared_memory():
    report = toolkit.parse_assembler(
        "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\nptxas info : Used 10 registers\n"
    )
    assert (report.registers, report.barriers, report.static_smem) == (10, 0, 0)


def test_opcodes_are_counted_by_stem_and_in_detail(tmp_path, monkeypatch):
    root = tmp_path / "cu13"
    tool = stand_in(root / "bin" / "nvdisasm", "")
    tool.write_text(f"#!/bin/sh\ncat <<'END'\n{SASS}\nEND\n")
    monkeypatch.setattr(toolkit, "wheel_roots", lambda: [root])
    monkeypatch.setenv("PATH", "/bin:/usr/bin")
    (tmp_path / "k.cubin").write_bytes(b"")
    assert toolkit.sass_counts(tmp_path / "k.cubin") == {
        "BRA": 1, "EXIT": 1, "HGMMA": 2, "HGMMA.64x64x16.F32.BF16": 2, "LDC": 1, "STL": 1, "UTMALDG": 1,
        "UTMALDG.2D": 1,
    }  # fmt: skip


SAVE = "UP2UR UR4, UPR, URZ, 0x1 ;"
CLAIM = "USETMAXREG.TRY_ALLOC.CTAPOOL UP0, 0x70 ;"
RESTORE = (
    "UISETP.NE.AND UP0, UPT, UR4, URZ, UPT ;", "UP2UR UR4, UPR, URZ, 0x1 ;",
    "UISETP.NE.AND UP0, UPT, UR16, URZ, UPT ;", "PLOP3.LUT P0, PT, PT, PT, UP0, 0x80, 0x0 ;",
    "UISETP.NE.AND UP0, UPT, UR4, URZ, UPT ;",
)  # fmt: skip
RESULT = "UP2UR UR16, UPR, URZ, 0x1 ;"
TEST = "PLOP3.LUT P0, PT, PT, PT, UP0, 0x80, 0x0 ;"


@pytest.mark.parametrize(
    "code,lost",
    [
        ((CLAIM, RESULT, SAVE, *RESTORE), True),
        ((SAVE, CLAIM, RESULT, *RESTORE), False),
        ((CLAIM, TEST), False),
        ((CLAIM, RESULT.replace("0x1 ", "0x2 "), TEST, "UISETP.NE.AND UP1, UPT, UR16, URZ, UPT ;"), False),
    ],
    ids=["saved too late", "saved in time", "free", "another predicate"],
)
def test_a_predicate_that_setmaxnreg_overwrites_is_refused(tmp_path, monkeypatch, code, lost):
    tool = stand_in(tmp_path / "cu13" / "bin" / "nvdisasm", "")
    lines = "\n".join(f"        /*{16 * i:04x}*/                   {text}" for i, text in enumerate(code))
    tool.write_text(
        f"#!/bin/sh\ncat <<'END'\n{lines}\n        /*0200*/              @!P0 BRA `(.L_x_1) ;\nEND\n"
    )
    monkeypatch.setattr(toolkit, "wheel_roots", lambda: [tmp_path / "cu13"])
    monkeypatch.setenv("PATH", "/bin:/usr/bin")
    (tmp_path / "k.cubin").write_bytes(b"")
    if lost:
        with pytest.raises(CompileError, match="setmaxnreg") as caught:
            toolkit.sass_counts(tmp_path / "k.cubin")
        assert caught.value.code == "COMPILE_LOST_PREDICATE" and "UP0" in str(caught.value)
    else:
        assert toolkit.sass_counts(tmp_path / "k.cubin")["USETMAXREG"] == 1


def test_ptx_keeps_no_trace_of_where_it_was_compiled(tmp_path):
    name = ",".join(str(byte) for byte in b"_INTERNAL_0a1b2c3d_9_kernel")
    ptx = (
        f'.file 1 "{tmp_path}/build/kernel.cu"\n.file 2 "{tmp_path}/tl/tl_templates/x.h", 123, 456\n.file 3 '
        f'"/elsewhere/deep/y.h"\n'
        f".visible _ZN39_INTERNAL_0a1b2c3d_9_kernel_cu_12345678;\n.b8 95,90,{name}\n"
    )
    clean = toolkit.without_traces(ptx, [tmp_path / "build", tmp_path / "tl"])
    assert clean.splitlines()[:4] == [
        '.file 1 "kernel.cu"', '.file 2 "tl_templates/x.h"', '.file 3 "y.h"',
        ".visible _ZN39_INTERNAL_00000000_9_kernel_cu_12345678;",
    ]  # fmt: skip
    values = [int(v) for v in clean.splitlines()[4].removeprefix(".b8 ").split(",")]
    assert bytes(values) == b"_Z_INTERNAL_00000000_9_kernel"


def test_a_killed_compiler_is_told_from_a_refused_source(tmp_path, monkeypatch):
    source = tmp_path / "kernel.cu"
    source.write_text("")
    stand_in(tmp_path / "bin" / "g++", "c++ 12.2.0")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin:/usr/bin")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    for message, code in (
        ("kernel.cu(3): error: no such type", "COMPILE"),
        ("nvcc error: cicc died due to signal 9", "COMPILE_KILLED"),
    ):
        script = (
            '#!/bin/sh\ncase "$1" in --version) echo "release 13.0, V13.0.88";; '
            f'*) echo "{message}" >&2; exit 1;; esac\n'
        )
        stand_in(tmp_path / "bin" / "nvcc", "").write_text(script)
        with pytest.raises(
            CompileError, match=message[:20].replace("(", r"\(").replace(")", r"\)")
        ) as caught:
            toolkit.cuda_to_ptx(source, tmp_path / "kernel.ptx", "sm_90a", [])
        assert caught.value.code == code


def test_only_the_wheels_folders_are_roots(monkeypatch):
    monkeypatch.undo()
    assert all(root.name.startswith("cu") for root in toolkit.wheel_roots())
