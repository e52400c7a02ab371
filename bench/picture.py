"""A plot as an SVG document of its own, which has no page to take its colours from."""

_STYLE = (
    "svg{background:#fff;font:11px system-ui,sans-serif}text{fill:#60666d}"
    ".mid{text-anchor:middle}.end{text-anchor:end}.grid{stroke:#eceef0}.axis{stroke:#60666d}"
    ".line{fill:none;stroke-width:1.8}.l0{stroke:#3b6ea8}.l1{stroke:#d98a3a}.l2{stroke:#5a9c7a}"
    ".s0{fill:#3b6ea8}.s1{fill:#d98a3a}.s2{fill:#5a9c7a}"
)


def document(svg: str) -> str:
    """`svg` is what bench/plot.py draws."""
    opening, _, rest = svg.partition(">")
    return f'{opening} xmlns="http://www.w3.org/2000/svg"><style>{_STYLE}</style>{rest}\n'
