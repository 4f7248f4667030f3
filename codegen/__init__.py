"""The generator: sweep declared programs, check them, render templates, keep generated/ in step."""
