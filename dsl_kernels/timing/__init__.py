"""How long a call takes and how long it could: the clock, the grids of `bench` and `tune`, and ceilings of this GPU.

`bench` times calls, `grids` says at which points, `measure` times and tunes operations and steps there; `calibrate`
measures how fast rows can be fetched at all, and `ceilings` keeps what it found.
"""
