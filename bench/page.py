"""The HTML document around the sections: one file, nothing loaded from anywhere, readable without scripts."""

import base64
import hashlib
from collections.abc import Iterable, Sequence
from html import escape

# Eight colours that stay apart for colour-blind readers, lighter on a dark page; s8 is for the rest.
STYLE = """
:root { color-scheme: light dark; --page: #fbfbfa; --card: #ffffff; --ink: #1c2024; --soft: #60666d;
  --rule: #e3e5e8; --grid: #eceef0; --link: #24578f; --good: #1d7446; --bad: #b3261e; --doubt: #8a6100;
  --s0: #3b6ea8; --s1: #d98a3a; --s2: #5a9c7a; --s3: #a8658f; --s4: #7d8793; --s5: #c2584f;
  --s6: #b8a13c; --s7: #6d64a8; --s8: #b3b9c0; }
@media (prefers-color-scheme: dark) { :root { --page: #15181b; --card: #1d2125; --ink: #e6e8ea;
  --soft: #9aa2ab; --rule: #31373d; --grid: #2a2f35; --link: #8ab8ea; --good: #6fc596; --bad: #f0877f;
  --doubt: #dcb45c; --s0: #6d9fd8; --s1: #e0a05c; --s2: #7dbf9c; --s3: #c98bb2; --s4: #9aa4af;
  --s5: #dd7f77; --s6: #cdb95f; --s7: #968ed0; --s8: #5c646c; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
main, header, footer { max-width: 1120px; margin: 0 auto; padding: 0 24px; }
header { padding-top: 40px; } footer { padding: 24px; color: var(--soft); font-size: 13px; }
h1 { font-size: 26px; line-height: 1.2; margin: 0 0 6px; letter-spacing: -0.01em; }
h2 { font-size: 20px; margin: 0; letter-spacing: -0.01em; }
h3 { font-size: 14px; margin: 0 0 10px; font-weight: 600; }
p { margin: 0; } .soft { color: var(--soft); }
a { color: var(--link); text-underline-offset: 2px; }
section { background: var(--card); border: 1px solid var(--rule); border-radius: 10px;
  padding: 24px; margin: 24px 0; }
.head { display: flex; flex-wrap: wrap; gap: 8px 12px; align-items: center; margin-bottom: 4px; }
.chip { font-size: 12.5px; padding: 1px 9px; border-radius: 99px; border: 1px solid currentColor; }
.good { color: var(--good); } .bad { color: var(--bad); } .doubt { color: var(--doubt); }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(148px, 1fr)); gap: 18px 20px;
  margin: 20px 0 8px; padding: 16px 0; border-top: 1px solid var(--rule);
  border-bottom: 1px solid var(--rule); }
.figures dt { color: var(--soft); font-size: 13px; }
.figures dd { margin: 0; font-size: 21px; font-weight: 600; white-space: nowrap;
  font-variant-numeric: tabular-nums; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr));
  gap: 28px 36px; margin: 24px 0; }
figure { margin: 0; } figcaption { color: var(--soft); font-size: 13px; margin-top: 6px; }
svg { display: block; width: 100%; height: auto; overflow: visible;
  font: 11px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
svg text { fill: var(--soft); } svg .value { fill: var(--ink); }
.mid { text-anchor: middle; } .end { text-anchor: end; } .start { text-anchor: start; }
.grid { stroke: var(--grid); } .axis { stroke: var(--soft); } .pale { opacity: 0.45; }
.limit { stroke: var(--bad); stroke-dasharray: 5 4; }
.line { fill: none; stroke-width: 1.8; stroke-linejoin: round; } .area { opacity: 0.16; }
.s0 { fill: var(--s0); } .s1 { fill: var(--s1); } .s2 { fill: var(--s2); } .s3 { fill: var(--s3); }
.s4 { fill: var(--s4); } .s5 { fill: var(--s5); } .s6 { fill: var(--s6); } .s7 { fill: var(--s7); }
.s8 { fill: var(--s8); } .l0 { stroke: var(--s0); } .l1 { stroke: var(--s1); }
.l2 { stroke: var(--s2); } .l3 { stroke: var(--s3); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 6px 16px 6px 0; border-bottom: 1px solid var(--rule);
  vertical-align: top; }
th { font-weight: 600; color: var(--soft); font-size: 13px; white-space: nowrap; }
td.n, th.n { text-align: right; white-space: nowrap; } tr:last-child td { border-bottom: 0; }
.n:last-child { padding-right: 0; } .chip, .word { white-space: nowrap; } td a { overflow-wrap: break-word; } h1, h2, p, li { overflow-wrap: anywhere; }
.narrow { max-width: 680px; } .narrow .band { pointer-events: none; }
th button { all: unset; cursor: pointer; } th button:focus-visible { outline: 2px solid var(--link); }
th[aria-sort=ascending] button::after { content: " \\2191"; }
th[aria-sort=descending] button::after { content: " \\2193"; }
code { overflow-wrap: anywhere; }
td.hash { font: 12.5px ui-monospace, "SF Mono", Menlo, Consolas, monospace; overflow-wrap: anywhere; }
a:focus-visible, summary:focus-visible, .scroll:focus-visible { outline: 2px solid var(--link);
  outline-offset: 2px; border-radius: 3px; }
.skip { position: absolute; left: -999px; } .skip:focus { left: 12px; top: 8px; background: var(--card); }
nav { font-size: 14px; margin-bottom: 14px; } nav a { margin-right: 14px; }
caption { text-align: left; color: var(--soft); font-size: 13px; padding-bottom: 6px; }
pre { background: var(--page); border: 1px solid var(--rule); border-radius: 6px; padding: 10px 12px;
  overflow-x: auto; font: 13px/1.5 ui-monospace, "SF Mono", Menlo, Consolas, monospace; margin: 0 0 18px; }
section h3 { margin-top: 22px; } .plots h3, figure h3 { margin-top: 0; }
.band { fill: var(--grid); } .whisker { stroke-width: 2; } .hollow { fill: none; stroke: var(--soft); }
.v-good { fill: var(--good); stroke: var(--good); } .v-bad { fill: var(--bad); stroke: var(--bad); }
.v-doubt { fill: var(--doubt); stroke: var(--doubt); } .v-same { fill: var(--s0); stroke: var(--s0); }
details { border-top: 1px solid var(--rule); padding: 10px 0; }
summary { cursor: pointer; font-weight: 600; font-size: 14px; } details > .scroll { margin-top: 8px; }
ul { margin: 0 0 18px; padding-left: 20px; }
@media (max-width: 600px) { main, header, footer { padding: 0 12px; } header { padding-top: 20px; }
  section { padding: 16px 14px; margin: 14px 0; } h1 { font-size: 22px; } .figures dd { font-size: 18px; }
  .figures { grid-template-columns: repeat(2, minmax(0, 1fr)); } footer { padding: 16px 12px; } }
@media print { :root { --page: #fff; --card: #fff; --ink: #000; --soft: #444; --rule: #bbb; --grid: #ddd; }
  section { border: 0; padding: 0; } figure, tr { break-inside: avoid; } h3 { break-after: avoid; }
  details, nav, .skip { display: none; } .scroll { overflow: visible; } a { color: inherit; } }
"""

# Makes the headers of sortable tables buttons; without it the tables stay as they are written.
SCRIPT = """
document.querySelectorAll("table.sortable").forEach(function (table) {
  var heads = table.querySelectorAll("th"), body = table.tBodies[0];
  heads.forEach(function (head, column) {
    var button = document.createElement("button");
    button.textContent = head.textContent; head.textContent = ""; head.appendChild(button);
    button.addEventListener("click", function () {
      var up = head.getAttribute("aria-sort") !== "ascending";
      heads.forEach(function (other) { other.removeAttribute("aria-sort"); });
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      var key = function (row) { return row.cells[column].dataset.v; };
      Array.from(body.rows).sort(function (a, b) {
        var x = key(a), y = key(b), numbers = x !== "" && y !== "" && !isNaN(x) && !isNaN(y);
        return (numbers ? x - y : x.localeCompare(y)) * (up ? 1 : -1);
      }).forEach(function (row) { body.appendChild(row); });
    });
  });
});
"""


def document(title: str, header: str, main: str, footer: str, nav: str = "") -> str:
    """The whole page. Its policy lets nothing in but this style and this script."""
    policy = (
        f"default-src 'none'; style-src '{_digest(STYLE)}'; script-src '{_digest(SCRIPT)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f'<a class="skip" href="#main">To the content</a>\n<header>{nav}{header}</header>\n'
        f'<main id="main">{main}</main>\n<footer>{footer}</footer>\n'
        f"<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[tuple[str, object] | str]],
    *,
    numeric: frozenset[int] = frozenset(),
    sortable: bool = False,
    hashes: frozenset[int] = frozenset(),
    caption: str = "",
) -> str:
    """A table of cells; a cell is its text, or (HTML, the value it sorts by).

    It scrolls sideways where it does not fit, by keyboard too.
    """
    styles = {**dict.fromkeys(numeric, "n"), **dict.fromkeys(hashes, "hash")}
    head = "".join(
        f'<th scope="col"{_class(styles.get(index) if index in numeric else None)}>'
        f"{escape(column)}</th>"
        for index, column in enumerate(columns)
    )
    body = "".join(
        "<tr>" + "".join(_cell(cell, styles.get(index)) for index, cell in enumerate(row)) + "</tr>"
        for row in rows
    )
    kind = ' class="sortable"' if sortable else ""
    told = f"<caption>{escape(caption)}</caption>" if caption else ""
    label = escape(caption or ", ".join(columns[:3]), quote=True)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label}">'
        f"<table{kind}>{told}<thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>"
    )


def figure(heading: str, svg: str, caption: str) -> str:
    """A plot with its heading above and what it shows below."""
    return (
        f"<figure><h3>{escape(heading)}</h3>{svg}"
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def commands(text: str) -> str:
    """Lines for a shell."""
    return f'<pre tabindex="0"><code>{escape(text)}</code></pre>'


def links(named: Sequence[tuple[str, str]]) -> str:
    """The way to other pages: (text, relative address)."""
    items = "".join(
        f'<a href="{escape(address, quote=True)}">{escape(text)}</a>' for text, address in named
    )
    return f'<nav aria-label="Pages">{items}</nav>'


def details(summary: str, content: str) -> str:
    """Content that is folded until asked for."""
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


def _cell(cell: tuple[str, object] | str, style: str | None) -> str:
    if isinstance(cell, str):
        return f"<td{_class(style)}>{escape(cell)}</td>"
    html, value = cell
    return f'<td{_class(style)} data-v="{escape(str(value), quote=True)}">{html}</td>'


def _class(style: str | None) -> str:
    return f' class="{style}"' if style else ""


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
