"""Rendering: deterministic, in step with generated/, and unable to depart from the declared pipelines."""

from __future__ import annotations

import ast
import importlib
import json
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import jinja2
import pytest

from codegen import emit, render
from codegen import sweep as sweeping
from codegen.sweep import FUNCTIONS, Filter, Instance, backends, leaf_files, leaf_modules, sweep
from dsl_kernels import programs, variants
from dsl_kernels.arch import get_arch
from dsl_kernels.errors import (
    CacheError,
    DeclarationError,
    DslKernelError,
    InvalidArgumentError,
    TemplateError,
    UnknownNameError,
)
from dsl_kernels.runtime import storage
from dsl_kernels.tile.lang import named
from dsl_kernels.tile.leaf_text import Function
from dsl_kernels.tile.text import Call, Recorder, walk


def instances() -> list[Instance]:
    """The instances of finished operations; an unfinished one has a test of its own below."""
    found = []
    for op in programs.names():
        with suppress(DslKernelError):
            kept = sweep(0, Filter(op=op)).kept
            render.render(kept[0])
            found += kept
    return found


INSTANCES = instances()
DSL_PACKAGES = ("tilelang", "cutlass")


@pytest.fixture(params=INSTANCES, ids=lambda c: c.id)
def instance(request):
    return request.param


def rendered(instance: Instance) -> str:
    """The committed module, which test_generated_is_in_step compares with the rendered one; else rendered."""
    path = emit.GENERATED / emit.relative_path(instance)
    return path.read_text() if path.exists() else render.render(instance)


def test_renders_to_valid_literal_python(instance) -> None:
    text = rendered(instance)
    tree = ast.parse(text)
    assert any(isinstance(node, ast.FunctionDef) and node.name == instance.id for node in ast.walk(tree))
    imported = {
        node.module if isinstance(node, ast.ImportFrom) else alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    allowed = {
        *DSL_PACKAGES,
        f"dsl_kernels.device.{instance.backend}",
        f"dsl_kernels.kernels.{instance.program.op}",
        "dsl_kernels.runtime.artifact",
        "math",
    }
    for module in imported:
        assert any(module == root or module.startswith(root + ".") for root in allowed), module
    assert (
        "\x00" not in text
        and "{{" not in text
        and not any(line != line.rstrip() for line in text.split("\n"))
    )


def test_a_role_is_a_function_that_says_its_purpose(instance) -> None:
    tree = ast.parse(rendered(instance))
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    schedule = instance.program.schedule(instance.knobs, instance.arch)
    for role in schedule.roles:
        docstring = ast.get_docstring(functions[role.name])
        assert docstring.rstrip(".").lower() == role.doc.rstrip(".").lower()
    kernel = next(n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == instance.id)
    called = [n.func.id for n in ast.walk(kernel) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]
    assert {role.name for role in schedule.roles} <= set(called)


def test_sizes_have_names_that_are_defined_once_and_used(instance) -> None:
    tree = ast.parse(rendered(instance))
    products = {m.name.upper() for m in instance.program.schedule(instance.knobs, instance.arch).mmas}
    others = products | {"LAUNCH", "PASS_CONFIGS", "RESIDENT"}
    defined = [t.id for n in tree.body if isinstance(n, ast.Assign) for t in n.targets if t.id not in others]
    read = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    assert len(defined) == len(set(defined)) and defined
    assert {name for name in read if name.isupper() and len(name) > 1} - others == set(defined)
    numbers = {name for name, value in instance.knobs.items() if isinstance(value, int)}
    block = instance.program.schedule(instance.knobs, instance.arch).constants.get("head_block")
    if block is not None and block == instance.knobs.get("heads"):
        numbers -= {"heads"}  # Those of a CTA, which may have a name of their own.
    assert numbers & {"tile", "heads", "threads"} <= {name.lower() for name in defined}


def test_lines_fit_and_comments_come_from_the_declaration(instance) -> None:
    text = rendered(instance)
    body = text.split('"""', 2)[2]
    assert [line for line in body.split("\n") if len(line) > render.WIDTH] == []
    schedule = instance.program.schedule(instance.knobs, instance.arch)
    assert all(f"# {mma.doc}\n" in body for mma in schedule.mmas if mma.doc)
    words = " ".join(body.replace("#", " ").split())
    statements = instance.program.text(instance.knobs, instance.arch)
    for s in walk((*statements.start, *(s for part in statements.roles.values() for s in part))):
        if isinstance(s, Call):
            assert " ".join(s.leaf.doc.split("\n\n")[0].split()) in words


@pytest.mark.parametrize(
    "line",
    [
        "    "
        + "a_rather_long_name = some_function("
        + ", ".join(f"argument_{i}[{i}, :]" for i in range(12))
        + ")",
        "def score(" + ", ".join(f"parameter_{i}: Int32" for i in range(12)) + "):\n    pass",
        "x = rows[" + ", ".join(f"first_{i} : first_{i} + 64" for i in range(12)) + "]",
        "x = f(g(" + ", ".join("1234567" for _ in range(12)) + "), 'a', \"b, (c\", " + "d" * 60 + ")",
        "x = " + "a_long_name + " * 5 + "f(3 * y) * " + "b_long_name * " * 2 + "b",
    ],
)
def test_wrapping_a_line_changes_nothing_but_its_lines(line) -> None:
    first, *rest = line.split("\n")
    lines = render.wrapped(first)
    assert len(lines) > 1 and max(map(len, lines)) <= render.WIDTH
    told = ["\n".join([*part, *rest]).strip() for part in ([first], lines)]
    assert ast.dump(ast.parse(told[0])) == ast.dump(ast.parse(told[1]))


def test_only_imports_that_are_needed_are_kept() -> None:
    body = "from a.b import c, d\nfrom a import e as f\nfrom a import g as h\n\nc(1, d=2)  # d\nf.x('h')\n"
    assert render.needed_imports(body).split("\n")[:2] == ["from a.b import c", "from a import e as f"]


@pytest.mark.sample(32)
def test_rendering_twice_gives_the_same_bytes(instance) -> None:
    assert render.render(instance) == render.render(instance)


def test_a_text_is_recorded_once_and_apart_where_its_sizes_have_names() -> None:
    instance = next(c for c in INSTANCES if c.program.op == "window_ids")
    plain = instance.program.text(instance.knobs, instance.arch)
    assert instance.program.text(dict(instance.knobs), instance.arch) is plain
    spelled = instance.program.text(named(instance.knobs), instance.arch)
    assert spelled is not plain
    assert spelled is instance.program.text(named(instance.knobs), instance.arch)


def test_a_pool_of_processes_renders_the_same(monkeypatch, tmp_path) -> None:
    few = [INSTANCES[0], INSTANCES[-1]]
    emit.emit(few, tmp_path)
    monkeypatch.setattr(emit, "WORTH_A_POOL", 2)
    done: list[str] = []
    assert emit.emit(few, tmp_path, dry_run=True, progress=lambda c: done.append(c.id)).drifted == []
    assert done == [c.id for c in few]


@pytest.mark.parametrize("op", programs.names())
def test_generated_is_in_step(op: str) -> None:
    only = Filter(op=op)
    assert emit.emit(sweep(0, only).kept, only=only, dry_run=True).drifted == []


def test_generated_holds_no_operation_that_is_gone() -> None:
    listed = json.loads((emit.GENERATED / emit.MANIFEST).read_text())["variants"]
    assert {record["op"] for record in listed} <= set(programs.names())


def content(folder: Path) -> dict[str, str]:
    return {p.relative_to(folder).as_posix(): p.read_text() for p in folder.rglob("*") if p.is_file()}


def test_stale_files_are_removed_and_only_changes_are_written(tmp_path: Path) -> None:
    few = INSTANCES[:2]
    first = emit.emit(few, tmp_path)
    assert len(first.written) == 3
    kept, stale = map(emit.relative_path, few)
    again = emit.emit(few[:1], tmp_path)
    assert again.written == [emit.MANIFEST] and again.removed == [stale] and again.unchanged == [kept]
    assert set(content(tmp_path)) == {kept, emit.MANIFEST}
    touched = tmp_path / kept
    touched.write_text(touched.read_text() + "# edited\n")
    assert emit.emit(few[:1], tmp_path, dry_run=True).drifted == [kept]
    assert touched.read_text().endswith("# edited\n")


@pytest.mark.parametrize(
    "manifest",
    [
        None,
        "{",
        "[]",
        '{"variants": [{"file": "../notes.py", "id": "x", "op": "x", "backend": "x", "arch": "x"}]}',
        '{"variants": [{"file": "/etc/notes.py", "id": "x", "op": "x", "backend": "x", "arch": "x"}]}',
        '{"variants": [{"file": "away/notes.py", "id": "x", "op": "x", "backend": "x", "arch": "x"}]}',
        '{"name": "a web app", "variants": ["mine.py"]}',
    ],
)
def test_a_folder_of_somebody_else_is_refused_untouched(tmp_path: Path, manifest) -> None:
    (tmp_path / "notes.py").write_text("keep")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "mine.py").write_text("keep")
    (folder / "away").symlink_to(tmp_path)
    if manifest is not None:
        (folder / emit.MANIFEST).write_text(manifest)
    before = content(tmp_path)
    for dry_run in (True, False):
        with pytest.raises(InvalidArgumentError, match="choose another folder with --out"):
            emit.emit(INSTANCES[:1], folder, dry_run=dry_run)
    assert content(tmp_path) == before
    with pytest.raises(InvalidArgumentError, match="got a file"):
        emit.emit(INSTANCES[:1], tmp_path / "notes.py")


def test_files_that_no_manifest_lists_are_left_alone_and_reported(tmp_path: Path) -> None:
    few = INSTANCES[:2]
    emit.emit(few[:1], tmp_path)
    mine = tmp_path / "mine" / "tool.py"
    mine.parent.mkdir()
    mine.write_text("keep")
    emission = emit.emit(few[:1], tmp_path)
    assert emission.removed == [] and emission.foreign == emission.drifted == ["mine/tool.py"]
    taken = tmp_path / emit.relative_path(few[1])
    taken.parent.mkdir(parents=True, exist_ok=True)
    taken.write_text("keep")
    with pytest.raises(InvalidArgumentError, match="no manifest lists"):
        emit.emit(few, tmp_path)
    assert mine.read_text() == taken.read_text() == "keep"


@pytest.mark.parametrize("writes", range(5))
def test_a_run_that_dies_anywhere_is_completed_by_the_next(tmp_path: Path, monkeypatch, writes: int) -> None:
    """In a new folder, an empty manifest, two modules and the manifest are written, in this order."""
    real, done = storage.write_atomically, []

    def dying(path: Path, text: bytes) -> None:
        if len(done) == writes:
            raise KeyboardInterrupt
        done.append(path.name)
        real(path, text)

    few = INSTANCES[:2]
    with monkeypatch.context() as patch:
        patch.setattr(storage, "write_atomically", dying)
        if writes < 4:
            with pytest.raises(KeyboardInterrupt):
                emit.emit(few, tmp_path / "set")
        else:
            emit.emit(few, tmp_path / "set")
            assert done == [emit.MANIFEST, *(f"{c.id}.py" for c in few), emit.MANIFEST]
    emit.emit(few, tmp_path / "set")
    assert set(content(tmp_path / "set")) == {*map(emit.relative_path, few), emit.MANIFEST}
    assert emit.emit(few, tmp_path / "set", dry_run=True).drifted == []


def test_a_folder_that_cannot_be_written_is_a_typed_error(tmp_path: Path, monkeypatch) -> None:
    def full(path: Path, text: bytes) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(storage, "write_atomically", full)
    with pytest.raises(CacheError, match="No space left on device"):
        emit.emit(INSTANCES[:1], tmp_path)


def test_a_filtered_run_keeps_what_is_outside_and_removes_what_is_stale_inside(tmp_path: Path) -> None:
    first = INSTANCES[0]
    others = [c for c in INSTANCES if c.program.op != first.program.op][:2]
    inside = [c for c in INSTANCES if c.program.op == first.program.op and c.arch == first.arch][:3]
    emit.emit([*inside, *others], tmp_path)
    only = Filter(op=first.program.op, arch=first.arch.name)
    emission = emit.emit(inside[:1], tmp_path, only=only)
    assert emission.removed == sorted(emit.relative_path(c) for c in inside[1:])
    listed = [record["id"] for record in json.loads((tmp_path / emit.MANIFEST).read_text())["variants"]]
    assert sorted(listed) == sorted(c.id for c in [inside[0], *others])
    assert all((tmp_path / emit.relative_path(c)).exists() for c in others)


def with_template(monkeypatch, instance, edit) -> str:
    """Render with the template's text changed by `edit`."""
    source = instance.template.read_text()
    changed = edit(source)
    assert changed != source, "the mutation did not apply"
    real = render.environment()
    override = jinja2.DictLoader({f"{instance.backend}/{instance.template.name}": changed})
    environment = real.overlay(loader=jinja2.ChoiceLoader([override, real.loader]))
    monkeypatch.setattr(render, "environment", lambda: environment)
    return render.render(instance)


def pipelined():
    """The first instance whose kernel has pipelines."""
    return next(c for c in INSTANCES if c.program.schedule(c.knobs, c.arch).pipelines)


def test_a_body_that_drops_a_declared_step_does_not_render(monkeypatch) -> None:
    instance = pipelined()
    pipe = instance.program.schedule(instance.knobs, instance.arch).pipelines[0]
    commit = Recorder.commit

    def forget(self, slot):
        if slot.pipeline != pipe:
            commit(self, slot)

    monkeypatch.setattr(Recorder, "commit", forget)
    with pytest.raises(DeclarationError, match=f"pipeline {pipe.name}.* no commit"):
        render.render(instance)


def test_a_dsl_s_files_of_an_operation_are_those_of_its_name(monkeypatch, tmp_path: Path) -> None:
    for stem in ("dsl", "dsl_sm90", "dsls", "leaves"):
        (tmp_path / "gqa").mkdir(exist_ok=True)
        (tmp_path / "gqa" / f"{stem}.py").touch()
    monkeypatch.setattr(sweeping, "KERNELS", tmp_path)
    assert [path.stem for path in leaf_files("dsl", "gqa")] == ["dsl", "dsl_sm90"]
    assert leaf_files("none", "gqa") == leaf_files("dsl", "gqa_forward") == []


def test_columns_of_an_operand_are_refused_where_a_dsl_does_not_spell_them(monkeypatch) -> None:
    instance = next(
        i
        for i in INSTANCES
        if (i.backend, i.program.op, i.arch.name) == ("tilelang", "lightning_indexer", "sm_90a")
    )
    multiply = Recorder.multiply

    def of_columns(self, name, acc, a, b, **kind):
        width = self.schedule.buffer(b.buffer).shape[-1]
        return multiply(self, name, acc, a, b.columns(0, width), **kind)

    monkeypatch.setattr(Recorder, "multiply", of_columns)
    with pytest.raises(TemplateError, match="product score.*some of their columns"):
        render.render(instance)


@pytest.mark.parametrize(
    ("variant", "spelled"),
    [
        ("h128_bf16_bt128_cl1_gather4", ("multiply_halves", "load_rows_of_pair", "bulk.SOURCE")),
        ("h64_bf16_bt64_cl1_hb64_gather4", ("multiply_described", "load_rows(", "tcgen05.SOURCE")),
    ],
)
def test_heads_on_m_of_blackwell_print_in_tilelang(variant: str, spelled: tuple[str, ...]) -> None:
    """These variants are not committed, as they spill (docs/dsl_differences.md). TileLang can print them."""
    knobs = dict(variants.get(f"sparse_mla__cutedsl_sm100a__{variant}").knobs)
    program, arch = programs.get("sparse_mla"), get_arch("sm_100a")
    text = render.render(Instance(program, "tilelang", arch, knobs, sweeping.frame("tilelang")))
    ast.parse(text)
    assert all(words in text for words in spelled)
    # Every panel of the queries in tensor memory has two axes, not only the one that the declaration names.
    panels = re.findall(r"q_t_\d = T.alloc_tmem\((.*?), \"bfloat16\"", text)
    assert len(panels) >= 6 and all(panel.count(",") == 1 for panel in panels)


def test_an_undefined_name_is_an_error_with_the_template_and_variant(monkeypatch) -> None:
    instance = INSTANCES[0]
    with pytest.raises(TemplateError, match=f"{instance.template.name}.*nothing_like_it.*{instance.id}"):
        with_template(monkeypatch, instance, lambda s: s + "{{ nothing_like_it }}\n")


def test_barrier_counts_come_from_the_declaration() -> None:
    """Changing the declaration alone changes the generated barriers."""
    instance = pipelined()
    declared = instance.program.declare

    def wider(k, arch):
        s = declare_once(k, arch)
        roles = tuple(
            replace(r, warps=r.warps + 4) if r.name == s.pipelines[0].readers[0].role else r for r in s.roles
        )
        return replace(s, roles=roles)

    declare_once = declared
    changed = replace(instance, program=replace(instance.program, declare=wider))
    assert render.render(changed) != render.render(instance)


def test_a_filter_that_can_match_nothing_is_an_error() -> None:
    with pytest.raises(UnknownNameError, match="did you mean sparse_mla"):
        sweep(0, Filter(op="sparse_mlaa"))
    with pytest.raises(InvalidArgumentError, match="a regular expression"):
        sweep(0, Filter(name="h16["))


@pytest.mark.parametrize("limit", [250])
def test_templates_can_be_read_in_one_sitting(limit: int) -> None:
    from codegen.sweep import TEMPLATES

    long = {p.name: n for p in TEMPLATES.rglob("*.j2") if (n := len(p.read_text().splitlines())) > limit}
    assert long == {}, f"move leaf maths to dsl_kernels/device: {long}"


@pytest.mark.parametrize(
    "template",
    sorted({c.template for c in INSTANCES}),
    ids=lambda path: f"{path.parent.name}/{path.name.removesuffix('.py.j2')}",
)
def test_touching_a_template_changes_its_variants_and_no_others(monkeypatch, tmp_path, template) -> None:
    """The same modules are then compiled again, as the cache is keyed by the text of the module."""
    listed = list({(c.program.op, c.backend, c.arch.name): c for c in INSTANCES}.values())
    # Render in this process: others would read the template from its file.
    monkeypatch.setattr(emit, "WORTH_A_POOL", len(listed) + 1)
    emit.emit(listed, tmp_path)
    mine = [c for c in listed if c.template == template]
    # The last line of a file is in no branch, so it reaches every module.
    with_template(monkeypatch, mine[0], lambda s: s.rstrip("\n") + "\n# touched\n")
    written = emit.emit(listed, tmp_path).written
    assert sorted(written) == sorted([*map(emit.relative_path, mine), emit.MANIFEST])


@pytest.mark.parametrize("module", FUNCTIONS)
def test_every_function_of_a_leaf_is_spelled_and_told(module: str) -> None:
    """Each function in the table of docs/leaf_functions.md has a meaning, and a DSL that spells it."""
    meant = importlib.import_module(f"dsl_kernels.device.torch.{module}")
    functions = {title for title, value in vars(meant).items() if isinstance(value, Function)}
    modules = (each for dsl in backends() for each in leaf_modules(dsl, "topk_selector", "sm_90"))
    spelled = [names for alias, _, names in modules if alias == module]
    assert len(spelled) == len(backends()) and functions and functions <= frozenset().union(*spelled)
    listed = (Path(emit.ROOT) / "docs" / "leaf_functions.md").read_text()
    for title in functions:
        row = re.search(rf"^\| `{module}` \| `{title}\(.*?\| (.+) \|$", listed, re.MULTILINE)
        assert row, title
        lacking = [dsl for dsl, names in zip(backends(), spelled, strict=True) if title not in names]
        assert row[1].endswith("." if not lacking else f"Not in {', '.join(lacking)}."), title
