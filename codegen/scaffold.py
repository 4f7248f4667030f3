"""`python -m codegen new <op>`: the files of a new kernel, complete in shape but failing until written."""

from __future__ import annotations

import keyword
from pathlib import Path

from dsl_kernels import programs
from dsl_kernels.errors import InvalidArgumentError

from .render import environment
from .sweep import ROOT, TEMPLATES, backends

LEAVES = "_leaves.py.j2"
"""Template of the file by which a DSL takes part in an operation; not every DSL needs one."""

FILES = {
    "dsl_kernels/kernels/{op}/__init__.py": "folder",
    "dsl_kernels/kernels/{op}/problem.py": "problem",
    "dsl_kernels/kernels/{op}/program.py": "program",
    "dsl_kernels/kernels/{op}/policy.py": "policy",
    "dsl_kernels/kernels/{op}/leaves.py": "leaves",
    "dsl_kernels_lab/oracles/{op}.py": "oracle",
    "tests/kernels/{op}/test_{op}.py": "test",
    "tests/kernels/{op}/leaves_{op}.py": "cases",
}
"""The files of a new kernel, each with its template in `templates/_kernel`."""


def _rendered(template: str, **names: str) -> str:
    return environment().get_template(template).render(names)


def scaffold(op: str, root: Path = ROOT) -> list[Path]:
    """Write the files of a new operation below `root` and return their paths.

    Raises:
        InvalidArgumentError: the name is not usable, or a file exists already.
    """
    if not op.isidentifier() or keyword.iskeyword(op) or op != op.lower() or "__" in op or op.startswith("_"):
        raise InvalidArgumentError(
            "op",
            expected="a snake_case name without double underscores",
            got=repr(op),
            fix="try e.g. gqa_forward",
        )
    title = op.replace("_", " ").capitalize()
    files = {
        root / path.format(op=op): _rendered(f"_kernel/{name}.py.j2", op=op, title=title)
        for path, name in FILES.items()
    }
    for backend in backends():
        if not (TEMPLATES / backend / LEAVES).exists():
            continue
        place = root / "dsl_kernels" / "kernels" / op / f"{backend}.py"
        files[place] = _rendered(f"{backend}/{LEAVES}", op=op)
    taken = [path for path in files if path.exists()]
    if taken:
        raise InvalidArgumentError(
            "op",
            expected=f"a name beside {', '.join(programs.names())}",
            got=f"{taken[0].name} exists",
            fix="choose another name",
        )
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return list(files)
