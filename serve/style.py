"""How the page looks. Colours come from the theme's variables, which know light from dark."""

ICON = (
    "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 32 32'>"
    "<circle cx='12' cy='16' r='9' fill='#2563eb'/>"
    "<circle cx='20' cy='16' r='9' fill='#60a5fa' opacity='.8'/></svg>"
)

CSS = """
.gradio-container { width: 100% !important; max-width: 1280px !important; margin: 0 auto !important; }
.dark .gradio-container { --color-accent: var(--primary-400); }
.gradio-container .column, .gradio-container .tabitem { min-width: 0; }

#header .html-container, #status .html-container, #results .html-container { padding: 0; }
#header h1 { margin: 0; font-size: 1.5rem; font-weight: 700; letter-spacing: -.01em;
  color: var(--body-text-color); }
#header p, #status p { display: flex; flex-wrap: wrap; gap: .1rem 1.1rem; margin: 0;
  color: var(--body-text-color-subdued); font-variant-numeric: tabular-nums; }
#header p > *, #status p > * { overflow-wrap: anywhere; min-width: 0; }
#header b, #status b { color: var(--body-text-color); font-weight: 600; }
code { font-family: var(--font-mono); font-size: .92em; }

#status p { min-height: 1.6em; }
.trouble { display: block !important; padding: .6rem .8rem; border-left: 3px solid #d97706;
  border-radius: .25rem; background: color-mix(in srgb, #d97706 12%, transparent);
  color: var(--body-text-color) !important; }

#results .grid { list-style: none; margin: 0; padding: 0; display: grid; gap: .75rem;
  grid-template-columns: repeat(auto-fill, minmax(min(10rem, 44%), 1fr)); }
#results li { margin: 0; min-width: 0; }
#results button { display: grid; width: 100%; padding: .4rem .4rem .5rem; gap: .1rem; text-align: left;
  border: 1px solid var(--border-color-primary); border-radius: .6rem; cursor: pointer;
  background: var(--block-background-fill); color: var(--body-text-color); font: inherit;
  font-size: .85rem; line-height: 1.35; }
#results button:hover { border-color: var(--color-accent); }
#results button:focus-visible { outline: 3px solid var(--color-accent); outline-offset: 2px; }
#results img { width: 100%; aspect-ratio: 1; object-fit: contain; margin-bottom: .3rem;
  border-radius: .35rem; background: var(--background-fill-secondary); }
#results button span { min-width: 0; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
#results .score { display: flex; justify-content: space-between; font-variant-numeric: tabular-nums; }
#results .score b { font-weight: 600; }
#results .quiet { color: var(--body-text-color-subdued); font-size: .78rem; }

#results details { margin-top: 1.25rem; }
#results summary { cursor: pointer; color: var(--body-text-color-subdued); }
#results .scroll { overflow-x: auto; margin-top: .5rem; }
#results table { width: 100%; border-collapse: collapse; font-size: .85rem;
  font-variant-numeric: tabular-nums; }
#results th, #results td { padding: .3rem .9rem .3rem 0; text-align: left; white-space: nowrap;
  border-bottom: 1px solid var(--border-color-primary); }
#results th { font-weight: 600; }

#report { color: var(--body-text-color); }
#report h2 { margin: .5rem 0; font-size: 1.25rem; font-weight: 600; }
#report figure { padding: .5rem; }
/* The figure is drawn on white: turned over, with its hues kept, it sits on a dark page. */
.dark #report figure { filter: invert(.93) hue-rotate(180deg); }
"""
