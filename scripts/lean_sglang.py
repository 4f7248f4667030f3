"""Unpack SGLang's wheels as a small site for sglang_layer.py: python scripts/lean_sglang.py WHEELS FOLDER.

WHEELS is a folder with the wheels of sglang 0.5.23, sgl-flash-mla 1.0.0, sglang-kernel and sgl-deep-gemm,
and of those packages below that the machine lacks, as `pip download --no-deps` leaves them. With FOLDER in
PYTHONPATH the DSA backend, its pools and its kernels import; models and servers are not all there.

SGLang 0.5.23 asks for torch 2.14.1. Torch 2.11 loads sgl-flash-mla 1.0.0, which SGLang pins, and the older
sglang-kernel 0.4.5 and sgl-deep-gemm 0.2.1. SGLang compiles more kernels at first use, with nvcc and ninja.
"""

from __future__ import annotations

import fnmatch
import zipfile
from pathlib import Path
from typing import Annotated

import typer

OTHERS = (
    "annotated-types apache-tvm-ffi compressed-tensors dill distro fastapi gguf jiter loguru msgspec ninja "
    "openai==2.8.0 orjson partial-json-parser pybase64 pydantic pydantic-core pyzmq setproctitle sniffio "
    "starlette typing-inspection uvicorn"
)
"""Packages that SGLang's modules import besides those of torch and transformers."""

WITHOUT = ("sglang/multimodal_gen/*", "sglang/test/*", "sglang/benchmark/*", "sglang/*.so", "*/RECORD")
"""Files of the wheels that a backend does not import; the libraries are for servers."""

STAND_IN = '''"""Stands for a package that SGLang imports and the backend does not use."""


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (), {})
'''
STOOD_IN = "IPython/__init__.py", "IPython/display.py"


def unpack(wheels: Path, folder: Path) -> list[str]:
    """Write the site; returns the names of the wheels.

    Raises:
        typer.BadParameter: the folder holds no wheel of SGLang.
    """
    found = sorted(wheels.glob("*.whl"))
    if not any(wheel.name.startswith("sglang-") for wheel in found):
        raise typer.BadParameter(f"{wheels} holds no wheel of sglang")
    for wheel in found:
        with zipfile.ZipFile(wheel) as archive:
            names = [n for n in archive.namelist() if not any(fnmatch.fnmatch(n, each) for each in WITHOUT)]
            archive.extractall(folder, names)
    for name in STOOD_IN:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(STAND_IN, encoding="utf-8")
    # A wheel keeps its programs apart; SGLang looks for ninja in PATH.
    for scripts in folder.glob("*.data/scripts"):
        for program in scripts.iterdir():
            (folder / "bin").mkdir(exist_ok=True)
            program.rename(folder / "bin" / program.name).chmod(0o755)
    return [wheel.name for wheel in found]


def main(
    wheels: Annotated[Path, typer.Argument(help=f"A folder of wheels: SGLang's, and of {OTHERS}.")],
    folder: Annotated[Path, typer.Argument(help="Where to write the packages.")],
) -> None:
    """Unpack the wheels without what a backend does not import."""
    typer.echo(f"{len(unpack(wheels, folder))} wheels; run with PYTHONPATH={folder} PATH={folder}/bin:$PATH")


if __name__ == "__main__":
    typer.run(main)
