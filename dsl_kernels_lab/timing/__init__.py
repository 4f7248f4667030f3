"""How long calls take, and how long they would take at the GPU's limits.

`bench` times calls, `grids` defines the points of an operation and times and tunes it there, `measure` times
whole steps. `calibrate` measures the fastest way to fetch rows, and `ceilings` stores these rates.
`recording` and `results` time every operation beside its `peers`; `search` tunes at a user's shapes; `report`
renders records as a page.
"""
