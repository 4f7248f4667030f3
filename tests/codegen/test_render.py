"""Rendering: deterministic, in step with generated/, and unable to depart from the declared pipelines."""

from __future__ import annotations

import ast
import json
from dataclasses import replace
from pathlib import Path

import jinja2
import pytest

from codegen import emit, render
from codegen.sweep import Filter, sweep
from dsl_kernels.errors import TemplateError, UnknownNameError

CANDIDATES = sweep().kept
DSL_PACKAGES = ("tilelang", "cutlass")


@pytest.fixture(params=CANDIDATES, ids=lambda c: c.id)
def candidate(request):
    return request.param


def test_renders_to_valid_literal_python(candidate) -> None:
    text = render.render(candidate)
    tree = ast.parse(text)
    assert any(isinstance(node, ast.FunctionDef) and node.name == candidate.id for node in ast.walk(tree))
    imported = {
        node.module if isinstance(node, ast.ImportFrom) else alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    allowed = {
        *DSL_PACKAGES,
        f"dsl_kernels.device.{candidate.backend}",
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


def test_rendering_twice_gives_the_same_bytes(candidate) -> None:
    assert render.render(candidate) == render.render(candidate)


def test_generated_is_in_step() -> None:
    assert emit.emit(CANDIDATES, dry_run=True).drifted == []


def test_stale_files_are_removed_and_only_changes_are_written(tmp_path: Path) -> None:
    few = CANDIDATES[:2]
    first = emit.emit(few, tmp_path)
    assert len(first.written) == 3
    stale = tmp_path / few[0].arch.name / few[0].program.op / "old__variant.py"
    stale.write_text("")
    again = emit.emit(few, tmp_path)
    assert (
        again.written == []
        and again.removed == [stale.relative_to(tmp_path).as_posix()]
        and not stale.exists()
    )
    touched = tmp_path / emit.relative_path(few[1])
    touched.write_text(touched.read_text() + "# edited\n")
    assert emit.emit(few, tmp_path, dry_run=True).drifted == [emit.relative_path(few[1])]
    assert touched.read_text().endswith("# edited\n")


def test_a_filtered_run_keeps_what_is_outside_and_removes_what_is_stale_inside(tmp_path: Path) -> None:
    first = CANDIDATES[0]
    others = [c for c in CANDIDATES if c.program.op != first.program.op][:2]
    inside = [c for c in CANDIDATES if c.program.op == first.program.op and c.arch == first.arch][:3]
    emit.emit([*inside, *others], tmp_path)
    only = Filter(op=first.program.op, arch=first.arch.name)
    emission = emit.emit(inside[:1], tmp_path, only=only)
    assert emission.removed == sorted(emit.relative_path(c) for c in inside[1:])
    listed = [record["id"] for record in json.loads((tmp_path / emit.MANIFEST).read_text())["variants"]]
    assert sorted(listed) == sorted(c.id for c in [inside[0], *others])
    assert all((tmp_path / emit.relative_path(c)).exists() for c in others)


def with_template(monkeypatch, candidate, edit) -> str:
    """Render with the template's text changed by `edit`."""
    source = candidate.template.read_text()
    changed = edit(source)
    assert changed != source, "the mutation did not apply"
    real = render.environment()
    override = jinja2.DictLoader({f"{candidate.backend}/{candidate.template.name}": changed})
    environment = real.overlay(loader=jinja2.ChoiceLoader([override, real.loader]))
    monkeypatch.setattr(render, "environment", lambda: environment)
    return render.render(candidate)


def pipelined():
    """A candidate whose own template spells the commit of its first pipeline."""
    for candidate in CANDIDATES:
        pipelines = candidate.program.schedule(candidate.knobs, candidate.arch).pipelines
        if pipelines and f"pipe.{pipelines[0].name}.commit(" in candidate.template.read_text():
            return candidate
    raise LookupError("no template spells its first pipeline")


def test_a_template_that_drops_a_declared_step_does_not_render(monkeypatch) -> None:
    candidate = pipelined()
    pipe = candidate.program.schedule(candidate.knobs, candidate.arch).pipelines[0]
    with pytest.raises(TemplateError, match=f"no {pipe.name} commit"):
        with_template(monkeypatch, candidate, lambda s: s.replace(f"pipe.{pipe.name}.commit(", "dict(use="))


def test_an_undefined_name_is_an_error_with_the_template_and_variant(monkeypatch) -> None:
    candidate = CANDIDATES[0]
    with pytest.raises(TemplateError, match=f"{candidate.template.name}.*nothing_like_it.*{candidate.id}"):
        with_template(monkeypatch, candidate, lambda s: s + "{{ nothing_like_it }}\n")


def test_an_undeclared_pipeline_is_an_error(monkeypatch) -> None:
    with pytest.raises(TemplateError, match="a declared pipeline"):
        with_template(monkeypatch, CANDIDATES[0], lambda s: s + "{{ pipe.nowhere.acquire('i') }}\n")


def test_barrier_counts_come_from_the_declaration(monkeypatch) -> None:
    """Changing the declaration alone changes the generated barriers."""
    candidate = pipelined()
    declared = candidate.program.declare

    def wider(k, arch):
        s = declare_once(k, arch)
        roles = tuple(
            replace(r, warps=r.warps + 4) if r.name == s.pipelines[0].readers[0].role else r for r in s.roles
        )
        return replace(s, roles=roles)

    declare_once = declared
    changed = replace(candidate, program=replace(candidate.program, declare=wider))
    assert render.render(changed) != render.render(candidate)


def test_a_filter_that_can_match_nothing_is_an_error() -> None:
    with pytest.raises(UnknownNameError, match="did you mean sparse_mla"):
        sweep(0, Filter(op="sparse_mlaa"))


@pytest.mark.parametrize("limit", [250])
def test_templates_can_be_read_in_one_sitting(limit: int) -> None:
    from codegen.sweep import TEMPLATES

    long = {p.name: n for p in TEMPLATES.rglob("*.j2") if (n := len(p.read_text().splitlines())) > limit}
    assert long == {}, f"move leaf maths to dsl_kernels/device: {long}"


@pytest.mark.parametrize(
    "template",
    sorted({c.template for c in CANDIDATES}),
    ids=lambda path: f"{path.parent.name}/{path.name.removesuffix('.py.j2')}",
)
def test_touching_a_template_changes_its_variants_and_no_others(monkeypatch, tmp_path, template) -> None:
    """What is compiled again follows: the cache goes by the text of the module."""
    emit.emit(CANDIDATES, tmp_path)
    mine = [c for c in CANDIDATES if c.template == template]
    # The last line of a file stands in no branch.
    with_template(monkeypatch, mine[0], lambda s: s.rstrip("\n") + "\n# touched\n")
    written = emit.emit(CANDIDATES, tmp_path).written
    assert sorted(written) == sorted([*map(emit.relative_path, mine), emit.MANIFEST])
