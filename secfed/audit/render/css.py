"""The one style sheet of an HTML report: light and dark, screen and paper, no file from elsewhere."""

from typing import Final

CSS: Final = """
:root { color-scheme: light dark; --ink: #1d2733; --faint: #5a6673; --line: #dfe4ea; --page: #f4f6f8;
  --card: #ffffff; --soft: #f0f3f6; --accent: #0b5c8c; --good: #14703a; --good-bg: #e7f4ec; --warn: #8a5a00;
  --warn-bg: #fdf3dc; --bad: #a32014; --bad-bg: #fbe9e7; --info: #2b4c7e; --info-bg: #e9f0fa; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaef; --faint: #a3aeba; --line: #36414d;
  --page: #12171d; --card: #1a2129; --soft: #222b35; --accent: #6bb8e8; --good: #6fd097; --good-bg: #14301f;
  --warn: #f0bd5b; --warn-bg: #33270d; --bad: #ff8d80; --bad-bg: #3a1714;
  --info: #9dbef0; --info-bg: #172640; } }
* { box-sizing: border-box; }
html { font: 15px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  color: var(--ink); background: var(--page); -webkit-text-size-adjust: 100%; }
body { margin: 0; }
main, header, footer { max-width: 66rem; margin: 0 auto; padding: 0 1.25rem; }
header { padding-top: 2.5rem; }
h1 { font-size: 2rem; line-height: 1.2; margin: 0 0 .25rem; letter-spacing: -.01em; }
.subtitle { font-size: 1.1rem; color: var(--faint); margin: 0 0 1.25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.35rem; margin: 0 0 1rem; color: var(--accent); }
h3 { font-size: 1.05rem; margin: 1.75rem 0 .25rem; overflow-wrap: anywhere; }
h3 + .note { margin: 0 0 .75rem; color: var(--faint); font-size: .9rem; overflow-wrap: anywhere; }
p { margin: 0 0 .9rem; max-width: 48rem; overflow-wrap: anywhere; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 1.5rem;
  margin: 1.25rem 0; }
nav { margin: 1.25rem 0; }
nav ol { columns: 16rem; margin: 0; padding-left: 1.5rem; color: var(--faint); }
a { color: var(--accent); text-decoration: none; }
a:hover { text-decoration: underline; }
.meta { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; margin: 1rem 0 0;
  font-size: .9rem; }
.meta dt { color: var(--faint); }
.meta dd { margin: 0; overflow-wrap: anywhere; }
.verdict { border-radius: 10px; padding: .9rem 1.2rem; font-size: 1.1rem; font-weight: 600; }
.alert { border-radius: 8px; padding: .8rem 1.1rem; margin: 0 0 1rem; border-left: 5px solid; }
.alert strong { display: block; }
.alert ul { margin: .35rem 0 0; padding-left: 1.2rem; color: var(--ink); }
.alert li { overflow-wrap: anywhere; }
.good { color: var(--good); background: var(--good-bg); border-color: var(--good); }
.warn { color: var(--warn); background: var(--warn-bg); border-color: var(--warn); }
.bad { color: var(--bad); background: var(--bad-bg); border-color: var(--bad); }
.info { color: var(--info); background: var(--info-bg); border-color: var(--info); }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(17rem, 1fr)); gap: 1rem;
  margin: 0 0 1.25rem; }
.cards.pairs { grid-template-columns: repeat(auto-fit, minmax(max(17rem, 40%), 1fr)); }
.card { border: 1px solid var(--line); border-radius: 10px; padding: 1rem 1.1rem; background: var(--soft);
  min-width: 0; }
.card h3 { margin: 0 0 .4rem; font-size: .95rem; }
.big { font-size: 1.9rem; font-weight: 650; line-height: 1.1; font-variant-numeric: tabular-nums; }
.big small { font-size: .95rem; font-weight: 400; color: var(--faint); }
.bar { height: .6rem; border-radius: 1rem; background: var(--line); overflow: hidden; margin: .6rem 0 .8rem; }
.bar span { display: block; height: 100%; background: var(--accent); }
.bar .high { background: var(--bad); }
.card dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem .75rem; margin: 0;
  font-size: .85rem; }
.card dt { color: var(--faint); }
.card dd { margin: 0; overflow-wrap: anywhere; }
.card .outside { margin: .7rem 0 0; font-size: .85rem; color: var(--warn); overflow-wrap: anywhere; }
.scroll { overflow-x: auto; margin: 0 0 1rem; }
table { border-collapse: collapse; width: 100%; font-size: .87rem; }
th, td { text-align: left; vertical-align: top; padding: .4rem .6rem; border-bottom: 1px solid var(--line);
  overflow-wrap: break-word; }
th { color: var(--faint); font-weight: 600; border-bottom-width: 2px; vertical-align: bottom; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
th.number { white-space: normal; }
td.digest { font: .78rem/1.45 ui-monospace, "Cascadia Mono", Consolas, "DejaVu Sans Mono", monospace;
  overflow-wrap: anywhere; }
tr.row-warn td:last-child { color: var(--warn); }
tr.row-bad td { color: var(--bad); font-weight: 600; }
tbody th { width: 17rem; border-bottom-width: 1px; vertical-align: top; }
table.form td { white-space: pre-line; }
.blank { min-height: 2.1rem; border: 1px dashed var(--faint); border-radius: 6px; color: var(--faint);
  font-size: .8rem; padding: .35rem .6rem; }
figure { margin: 1rem 0; }
figure svg { width: 100%; max-width: 52rem; height: auto; display: block; }
ul.items { padding-left: 1.2rem; max-width: 50rem; }
ul.items li { margin: .3rem 0; overflow-wrap: anywhere; }
pre { background: var(--soft); border: 1px solid var(--line); border-radius: 6px; padding: .7rem 1rem;
  white-space: pre-wrap; overflow-wrap: anywhere; font-size: .85rem; }
footer { color: var(--faint); font-size: .85rem; padding-bottom: 3rem; }
@media (max-width: 40rem) { section { padding: 1rem; } .meta { grid-template-columns: 1fr; }
  tbody th { width: 9rem; } }
@media print { :root { color-scheme: light; --ink: #000; --faint: #444; --line: #bbb; --page: #fff;
    --card: #fff; --soft: #f5f5f5; --accent: #0b4a70; --good: #14703a; --good-bg: #fff;
    --warn: #7a4f00; --warn-bg: #fff;
    --bad: #a32014; --bad-bg: #fff; --info: #2b4c7e; --info-bg: #fff; }
  @page { size: A4; margin: 16mm 14mm 18mm; }
  html { font-size: 10.5px; } nav { display: none; }
  header { padding-top: 0; } main, header, footer { max-width: none; padding: 0; }
  section { border: 0; padding: 0; margin: 0 0 1.5rem; } .verdict, .alert { border: 1px solid; }
  .scroll { overflow: visible; } section.page { break-before: page; } h2, h3 { break-after: avoid; }
  tr, .card, .alert, figure { break-inside: avoid; } thead { display: table-header-group; } }
"""
