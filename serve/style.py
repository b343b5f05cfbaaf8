"""How the page looks. Colours come from the theme's variables, which know light from dark."""

ICON = (
    "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 32 32'>"
    "<circle cx='12' cy='16' r='9' fill='#2563eb'/>"
    "<circle cx='20' cy='16' r='9' fill='#60a5fa' opacity='.8'/></svg>"
)

CSS = """
.gradio-container { width: 100% !important; max-width: 1280px !important; margin: 0 auto !important;
  --right: #15803d; --wrong: #c2410c; }
.dark .gradio-container { --color-accent: var(--primary-400); --right: #4ade80; --wrong: #fb923c; }
.gradio-container .column, .gradio-container .tabitem { min-width: 0; }

.gradio-container .html-container { padding: 0; }
#header h1 { margin: 0; font-size: 1.5rem; font-weight: 700; letter-spacing: -.01em;
  color: var(--body-text-color); }
#header p, #status p { display: flex; flex-wrap: wrap; gap: .1rem 1.1rem; margin: 0;
  color: var(--body-text-color-subdued); font-variant-numeric: tabular-nums; }
#header p > *, #status p > * { overflow-wrap: anywhere; min-width: 0; }
#header b, #status b { color: var(--body-text-color); font-weight: 600; }
code { font-family: var(--font-mono); font-size: .92em; }

#status p { min-height: 1.6em; }
#status a { color: inherit; text-decoration: underline; }
.trouble { display: block !important; padding: .6rem .8rem; border-left: 3px solid #d97706;
  border-radius: .25rem; background: color-mix(in srgb, #d97706 12%, transparent);
  color: var(--body-text-color) !important; }

.grid { list-style: none; margin: 0; padding: 0; display: grid; gap: .75rem;
  grid-template-columns: repeat(auto-fill, minmax(min(10rem, 44%), 1fr)); }
.grid li { margin: 0; min-width: 0; }
.grid button { display: grid; width: 100%; height: 100%; align-content: start; padding: .4rem .4rem .5rem;
  gap: .1rem; text-align: left; border: 1px solid var(--border-color-primary); border-radius: .6rem;
  cursor: pointer; background: var(--block-background-fill); color: var(--body-text-color); font: inherit;
  font-size: .85rem; line-height: 1.35; }
.grid button:hover { border-color: var(--color-accent); }
.grid button.right { border: 2px solid var(--right); }
.grid button.wrong { border: 2px dashed var(--wrong); }
.grid i { font-style: normal; font-weight: 700; }
.grid .right i { color: var(--right); }
.grid .wrong i { color: var(--wrong); }
.grid img { width: 100%; aspect-ratio: 1; object-fit: contain; margin-bottom: .3rem;
  border-radius: .35rem; background: var(--background-fill-secondary); }
.grid span { min-width: 0; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.grid .score { display: flex; justify-content: space-between; font-variant-numeric: tabular-nums; }
.grid .score b { font-weight: 600; }
.grid .quiet { font-size: .78rem; }

#results details { margin-top: 1.25rem; }
#stock details { margin-top: .6rem; }
.gradio-container summary { cursor: pointer; color: var(--body-text-color-subdued); }
#results .scroll, #stock .scroll { overflow-x: auto; margin-top: .5rem; }
#results table, #stock table { width: 100%; border-collapse: collapse; font-size: .85rem;
  font-variant-numeric: tabular-nums; }
#results th, #results td, #stock th, #stock td { padding: .3rem .9rem .3rem 0; text-align: left;
  white-space: nowrap; border-bottom: 1px solid var(--border-color-primary); }
#results th, #stock th { font-weight: 600; }

#form form, #browse form { display: grid; gap: .6rem; grid-template-columns: 1fr 1fr; }
#browse form { grid-template-columns: minmax(0, 30rem); margin-bottom: .75rem; }
#form label, #browse label { display: grid; gap: .15rem; min-width: 0; font-size: .85rem;
  color: var(--body-text-color-subdued); }
#form .wide { grid-column: 1 / -1; }
#form select { appearance: auto; }
#form input, #form select, #browse input { width: 100%; min-width: 0; padding: .4rem .55rem; font: inherit;
  font-size: 1rem; color: var(--body-text-color); background: var(--input-background-fill);
  border: 1px solid var(--border-color-primary); border-radius: .4rem; }
#form input::placeholder, #browse input::placeholder { color: var(--body-text-color-subdued); opacity: .8; }

#browse nav { display: flex; flex-wrap: wrap; align-items: center; gap: .5rem 1rem; margin-bottom: .75rem;
  color: var(--body-text-color-subdued); font-variant-numeric: tabular-nums; }
#stock dl, #dialog dl { display: grid; gap: .15rem; margin: 0; font-size: .9rem; }
#stock dl div, #dialog dl div { display: grid; grid-template-columns: 7rem minmax(0, 1fr); }
#stock dt, #dialog dt { color: var(--body-text-color-subdued); overflow-wrap: anywhere; }
#stock dd, #dialog dd { margin: 0; color: var(--body-text-color); overflow-wrap: anywhere; }

#browse nav button, #dialog button { padding: .35rem .8rem; font: inherit; cursor: pointer;
  color: var(--body-text-color); background: var(--background-fill-secondary);
  border: 1px solid var(--border-color-primary); border-radius: .4rem; }
#browse nav button:disabled { opacity: .45; cursor: default; }
#dialog button.main, #dialog button[aria-pressed=true] { color: #fff; background: var(--primary-600);
  border-color: var(--primary-600); }
.gradio-container :is(button, input, select, a, summary):focus-visible {
  outline: 3px solid var(--color-accent); outline-offset: 2px; }

#dialog { width: min(60rem, calc(100vw - 1rem)); max-height: calc(100dvh - 1rem); margin: auto; padding: 1rem;
  overflow: auto; color: var(--body-text-color); background: var(--background-fill-primary);
  border: 1px solid var(--border-color-primary); border-radius: .8rem; }
#dialog::backdrop { background: rgb(0 0 0 / .55); }
#dialog header { display: flex; justify-content: space-between; align-items: start; gap: 1rem; }
#dialog h2 { margin: 0; font-size: 1.15rem; font-weight: 600; overflow-wrap: anywhere; min-width: 0; }
#dialog h2 .quiet { display: inline-block; font-size: .9rem; font-weight: 400; }
#dialog .figures { display: grid; grid-auto-flow: column; grid-auto-columns: minmax(0, 1fr); gap: .75rem;
  margin: .75rem 0; }
#dialog figure { margin: 0; min-width: 0; }
#dialog figure:only-child { justify-self: center; width: min(100%, 32rem); }
#dialog img { width: 100%; aspect-ratio: 1; max-height: 50vh; object-fit: contain; border-radius: .4rem;
  background: var(--background-fill-secondary); }
#dialog figcaption { font-size: .8rem; text-align: center; color: var(--body-text-color-subdued); }
#dialog .actions { display: flex; flex-wrap: wrap; gap: .5rem; margin: .75rem 0; }
.quiet { color: var(--body-text-color-subdued); }

#report { color: var(--body-text-color); }
#report h2 { margin: .5rem 0; font-size: 1.25rem; font-weight: 600; }
#report figure { padding: .5rem; }
/* The figure is drawn on white: turned over, with its hues kept, it sits on a dark page. */
.dark #report figure { filter: invert(.93) hue-rotate(180deg); }
"""
