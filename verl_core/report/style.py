"""The style sheet of the report. Invariant: every colour is a variable with a light and a dark value."""

from __future__ import annotations

# Eight hues that stay apart for the colour-blind in this order; the last is for "everything else".
_LIGHT = ("#2563c9", "#d97706", "#0f9d76", "#8b5cd6", "#d1435b", "#0e8fa8", "#a3791a", "#8b919c")
_DARK = ("#6ea2ff", "#f0a04b", "#3fc79a", "#b394f0", "#f0788b", "#45bdd4", "#d3ad4e", "#7d8490")


def palette() -> str:
    """Declarations of --c1..--c8 and the greys, light, then dark."""
    light = "".join(f"--c{n}:{color};" for n, color in enumerate(_LIGHT, start=1))
    dark = "".join(f"--c{n}:{color};" for n, color in enumerate(_DARK, start=1))
    return (
        f":root{{color-scheme:light dark;{light}--ink:#1b2030;--dim:#667085;--page:#f6f7f9;--card:#fff;--rule:#e3e6eb;"
        "--heat:217 119 6;--good:#0f7a5c;--good-ground:#dff5ec;--bad:#b4233c}"
        f"@media(prefers-color-scheme:dark){{:root{{{dark}--ink:#e7eaf0;--dim:#98a1b0;--page:#12151b;--card:#1a1e26;"
        "--rule:#2c323d;--heat:240 140 40;--good:#6fdcb5;--good-ground:#143328;--bad:#ff8fa0}}"
    )


def marks() -> str:
    """Classes of lines (s1..), fills (f1..) and legend boxes (b1..)."""
    return "".join(
        f".s{n}{{stroke:var(--c{n})}}.f{n}{{fill:var(--c{n})}}.b{n}{{background:var(--c{n})}}" for n in range(1, 9)
    )


CHART = (
    "svg{display:block;width:100%;height:auto;font:11px system-ui,-apple-system,'Segoe UI',Roboto,sans-serif}"
    "polyline{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}"
    "polyline.raw{stroke-width:1;opacity:.35}"
    ".grid{stroke:var(--rule)}.axis{stroke:var(--dim);stroke-opacity:.5}.tick{fill:var(--dim)}"
    ".hit{fill:transparent}.hit:hover{fill:var(--dim);fill-opacity:.5}"
)

PAGE = """
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,sans-serif}
main{max-width:1080px;margin:0 auto;padding:28px 20px 60px}
h1{font-size:26px;line-height:1.2;margin:0 0 4px;letter-spacing:-.01em;overflow-wrap:anywhere}
h2{font-size:17px;margin:36px 0 12px;letter-spacing:-.005em}
.dim{color:var(--dim)}
.bad{color:var(--bad)}
.lead{color:var(--dim);margin:0 0 22px;overflow-wrap:anywhere}
.grid2{display:grid;gap:14px;grid-template-columns:repeat(auto-fit,minmax(min(100%,400px),1fr))}
.tiles{display:grid;gap:14px;grid-template-columns:repeat(auto-fit,minmax(170px,1fr))}
.card{background:var(--card);border:1px solid var(--rule);border-radius:10px;padding:14px 16px;min-width:0}
.tile b{display:block;font-size:24px;font-weight:600;letter-spacing:-.02em;line-height:1.25;white-space:nowrap;
font-variant-numeric:tabular-nums}
.tile span{display:block;font-size:13px;line-height:1.35;min-height:2.7em;color:var(--dim);overflow-wrap:anywhere}
.tile small{font-size:12px;color:var(--dim)}
.tile .up{color:var(--good)}
figure{margin:0}
figcaption{display:flex;justify-content:space-between;gap:12px;font-weight:600;font-size:14px;margin-bottom:8px}
figcaption span{font-weight:400;color:var(--dim);font-variant-numeric:tabular-nums;white-space:nowrap}
.legend{display:flex;flex-wrap:wrap;gap:4px 14px;list-style:none;margin:8px 0 0;padding:0;font-size:12px;
color:var(--dim)}
.legend i{display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:5px;vertical-align:-1px}
.samples{display:grid;gap:14px}
.sample header{font-size:13px;margin-bottom:8px}
.badge{border-radius:5px;padding:2px 7px;font-weight:600;margin-right:4px;background:var(--rule);
font-variant-numeric:tabular-nums}
.badge.good{background:var(--good-ground);color:var(--good)}
.tokens{margin:0;font:13px/1.9 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;white-space:pre-wrap;
overflow-wrap:anywhere}
.prompt{color:var(--dim)}
.t{background:rgb(var(--heat)/calc(var(--h)*.75));border-radius:3px;box-shadow:inset 0 -1px var(--rule)}
.t:hover,.tool:hover{outline:1px solid var(--dim)}
.tool{color:var(--dim);font-style:italic}
.ramp{display:inline-block;width:90px;height:9px;border-radius:4px;margin:0 6px;border:1px solid var(--rule);
background:linear-gradient(90deg,transparent,rgb(var(--heat)/.75))}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:14px;font-variant-numeric:tabular-nums}
th{text-align:left;font-weight:600;color:var(--dim);font-size:12px}
th,td{padding:6px 12px 6px 0;border-bottom:1px solid var(--rule);vertical-align:top}
tr:last-child td{border-bottom:0}
td.n,th.n{text-align:right}
code{font:12.5px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;overflow-wrap:anywhere}
summary{cursor:pointer;font-weight:600}
pre{overflow-x:auto;font:12.5px/1.5 ui-monospace,Menlo,Consolas,monospace;margin:12px 0 0}
@media(max-width:520px){svg{font-size:13px}main{padding:18px 12px 40px}.card{padding:12px}
.tiles{grid-template-columns:1fr 1fr;gap:10px}.tile b{font-size:20px}}
"""


def stylesheet() -> str:
    """All of it."""
    return palette() + marks() + CHART + PAGE.replace("\n", "")
