"""The documents match the code: examples run, generated parts are in step, codes and variables are listed."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

from dsl_kernels import backends, env, errors, measured, variants
from dsl_kernels.cli import laboratory
from dsl_kernels.tile import kinds
from dsl_kernels.tile.text import Recorder, View
from dsl_kernels_lab import RECORDS
from dsl_kernels_lab.cases import gqa_regions
from dsl_kernels_lab.timing import results
from dsl_kernels_lab.verification import runs

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "AGENTS.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
SOURCES = [
    path
    for folder in ("dsl_kernels", "dsl_kernels_lab", "ptx_emulator", "codegen")
    for path in sorted((ROOT / folder).rglob("*.py"))
]
LINK = re.compile(r"!?\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")
BUDGET_BYTES = 150_000


def script(name: str) -> ModuleType:
    """A module of scripts/, which is not a package."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


count_lines = script("count_lines")
walkthrough = script("walkthrough")
case_pages = script("case_pages")
command_pages = script("command_pages")
ladder = script("ladder")
draw_pipeline = script("draw_pipeline")
record_builds = script("record_builds")
update_docs = script("update_docs")
planted_causes = update_docs.planted_causes


def python_blocks(path: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE)


def raised_codes() -> set[str]:
    """Codes of errors and violations, read from the sources of the library and the generator."""
    codes = set()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            values = [keyword.value for keyword in node.keywords if keyword.arg == "code"]
            if getattr(node.func, "id", "") == "Violation" and node.args:
                values.append(node.args[0])
            codes.update(v.value for v in values if isinstance(v, ast.Constant) and isinstance(v.value, str))
    return codes


def documented_codes() -> set[str]:
    return set(re.findall(r"^\| `([A-Z_]+)` \|", (ROOT / "docs" / "errors.md").read_text(), re.MULTILINE))


def test_the_examples_of_operations_run_on_a_cpu() -> None:
    """The second example goes on from the first."""
    step, beside = python_blocks(ROOT / "docs" / "operations.md")
    assert "gqa_forward(" in beside and "resample_trajectories(" in beside
    done = subprocess.run(
        [sys.executable, "-c", step + beside], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("chosen by") == 3


def test_the_example_of_a_step_of_deepseek_v4_runs_on_a_cpu() -> None:
    (block,) = [b for b in python_blocks(ROOT / "docs" / "engines.md") if "import torch" in b]
    done = subprocess.run(
        [sys.executable, "-c", block], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and block.count("assert") == 3, done.stderr


def test_the_table_of_formats_names_each_with_its_heads() -> None:
    """Formats that `sparse_mla` takes, and the numbers of heads that have kernels of their own."""
    text = (ROOT / "docs" / "engines.md").read_text()
    rows = re.findall(r'^\| `"(\w+)"` \|(?:[^|]*\|){3} ([\d, -]+) \|', text, re.MULTILINE)
    own = defaultdict(set)
    for variant in variants.variants("sparse_mla"):
        own[variant.knobs["kv"]].add(variant.knobs["heads"])
    own["v41_planar"] = own["v41"]
    numbers = {name: sorted(map(int, heads - {"any"})) for name, heads in own.items()}
    assert {name: [int(n) for n in re.findall(r"\d+", heads)] for name, heads in rows} == numbers


def test_the_page_of_commands_names_those_of_the_laboratory() -> None:
    text = (ROOT / "docs" / "reference" / "commands.md").read_text()
    (told,) = re.findall(r"the distribution `dsl_kernels_lab`: (.*?)\.", text)
    assert tuple(re.findall(r"`([\w-]+)`", told)) == laboratory.COMMANDS


def test_tables_excerpts_and_pictures_are_in_step() -> None:
    stale = [path.relative_to(ROOT).as_posix() for path in update_docs.outdated()]
    assert stale == [], "run `make docs`"


@pytest.mark.parametrize("variant", variants.variants(), ids=lambda v: v.id)
def test_every_variant_can_be_drawn(variant) -> None:
    assert ElementTree.fromstring(draw_pipeline.draw(variant)).tag.endswith("svg")


def test_pictures_are_small() -> None:
    for path in draw_pipeline.pictures():
        assert path.stat().st_size < BUDGET_BYTES


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.name)
def test_links_lead_somewhere(path: Path) -> None:
    targets = [link for link in LINK.findall(path.read_text()) if "://" not in link]
    assert [link for link in targets if not (path.parent / link).exists()] == []


def kept_results(folder: Path) -> results.Results:
    """A file of results below `folder`: a row beats its peer, one is slower, one kernel was removed."""
    known = variants.variants("sparse_mla", arch="sm_90a")[0].id
    made = {known: results.fingerprint(known)}

    def row(op: str, form: str, point: str, us: float, kernels: dict[str, str]) -> results.Row:
        peer = results.PeerTime("FlashMLA", "1.0", 10.0, (10.0,))
        return results.Row("attention", op, form, f"{form} {point}", kernels, us, (us,), (peer,))

    rows = (
        row("sparse_mla", "bf16", "t=1 heads=16", 5.0, made),
        row("sparse_mla", "v4", "t=2 heads=16", 13.0, made),
        row("topk_selector", "default", "rows=1", 12.0, {"topk_selector__cutedsl_sm90a__gone": "0"}),
    )
    run = results.Run("2026-12-01", "python -m dsl_kernels bench --record", "580", "ab")
    kept = results.Results("NVIDIA H200", "abc", "0.1.0", {"torch": "2"}, (run,), rows)
    results.write(results.path_of(kept.gpu, folder), kept)
    return kept


def test_pages_picture_and_figures_come_from_the_file_of_results(tmp_path: Path) -> None:
    kept = kept_results(tmp_path)
    assert update_docs.results_pages(tmp_path) == {tmp_path / "docs" / "results_h200.md": results.page(kept)}
    beside = draw_pipeline.beside_peers(tmp_path)
    assert beside.peers == ["FlashMLA"] and "commit abc" in beside.taken
    assert beside.groups["attention, bf16"] == [(0.5, "t=1, heads=16")]
    assert beside.slower == [
        (1.3, "attention, v4, t=2, heads=16"), (1.2, "selection, rows=1 (kernel changed since)"),
    ]  # fmt: skip
    picture = draw_pipeline.results_picture(tmp_path)
    assert "1 faster, 2 slower; in turns on one card, at commit abc" in picture
    assert "t=2, heads=16: 1.30" in picture
    assert ElementTree.fromstring(picture).tag.endswith("svg")


def test_sizes_behind_a_peer_are_marked_in_the_last_record(tmp_path: Path) -> None:
    kept_results(tmp_path)
    lines = update_docs.behind(tmp_path).splitlines()[2:]
    assert [line.split(" | ")[2:] for line in lines] == [
        ["behind, 1.30", "not analysed |"],
        ["behind, 1.20", "not analysed |"],
    ]
    timed = [
        f"{row.op} {row.point}"
        for path in (ROOT / results.FOLDER).glob("*.json")
        for row in results.read(path).rows
    ]
    assert [size for size in update_docs.CHANGE_PLACES if size not in timed] == []


def test_without_results_the_picture_says_that_its_times_are_not_of_one_run(tmp_path: Path) -> None:
    assert update_docs.results_pages(tmp_path) == {}
    beside = draw_pipeline.beside_peers(tmp_path)
    assert "not one run" in beside.taken and sum(map(len, beside.groups.values())) > 50


WORDS = """one two three four five six seven eight nine ten eleven twelve
thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty"""
NUMBERS = {word: value for value, word in enumerate(re.findall(r"\w+", WORDS), start=1)}
NOUNS = "variants|modules|tests|claims|verdicts|mutants|checks|probes|structures|attacks|bugs"
# Small counts of these nouns can be what a sentence is about; large ones count the project.
MANY_NOUNS = "kernels|commands"
FEW = "one|two|three"
BETWEEN = r"(?: of (?:the|its|all))?(?: (?!for |of |with )[\w`/-]+){0,2}? "
COUNT = re.compile(
    rf"(?<![-\w.])(?:\d[\d,]*|{'|'.join(NUMBERS)}){BETWEEN}(?:{NOUNS})\b"
    rf"|(?<![-\w.])(?!(?:{FEW})\b)(?:\d[\d,]*|{'|'.join(NUMBERS)}){BETWEEN}(?:{MANY_NOUNS})\b",
    re.IGNORECASE,
)
DATE = re.compile(r"20\d\d-\d\d-\d\d")
NOT_PROSE = re.compile(r"<!-- begin (\w+) -->.*?<!-- end \1 -->|```.*?```", re.DOTALL)


def counts(text: str) -> list[str]:
    """Phrases of prose that count parts of the project, outside generated text and sentences with a date."""
    blocks = re.split(r"\n\n|\n(?=[|#-])", NOT_PROSE.sub("", text))
    sentences = [s for block in blocks for s in re.split(r"(?<=[.:;]) ", " ".join(block.split()))]
    return [match[0] for s in sentences if not DATE.search(s) for match in COUNT.finditer(s)]


def constant(path: str, name: str) -> int:
    """A number that a file of the tests assigns to a name, or the length of a sequence."""
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == name:
            return (
                len(node.value.elts)
                if isinstance(node.value, (ast.List, ast.Tuple))
                else ast.literal_eval(node.value)
            )
    raise LookupError(f"{path} assigns nothing to {name}")


def sanitized_mutants() -> int:
    text = (ROOT / "tests" / "emulator" / "test_sanitized.py").read_text()
    return int(re.search(r"fuzz_ptx\((\d+)", text)[1])


def rendered_schedules() -> int:
    """Schedules that the case of attention's regions launches and the committed set lacks."""
    return sum(
        bool(probe) or schedule.knobs != dict(schedule.committed.knobs)
        for schedule, probe in gqa_regions.every()
    )


# Counts in prose, and the function that gives the right number.
HELD = {
    ("cases/gqa_regions.md", "17 variants"): rendered_schedules,
    ("ladder.md", "Six kernels"): lambda: len(ladder.RUNGS),
    ("kernel_checks.md", "3 mutants"): lambda: constant("tests/numerics/test_mutated_texts.py", "SAMPLE"),
    ("emulator_evidence.md", "81 seeded bugs"): lambda: constant("tests/emulator/test_mutations.py", "BUGS"),
    ("emulator_evidence.md", "600 mutants"): sanitized_mutants,
    ("emulator_evidence.md", "four compiled variants"): lambda: constant("tests/fuzz/ptx.py", "VARIANTS"),
    ("profiling_evidence.md", "Sixteen kernels"): lambda: len(planted_causes.planted(132)),
    ("two_dsls.md", "two generated modules"): lambda: len(backends.names()),
    ("two_dsls.md", "two modules"): lambda: len(backends.names()),
}


@pytest.mark.parametrize("path", [p for p in DOCUMENTS if p.name != "CHANGELOG.md"], ids=lambda p: p.name)
def test_counts_in_prose_are_generated_held_or_dated(path: Path) -> None:
    phrases = counts(path.read_text())
    page = path.relative_to(ROOT / "docs").as_posix() if path.is_relative_to(ROOT / "docs") else path.name
    assert [phrase for phrase in phrases if (page, phrase) not in HELD] == [], (
        "generate the count, hold it in HELD, date its sentence, or leave it out"
    )
    listed = [phrase for name, phrase in HELD if name == page]
    assert [phrase for phrase in listed if phrase not in phrases] == []
    for phrase in listed:
        number = phrase.split()[0].lower()
        stated = NUMBERS[number] if number in NUMBERS else int(number.replace(",", ""))
        assert stated == HELD[page, phrase](), phrase


@pytest.mark.parametrize(
    ("text", "phrases"),
    [
        ("All 70 sm_90a variants matched.", ["70 sm_90a variants"]),
        ("On 2026-11-21 all 70 variants matched.", []),
        ("It has\n203 variants, and sixteen claims fail.", ["203 variants", "sixteen claims"]),
        ("<!-- begin x -->\n70 variants\n<!-- end x -->", []),
        ("the two kernels of a step, and 620 kernels", ["620 kernels"]),
        ("about 2,500 mutants; the tests", ["2,500 mutants"]),
    ],
)
def test_counts_are_found(text: str, phrases: list[str]) -> None:
    assert counts(text) == phrases


def test_records_name_variants_that_exist() -> None:
    known = {v.id for v in variants.variants()}
    for path in (runs.PATH, *sorted(measured.TUNED.glob("*.json")), *sorted(RECORDS.glob("*.json"))):
        named = set(re.findall(r'"(\w+__(?:tilelang|cutedsl)_sm\w+?__\w+)"', path.read_text()))
        assert named <= known, path.name


def test_every_block_marker_is_known_and_closed() -> None:
    for path in DOCUMENTS:
        text = path.read_text()
        begun = re.findall(r"<!-- begin (\w+) -->", text)
        assert begun == re.findall(r"<!-- end (\w+) -->", text) and set(begun) <= set(update_docs.BLOCKS), (
            path.name
        )


def outside(path: Path, *blocks: str) -> str:
    """A document without some of its generated blocks."""
    text = path.read_text()
    for block in blocks:
        text = re.sub(rf"<!-- begin {block} -->.*?<!-- end {block} -->", "", text, flags=re.DOTALL)
    return text


BODIES, STATEMENTS, LEAVES = (ROOT / "docs" / f"{name}.md" for name in ("bodies", "statements", "leaves"))


def test_the_pages_define_every_name_of_the_body_that_it_reads() -> None:
    """Excerpts and a table define the names; excerpts and prose the attributes of m, s, kernel and slots."""
    shown = "\n\n\n".join(
        re.search(rf"<!-- begin {block} -->\n```python\n(.*?)```", BODIES.read_text(), re.DOTALL)[1]
        for block in ("body_names", "body")
    )
    listed = set(re.findall(r"^\| `(\w+)` \| `[\w.]+` \|", BODIES.read_text(), re.MULTILINE))
    assert set(walkthrough.free(shown)) <= listed
    told = outside(BODIES, "body") + STATEMENTS.read_text()
    asked = {node.attr for node in ast.walk(ast.parse(walkthrough.body())) if isinstance(node, ast.Attribute)}
    assert {"multiply", "wait", "release", "tiles", "skv", "k_s"} <= asked
    assert [name for name in sorted(asked) if not re.search(rf"\b{name}\b", told)] == []


def test_free_names_are_found() -> None:
    """An excerpt that omits a function, a constant or an import is noticed."""
    text = (
        "def f(m: Recorder, n: int) -> None:\n    kept = LANES + n\n    def inner(): return kept + place(m)\n"
    )
    assert walkthrough.free(text) == ["LANES", "Recorder", "place"]


# Methods that plain Python, names and channels use: bodies never call them (tests/unit/test_frontend.py).
BEHIND = {
    "acquire", "call", "comment", "commit", "declare", "dim", "drain", "known_as", "is_variable", "let",
    "loop", "otherwise", "release",
    "repeat", "scalar", "scope", "set", "slot", "var", "wait", "when", "within",
}  # fmt: skip


def test_the_pages_list_what_a_body_and_a_leaf_may_say() -> None:
    methods = {name for name in vars(Recorder) if not name.startswith("_")}
    assert methods >= BEHIND
    text = STATEMENTS.read_text()
    assert [name for name in sorted(methods - BEHIND) if not re.search(rf"\bm\.{name}\b", text)] == []
    parts = [name for name in vars(View) if not name.startswith("_") and callable(getattr(View, name))]
    assert "stage" in parts and [name for name in parts if f"view.{name}(" not in text] == []
    assert [name for name in kinds.__all__ if not re.search(rf"\b{name}\b", LEAVES.read_text())] == []


def test_every_error_code_is_documented() -> None:
    classes = [
        c for c in vars(errors).values() if inspect.isclass(c) and issubclass(c, errors.DslKernelError)
    ]
    text = (ROOT / "docs" / "errors.md").read_text()
    assert {c.default_code for c in classes} | raised_codes() <= documented_codes()
    assert [c.__name__ for c in classes if f"`{c.__name__}`" not in text] == []


def test_no_documented_code_is_gone() -> None:
    source = "".join(path.read_text() for path in SOURCES)
    assert [code for code in sorted(documented_codes()) if f'"{code}"' not in source] == []


def test_every_environment_variable_is_declared_and_documented() -> None:
    declared = {row["name"] for row in env.table()}
    text = (ROOT / "docs" / "environment.md").read_text()
    assert set(re.findall(r"^\| `(DSL_KERNELS_\w+)` \|", text, re.MULTILINE)) == declared
    used = {name for path in SOURCES for name in re.findall(r"DSL_KERNELS_[A-Z_]+", path.read_text())}
    assert used <= declared


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.name)
def test_named_commands_exist(path: Path) -> None:
    from typer.main import get_command

    from codegen.__main__ import app as generator
    from dsl_kernels.cli import app as library

    known = {
        "codegen": set(get_command(generator).commands),
        "dsl_kernels": set(get_command(library).commands),
    }
    for package, command in re.findall(r"python -m (codegen|dsl_kernels) ([a-z][\w-]*)", path.read_text()):
        assert command in known[package], f"python -m {package} {command}"
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for target in re.findall(r"(?:`|^)make ([a-z][a-z-]*)", path.read_text(), re.MULTILINE):
        assert target in targets, f"make {target}"
