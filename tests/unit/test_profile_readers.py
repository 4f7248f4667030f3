"""Profiles in every form that Nsight Compute writes, read without it and without a GPU."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from dsl_kernels import profile
from dsl_kernels.errors import ArtifactError, ToolchainError
from dsl_kernels.profile import metrics, readers

IDENTITY = '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC"'
FACTS = '"0","812","python","host","gather_async(const char *, int)","1","7","(512, 1, 1)","(264, 1, 1)","0","9.0"'
RAW = f"""==PROF== Connected to process 812
{IDENTITY},"thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg","gpu__time_duration.sum","dram__bytes_read.sum","launch__registers_per_thread","lts__t_sector_hit_rate.pct","device__attribute_display_name"
"","","","","","","","block","block","","","","usecond","Mbyte","register/thread","%",""
{FACTS},"""  # the rest is put together below


def raw(duration: str = "86.40", unit: str = "usecond") -> str:
    return (
        RAW
        + f'"<default domain>:gather t=64:none:none:none:none:none:none","{duration}","1,151.50","28","12.5","NVIDIA H200"\n'
    ).replace("usecond", unit)


def written(tmp_path: Path, text: str, name: str = "profile.csv") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("duration", "unit"), [("86.40", "usecond"), ("86.40", "us"), ("86,400", "ns"), ("0.0864", "msecond")]
)
def test_raw_csv_is_read_by_its_units(tmp_path: Path, duration: str, unit: str) -> None:
    [report] = profile.read(written(tmp_path, raw(duration, unit)))
    assert report.kernel.startswith("gather_async") and report.arch == "sm_90"
    assert report.grid == (264, 1, 1) and report.block == (512, 1, 1)
    assert report.device == "NVIDIA H200" and report.label == "gather t=64"
    assert report.metrics[metrics.DURATION] == pytest.approx(86_400)
    assert report.metrics["dram__bytes_read.sum"] == pytest.approx(1151.5e6)
    assert report.missing


def test_raw_csv_without_its_units_row_is_refused(tmp_path: Path) -> None:
    lines = raw().splitlines()
    with pytest.raises(ArtifactError, match="units"):
        profile.read(written(tmp_path, "\n".join(line for line in lines if "Mbyte" not in line)))


def test_details_csv_and_its_rules(tmp_path: Path) -> None:
    head = f'{IDENTITY},"Section Name","Metric Name","Metric Unit","Metric Value","Rule Name","Rule Type","Rule Description","Estimated Speedup Type","Estimated Speedup"'
    rows = [
        f'{FACTS},"GPU Speed Of Light Throughput","DRAM Throughput","%","38.10","","","","",""',
        f'{FACTS},"GPU Speed Of Light Throughput","Memory Throughput","%","38.10","","","","",""',
        f'{FACTS},"Memory Workload Analysis","Memory Throughput","Tbyte/second","1.75","","","","",""',
        f'{FACTS},"Occupancy","Theoretical Occupancy","%","12.50","","","","",""',
        f'{FACTS},"Occupancy","","","","Occupancy","OPT","This kernel is limited by shared memory.","global","61.9"',
    ]
    [report] = profile.read(written(tmp_path, "\n".join([head, *rows])))
    found = profile.fingerprint(report)
    assert found.sol == {"dram": 0.381, "memory": 0.381}
    assert found.occupancy.theoretical == 0.125
    assert found.rules == (
        profile.NcuRule("Occupancy", "This kernel is limited by shared memory.", "OPT", 0.619),
    )


LOG = """==PROF== Profiling "splitk_fused" - 0: 0%....50%....100% - 38 passes
[812] python@127.0.0.1
  splitk_fused(const float *, int) (128, 1, 1)x(256, 1, 1), Context 1, Stream 7, Device 0, CC 10.0
    Section: GPU Speed Of Light Throughput
    ----------------------- ----------- ------------
    Metric Name             Metric Unit Metric Value
    ----------------------- ----------- ------------
    DRAM Frequency                  Ghz         3.99
    Elapsed Cycles                cycle      155,229
    Memory Throughput                 %        38.10
    Duration                         us        86.40
    Compute (SM) Throughput           %        17.70
    ----------------------- ----------- ------------

    OPT   This workload exhibits low compute throughput and memory bandwidth utilization.

    Section: Occupancy
    ------------------------------- ----------- ------------
    Theoretical Occupancy                     %        12.50
    Achieved Occupancy                        %        12.44
    Waves Per SM                                        0.86
    ------------------------------- ----------- ------------

    OPT   Est. Speedup: 61.9%
          This kernel's theoretical occupancy (12.5%) is limited by the required amount of shared memory.

  combine(float *) (64, 1, 1)x(128, 1, 1), Context 1, Stream 7, Device 0, CC 10.0
    Section: Command line profiler metrics
    Registers Per Thread             register/thread              40
    dram__throughput.avg.pct_of_peak_sustained_elapsed                            %         0.13
"""


def test_a_printed_log_has_a_report_for_each_launch(tmp_path: Path) -> None:
    first, second = profile.read(written(tmp_path, LOG, "ncu_log.txt"))
    assert first.kernel == "splitk_fused(const float *, int)" and first.arch == "sm_100"
    found = profile.fingerprint(first)
    assert (found.us, found.cycles) == (86.4, 155_229)
    assert found.sol == {"sm": 0.177, "memory": 0.381}
    assert (found.occupancy.achieved, found.occupancy.waves) == (0.1244, 0.86)
    assert [rule.estimate for rule in found.rules] == [None, 0.619]
    assert profile.fingerprint(second).sol == {"dram": 0.0013}
    assert profile.fingerprint(second).occupancy.registers == 40


def test_extracted_json_comes_back_as_it_was(tmp_path: Path) -> None:
    pytest.importorskip("pydantic")
    reports = profile.read(written(tmp_path, raw()))
    assert profile.read(written(tmp_path, profile.dump(reports), "extracted.json")) == reports


@pytest.mark.parametrize(
    ("text", "names"),
    [("", "an empty file"), ("hello\nworld", "hello"), ('{"kernel": 3}', "kernel"), ("[1", "JSON")],
)
def test_what_is_no_profile_is_refused_by_name(tmp_path: Path, text: str, names: str) -> None:
    pytest.importorskip("pydantic")
    with pytest.raises(ArtifactError, match=names):
        profile.read(written(tmp_path, text, "other.txt"))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"none\.csv"):
        profile.read(tmp_path / "none.csv")


def test_a_binary_report_needs_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ncu_report", None)
    with pytest.raises(ToolchainError, match="ncu-report"):
        profile.read(written(tmp_path, "NVR\0", "a.ncu-rep"))


def test_a_binary_report_is_read_through_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {
        metrics.DURATION: 86_400,
        "launch__grid_dim_x": 264, "launch__grid_dim_y": 1, "launch__grid_dim_z": 1,
        "device__attribute_compute_capability_major": 9, "device__attribute_compute_capability_minor": 0,
        "device__attribute_display_name": "NVIDIA H200",
    }  # fmt: skip
    rule = {
        "name": "Occupancy",
        "rule_message": {"message": "limited", "type": 3},
        "speedup_estimation": {"speedup": 61.9},
    }
    domain = SimpleNamespace(push_pop_ranges=lambda: ("outer", "gather t=64"))
    action = SimpleNamespace(
        name=lambda: "gather_async",
        metric_names=lambda: tuple(values),
        metric_by_name=lambda name: SimpleNamespace(value=lambda: values[name]),
        nvtx_state=lambda: SimpleNamespace(domains=lambda: (0,), domain_by_id=lambda _: domain),
        rule_results_as_dicts=lambda: [rule],
    )
    span = SimpleNamespace(num_actions=lambda: 1, action_by_idx=lambda _: action)
    package = ModuleType("ncu_report")
    package.load_report = lambda path: SimpleNamespace(num_ranges=lambda: 1, range_by_idx=lambda _: span)
    monkeypatch.setitem(sys.modules, "ncu_report", package)
    [report] = profile.read(written(tmp_path, "NVR\0", "a.ncu-rep"))
    assert (report.source, report.arch, report.device) == ("ncu", "sm_90", "NVIDIA H200")
    assert report.label == "gather t=64" and report.grid == (264, 1, 1) and report.block is None
    assert report.rules[0].estimate == pytest.approx(0.619)
    assert report.metrics[metrics.DURATION] == 86_400


def test_figures_that_are_none_are_left_out() -> None:
    assert readers.number("n/a", "%") is None
    assert readers.number("1.5", "Kbyte/block") == 1500.0
    assert readers.number("2", "register/thread") == 2.0
