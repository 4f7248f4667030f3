"""Sizes of a TileLang program under the names that it declares."""

from tvm.script.ir_builder import IRBuilder


def named(program, **dims):
    """The program, its sizes named again: a macro names what it is passed after its parameter."""
    for name, dim in dims.items():
        IRBuilder.name(name, dim)
    return program
