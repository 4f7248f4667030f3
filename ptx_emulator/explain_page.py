"""An explanation as an HTML page: the accesses, the missing edge, and the two warps side by side."""

from __future__ import annotations

from html import escape

from .explain import _ARRIVES as ARRIVES
from .explain import _WAITS as WAITS
from .explain import Explanation, Place, _matches
from .report import Event

ROWS = 160  # the most rows of the table of events

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem;
  color: #1b1b1b; background: #fff }
code, pre, td { font-family: ui-monospace, monospace; font-size: 12.5px }
pre { background: #f4f4f4; padding: .7rem; overflow-x: auto }
table { border-collapse: collapse; width: 100%; table-layout: fixed }
th, td { text-align: left; vertical-align: top; padding: .15rem .4rem; border-bottom: 1px solid #eee;
  overflow-wrap: anywhere }
th.n, td.n { width: 4rem; color: #777 }
td.earlier { background: #ffe2b8 } td.later { background: #ffc9c4 } td.order { background: #dcebff }
td.async { font-style: italic }
.edge { border-left: 4px solid #c33; padding-left: .8rem }
"""


def _place(label: str, place: Place) -> str:
    source = ""
    if place.file:
        source = f"<br>from <code>{escape(place.file)}:{place.line}</code>"
        source += f"<pre>{escape(place.source)}</pre>" if place.source else ""
    return (
        f"<li>{escape(label)} {escape(place.who)}, PTX line {place.where.ptx_line}: "
        f"<code>{escape(place.where.text)}</code>{source}</li>"
    )


def _cell(e: Event, kind: str) -> str:
    where = e.where
    if where is None:
        return "<td>?</td>"
    if not kind:
        kind = "order" if _matches(ARRIVES, e) or _matches(WAITS, e) else ""
    text = f"{where.ptx_line}: {where.text}" + (f" ({where.source})" if where.source else "")
    note = "part of it is done: " if e.asynchronous else ""
    return f'<td class="{kind}{" async" if e.asynchronous else ""}">{note}{escape(text)}</td>'


def _time_lines(x: Explanation) -> str:
    columns = list(dict.fromkeys((e.cta, e.warp) for e in x.events))
    start = (
        max(0, min(i for i in (x.earlier_event, len(x.events) - ROWS // 2) if i >= 0) - 10) if x.events else 0
    )
    if len(x.events) - start > ROWS:
        start = len(x.events) - ROWS
    head = "".join(f"<th>warp {warp} of CTA {cta}</th>" for cta, warp in columns)
    rows = []
    for i, e in enumerate(x.events[start:], start):
        kind = "earlier" if i == x.earlier_event else "later" if i == x.later_event else ""
        cells = "".join(_cell(e, kind) if (e.cta, e.warp) == column else "<td></td>" for column in columns)
        rows.append(f'<tr><td class="n">{i}</td>{cells}</tr>')
    left_out = f"<p>{start} earlier events are left out.</p>" if start else ""
    return f'{left_out}<table><tr><th class="n">event</th>{head}</tr>{"".join(rows)}</table>'


def html(x: Explanation, title: str = "") -> str:
    """The page, without scripts or links."""
    labels = ("earlier access by", "later access by") if len(x.accesses) == 2 else ("access by",)
    places = "".join(_place(label, p) for label, p in zip(labels, x.accesses, strict=True))
    sides = ""
    if len(x.accesses) == 2:
        for label, side in (
            ("After its access the earlier side released by", x.released),
            ("Before its access the later side waited for", x.acquired),
        ):
            listed = "".join(_place("", p) for p in side)
            sides += f"<p>{label}{':' if side else ' nothing.'}</p>" + (f"<ul>{listed}</ul>" if side else "")
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        f"<title>{escape(x.finding.code)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{escape(x.finding.code)}</h1><p>{escape(title)}</p><pre>{escape(str(x.finding))}</pre>"
        f"<h2>The accesses</h2><ul>{places}</ul>"
        f"<h2>The missing edge</h2><p class='edge'>{escape(x.edge)}</p>{sides}"
        f"<h2>The shortest run that shows it</h2><p>{x.instructions} warp instructions under "
        f"<code>{escape(str(x.interleaving))}</code>; {x.shown_by} of {x.tried} interleavings show it. "
        f"<code>launch(..., interleaving={escape(str(x.interleaving))})</code> replays it.</p>"
        "<h2>Up to the finding</h2><p>Read downwards; blue is what can order one warp after another.</p>"
        f"{_time_lines(x)}</body></html>\n"
    )
