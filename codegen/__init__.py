"""The generator: sweep the declared programs, check them, render templates, keep generated/ in step."""
