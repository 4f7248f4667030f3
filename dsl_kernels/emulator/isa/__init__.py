"""Decoding of PTX statements into the compact program that the compiled core executes.

A decoder takes every dot-separated token of the opcode; whatever token is left over makes the form
unsupported, by name and line, so that nothing is ever guessed or ignored by accident.
"""

from __future__ import annotations

from . import alu, memory, sync, tensor  # noqa: F401 - they register their decoders
from .base import Program, decode, supported_opcodes

__all__ = ["Program", "decode", "supported_opcodes"]
