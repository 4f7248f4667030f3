"""Names of the sizes of a TileLang program."""

from tvm.script.ir_builder import IRBuilder


def named(program, **dims):
    """Give the program's sizes their declared names: a macro names an argument after its own parameter."""
    for name, dim in dims.items():
        IRBuilder.name(name, dim)
    return program
