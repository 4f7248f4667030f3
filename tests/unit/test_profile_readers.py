"""Profiles in every format that Nsight Compute writes, read without it and without a GPU."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from dsl_kernels.errors import ArtifactError, ToolchainError
from dsl_kernels_lab import profile
from dsl_kernels_lab.profile import metrics, readers

IDENTITY = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size",'
    '"Device","CC"'
)
FACTS = (
    '"0","812","python","host","gather_async(const char *, int)","1","7","(512, 1, 1)","(264, 1, '
    '1)","0","9.0"'
)
COUNTERS = (
    '"thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg","gpu__time_duration.sum",'
    '"dram__bytes_read.sum","launch__registers_per_thread","lts__t_sector_hit_rate.pct",'
    '"device__attribute_display_name"'
)
PAGE = (
    f'{IDENTITY},"Section Name","Metric Name","Metric Unit","Metric Value","Rule Name","Rule Type",'
    '"Rule Description","Estimated Speedup Type","Estimated Speedup"'
)
RAW = f"""==PROF== Connected to process 812
{IDENTITY},{COUNTERS}
"","","","","","","","block","block","","","","usecond","Mbyte","register/thread","%",""
{FACTS},"""  # the other cells follow below


def raw(duration: str = "86.40", unit: str = "usecond") -> str:
    return (
        f'{RAW}"<default domain>:gather t=64:none:none:none:none:none:none",'
        f'"{duration}","1,151.50","28","12.5","NVIDIA H200"\n'
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
    head = PAGE
    rows = [
        f'{FACTS},"GPU Speed Of Light Throughput","DRAM Throughput","%","38.10","","","","",""',
        f'{FACTS},"GPU Speed Of Light Throughput","Memory Throughput","%","38.10","","","","",""',
        f'{FACTS},"Memory Workload Analysis","Memory Throughput","Tbyte/second","1.75","","","","",""',
        f'{FACTS},"Occupancy","Theoretical Occupancy","%","12.50","","","","",""',
        f'{FACTS},"Occupancy","","","","Occupancy","OPT","This kernel is limited by shared '
        f'memory.","global","61.9"',
    ]
    [report] = profile.read(written(tmp_path, "\n".join([head, *rows])))
    fingerprint = profile.fingerprint(report)
    assert fingerprint.sol == {"dram": 0.381, "memory": 0.381}
    assert fingerprint.occupancy.theoretical == 0.125
    assert fingerprint.rules == (
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
    fingerprint = profile.fingerprint(first)
    assert (fingerprint.us, fingerprint.cycles) == (86.4, 155_229)
    assert fingerprint.sol == {"sm": 0.177, "memory": 0.381}
    assert (fingerprint.occupancy.achieved, fingerprint.occupancy.waves) == (0.1244, 0.86)
    assert [rule.estimate for rule in fingerprint.rules] == [None, 0.619]
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


def many(*runs: str) -> str:
    return "\n".join(run.strip("\n") for run in runs) + "\n"


DETAILS = PAGE


def details(us: str, process: str = "812", launch: str = "0") -> str:
    """The details page of one launch, without its header."""
    who = FACTS.replace('"0","812"', f'"{launch}","{process}"', 1)
    return "\n".join(
        [
            f'{who},"GPU Speed Of Light Throughput","Duration","us","{us}","","","","",""',
            f'{who},"GPU Speed Of Light Throughput","Elapsed Cycles","cycle","155,229","","","","",""',
        ]
    )


@pytest.mark.parametrize(
    "text",
    [
        many(DETAILS, details("1.50"), DETAILS, details("2.50")),
        many(DETAILS, details("1.50"), details("2.50", process="813")),
        many(DETAILS, details("1.50"), details("2.50", launch="1")),
        many(raw("1.50"), raw("2.50")),
        many(raw("1.50"), raw("2.50").split("\n", 2)[2]),  # joined without the second header
    ],
    ids=["details of two runs", "two processes", "two launches", "raw of two runs", "raw, one header"],
)
def test_a_launch_is_its_run_its_process_and_its_id(tmp_path: Path, text: str) -> None:
    reports = profile.read(written(tmp_path, text))
    assert [report.metrics[metrics.DURATION] for report in reports] == [1500, 2500]
    assert {report.kernel for report in reports} == {"gather_async(const char *, int)"}


# Nsight Compute's output where a comma is the decimal mark: the first unambiguous figure settles the others.
COMMA = [
    ("Duration", "us", "211,94", metrics.DURATION, 211_940.0),
    ("Elapsed Cycles", "cycle", "155.229", metrics.CYCLES, 155_229.0),
    ("Waves Per SM", "", "1.234,5", metrics.WAVES, 1234.5),
    ("DRAM Throughput", "%", "38,104", metrics.SOL["dram"], 38.104),
    ("L2 Hit Rate", "%", "0,5", metrics.L2_HIT, 0.5),
]


@pytest.mark.parametrize("kind", ["details", "log"])
@pytest.mark.parametrize("blank", ["", "\u202f", " "], ids=["points", "thin blanks", "blanks"])
def test_figures_with_a_decimal_comma_are_read_by_it(tmp_path: Path, kind: str, blank: str) -> None:
    cells = [(label, unit, text.replace(".", blank or ".")) for label, unit, text, _, _ in COMMA]
    if kind == "details":
        lines = [f'{FACTS},"","{label}","{unit}","{text}","","","","",""' for label, unit, text in cells]
        text = many(DETAILS, *lines, f'{FACTS},"","","","","Occupancy","OPT","text","global","61,9"')
    else:
        lines = [f"    {label:<30} {unit:>10}     {text}" for label, unit, text in cells]
        heading = next(line for line in LOG.splitlines() if line.startswith("  splitk"))
        text = many("[812] python@host", heading, *lines, "    OPT   Est. Speedup: 61,9%")
    [report] = profile.read(written(tmp_path, text))
    assert dict(report.metrics) == {metric: value for *_, metric, value in COMMA}
    assert report.rules[0].estimate == pytest.approx(0.619)


@pytest.mark.parametrize(
    ("name", "unit", "text", "value"),
    [
        (metrics.SOL["dram"], "%", "38,104", 38.104),  # a share of a peak cannot be 38104 %
        (metrics.SOL["dram"], "%", "38.104", 38.104),
        (metrics.INSTRUCTIONS, "inst", "155.229", 155_229),  # nor a count a fraction
        (metrics.INSTRUCTIONS, "inst", "155,229", 155_229),
        (metrics.DURATION, "ns", "86,400", 86_400),
        (metrics.WAVES, "", "0,123", 0.123),
        (metrics.WAVES, "", "12,34,567", 1_234_567),
        (metrics.WAVES, "", "1'234.5", 1234.5),
        (metrics.WAVES, "", "1234", 1234.0),
    ],
)
def test_one_figure_alone_is_read_by_what_it_can_be(
    tmp_path: Path, name: str, unit: str, text: str, value: float
) -> None:
    table = many(f'"ID","Kernel Name","Device","{name}"', f'"","","","{unit}"', f'"0","k","0","{text}"')
    assert dict(profile.read(written(tmp_path, table))[0].metrics) == {name: value}


@pytest.mark.parametrize(
    ("figures", "message"),
    [
        (("86,400",), r"'86,400' \(gpu__time_duration.sum of k\)"),
        (("86,40", "1,151.50"), r"both marks: '1,151\.50' .*'86,40' \(gpu__time"),
    ],
    ids=["nothing settles it", "both conventions"],
)
def test_a_figure_of_two_meanings_is_refused_by_name(
    tmp_path: Path, figures: tuple[str, ...], message: str
) -> None:
    rows = [f'"{place}","k","0","{text}"' for place, text in enumerate(figures)]
    table = many('"ID","Kernel Name","Device","gpu__time_duration.sum"', '"","","","us"', *rows)
    with pytest.raises(ArtifactError, match=message):
        profile.read(written(tmp_path, table))


@pytest.mark.parametrize("name", [metrics.SOL["dram"], metrics.PIPES["tensor"], metrics.THEORETICAL])
def test_a_share_above_a_peak_is_refused(tmp_path: Path, name: str) -> None:
    table = many(f'"ID","Kernel Name","Device","{name}"', '"","","","%"', '"0","k","0","3810.4"')
    with pytest.raises(ArtifactError, match=rf"3810\.4 % \({name}"):
        profile.read(written(tmp_path, table))
    hit = table.replace(name, metrics.L2_HIT).replace("3810.4", "173.59")
    assert profile.read(written(tmp_path, hit))[0].metrics == {metrics.L2_HIT: 173.59}


@pytest.mark.parametrize("kind", ["raw", "details"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"], ids=["comma", "semicolon", "tab"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_spreadsheets_and_shells_may_have_rewritten_it(
    tmp_path: Path, kind: str, delimiter: str, encoding: str
) -> None:
    import csv
    import io

    text = raw() if kind == "raw" else many(DETAILS, details("86.40"))
    known = profile.read(written(tmp_path, text))
    rows = list(csv.reader(line for line in text.splitlines() if line.startswith('"')))
    buffer = io.StringIO(newline="")
    csv.writer(buffer, delimiter=delimiter).writerows(rows)  # quotes only where a cell needs them
    assert buffer.getvalue().startswith("ID")
    path = tmp_path / "rewritten.csv"
    path.write_bytes(buffer.getvalue().encode(encoding))
    assert profile.read(path) == known


def test_a_row_that_lost_the_quotes_of_its_cells_is_refused(tmp_path: Path) -> None:
    bare = many(*(line.replace('"', "") for line in (DETAILS, details("86.40"))))
    with pytest.raises(ArtifactError, match="20 cells in a row.*got 25"):
        profile.read(written(tmp_path, bare))


SUMMARY = (
    '"Process ID","Process Name","Host Name","Kernel Name","Block Size","Grid Size","Device","CC",'
    '"Invocations","Section Name","Metric Name","Metric Unit","Minimum","Maximum","Average"'
)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (
            many(SUMMARY, '"812","python","host","k","(1, 1, 1)","(1, 1, '
                          '1)","0","9.0","14","","Duration","us","1.0","2.0","1.5"'),
            "--print-summary",
        ),
        (LOG.replace("Device 0, CC 10.0", "Device 0, CC 10.0, Invocations 3"), "--print-summary"),
        ('"ID","Estimated Speedup","Function Name","Demangled Name","Duration"\n"0","12","k","k","1.5"\n',
         "--page summary"),
        ('"#","Address","Source","Warp Stall Sampling"\n"0","1","MOV","3"\n', "--page source"),
    ],
    ids=["print-summary", "printed print-summary", "summary", "source"],
)  # fmt: skip
def test_pages_that_say_nothing_of_launches_are_refused_by_name(
    tmp_path: Path, text: str, named: str
) -> None:
    with pytest.raises(ArtifactError, match=named):
        profile.read(written(tmp_path, text))


@pytest.mark.parametrize(("name", "launches"), [("planted_h200", 16), ("kernels_h200", 22)])
def test_records_kept_with_the_project_are_read(name: str, launches: int) -> None:
    pytest.importorskip("pydantic")
    reports = profile.read(Path(__file__).parent / "data" / f"{name}.json.xz")
    assert len(reports) == launches
    works = [profile.fingerprint(report).workload for report in reports]
    assert all(bool(work.op) == (name == "kernels_h200") for work in works)
    assert profile.load(profile.KernelReport, profile.dump(reports[0])) == reports[0]


def test_a_damaged_packed_record_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cut.json.xz"
    path.write_bytes((Path(__file__).parent / "data" / "planted_h200.json.xz").read_bytes()[:200])
    with pytest.raises(ArtifactError, match="xz"):
        profile.read(path)
