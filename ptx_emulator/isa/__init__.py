"""Decoding of PTX statements into the compact program that the compiled core executes.

A decoder consumes every dot-separated token of the opcode. A token that is left over makes the form
unsupported, by name and line, so that the emulator never guesses a meaning or ignores a modifier by accident.
"""

from __future__ import annotations

from . import alu, memory, sync, tensor  # noqa: F401 - they register their decoders
from .base import Program, decode, supported_opcodes

__all__ = ["Program", "decode", "supported_opcodes"]
