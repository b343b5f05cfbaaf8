"""How the page looks. Colours come from the theme's variables, which know light from dark.

Inside @media the framework puts the content of the page before every selector: what is outside of that, such
as .gradio-container, cannot be meant there.
"""

ICON = (
    "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 32 32'>"
    "<circle cx='12' cy='16' r='9' fill='#2563eb'/>"
    "<circle cx='20' cy='16' r='9' fill='#60a5fa' opacity='.8'/></svg>"
)

CSS = """
.gradio-container { width: 100% !important; max-width: 1280px !important; margin: 0 auto !important;
  --right: #15803d; --wrong: #c2410c; --field-line: #7d8ba0; }
.dark .gradio-container { --color-accent: var(--primary-400); --right: #4ade80; --wrong: #fb923c;
  --field-line: #7c8ba1; }
.gradio-container .column, .gradio-container .tabitem { min-width: 0; }

.gradio-container .main.fillable { padding: 1rem clamp(1rem, 4vw, 2rem); }
.gradio-container .html-container { padding: 0; }
#skip { position: absolute; }
#skip button:not(:focus) { position: absolute; width: 1px; height: 1px; padding: 0; border: 0;
  clip-path: inset(50%); }
#skip button:focus { position: absolute; z-index: 2; white-space: nowrap;
  background: var(--background-fill-primary); }
#galleries nav { display: flex; flex-wrap: wrap; gap: .25rem; }
#galleries a { padding: .3rem .7rem; border-radius: .4rem; text-decoration: none;
  color: var(--body-text-color-subdued); }
#galleries a:hover { color: var(--body-text-color); background: var(--background-fill-secondary); }
#galleries a[aria-current] { font-weight: 600; color: var(--body-text-color);
  background: var(--background-fill-secondary); }
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

/* All buttons of ours look like this, but for the pictures that are buttons. */
.html-container button { padding: .35rem .8rem; font: inherit; cursor: pointer;
  color: var(--body-text-color); background: var(--background-fill-secondary);
  border: 1px solid var(--field-line); border-radius: .4rem; }
.html-container button:hover:enabled { border-color: var(--color-accent); }
.html-container button[aria-busy=true] { opacity: .6; cursor: progress; }
.html-container button:disabled { opacity: .45; cursor: default; }
.html-container button.main { color: #fff; background: var(--primary-600); border-color: var(--primary-600); }
.html-container button.main:hover { background: var(--primary-700); }
.html-container form > button { padding-block: .4rem; font-size: 1rem; }
.html-container .tiles button { padding: 0; border: 0; background: none; }
.html-container button[aria-pressed=true] { border-color: var(--color-accent);
  background: color-mix(in srgb, var(--color-accent) 18%, transparent);
  box-shadow: inset 0 0 0 1px var(--color-accent); }

.html-container progress { appearance: none; height: .6rem; overflow: hidden; border-radius: .3rem;
  background: var(--background-fill-secondary); border: 1px solid var(--field-line); }
.html-container progress::-webkit-progress-bar { background: none; }
.html-container progress::-webkit-progress-value { background: var(--color-accent); }
.html-container progress::-moz-progress-bar { background: var(--color-accent); }
.html-container progress:indeterminate { background: repeating-linear-gradient(
  -45deg, var(--background-fill-secondary) 0 .5rem, var(--border-color-primary) .5rem 1rem); }
.html-container progress:indeterminate::-moz-progress-bar { background: none; }

.grid { list-style: none; margin: 0; padding: 0; display: grid; gap: .75rem;
  grid-template-columns: repeat(auto-fill, minmax(min(10rem, 44%), 1fr)); }
.grid li { margin: 0; min-width: 0; }
.html-container .grid button { display: grid; width: 100%; height: 100%; align-content: start;
  padding: .4rem .4rem .5rem; gap: .1rem; text-align: left; border-color: var(--border-color-primary);
  border-radius: .6rem; background: var(--block-background-fill); font-size: .85rem; line-height: 1.35; }
.html-container .grid button:hover { border-color: var(--color-accent); }
.html-container .grid button.right { border: 2px solid var(--right); }
.html-container .grid button.wrong { border: 2px dashed var(--wrong); }
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
#stock details { margin-top: 1rem; }
.gradio-container summary { padding: .2rem 0; cursor: pointer; color: var(--body-text-color-subdued); }
#results .scroll, #stock .scroll, #statistics .scroll { overflow-x: auto; margin-top: .5rem; }
#results table, #stock table, #statistics table { width: 100%; border-collapse: collapse; font-size: .85rem;
  font-variant-numeric: tabular-nums; }
#results th, #results td, #stock th, #stock td, #statistics th, #statistics td {
  padding: .3rem .9rem .3rem 0; text-align: left;
  white-space: nowrap; border-bottom: 1px solid var(--border-color-primary); }
#results th, #stock th, #statistics th { font-weight: 600; }

#form details > div, #browse form { display: grid; gap: .6rem; grid-template-columns: 1fr 1fr; }
#browse form { grid-template-columns: minmax(0, 30rem); margin-bottom: .75rem; }
.html-container label:not([hidden]) { display: grid; gap: .15rem; min-width: 0; font-size: .85rem;
  color: var(--body-text-color-subdued); }
#form .wide { grid-column: 1 / -1; }
.html-container select { appearance: auto; }
.html-container :is(input, select), #add-label :is(input, textarea) { width: 100%; min-width: 0;
  padding: .4rem .55rem; font: inherit; font-size: 1rem; line-height: 1.5; color: var(--body-text-color);
  background: var(--input-background-fill); border: 1px solid var(--field-line); border-radius: .4rem; }
.gradio-container :is(input, textarea)::placeholder { opacity: 1;
  color: color-mix(in srgb, var(--body-text-color) 70%, transparent); }

#browse nav { display: flex; flex-wrap: wrap; align-items: center; gap: .5rem 1rem; margin-bottom: .75rem;
  color: var(--body-text-color-subdued); font-variant-numeric: tabular-nums; }
#stock dl, #statistics dl, #dialog dl { display: grid; gap: .15rem; margin: 0; font-size: .9rem; }
#stock dl div, #statistics dl div, #dialog dl div {
  display: grid; grid-template-columns: 7rem minmax(0, 1fr); }
#stock dt, #statistics dt, #dialog dt { color: var(--body-text-color-subdued); overflow-wrap: anywhere; }
#stock dd, #statistics dd, #dialog dd { margin: 0; color: var(--body-text-color); overflow-wrap: anywhere; }

.gradio-container :is(button, input, select, textarea, a, summary, [tabindex]):focus-visible {
  outline: 3px solid var(--color-accent) !important; outline-offset: 2px; }

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
#dialog img { width: 100%; aspect-ratio: 4 / 3; max-height: 50vh; object-fit: contain; border-radius: .4rem;
  background: var(--background-fill-secondary); }
#dialog figcaption { font-size: .8rem; text-align: center; color: var(--body-text-color-subdued); }
#dialog .actions { display: flex; flex-wrap: wrap; gap: .5rem; margin: .75rem 0; }
.quiet { color: var(--body-text-color-subdued); }

/* What the framework makes looks like what we make: buttons large and dark enough, and what can be opened. */
#more, #add-go { padding: .35rem .8rem; font-size: 1rem; font-weight: 400; line-height: 1.5;
  border: 1px solid var(--field-line); border-radius: .4rem; }
#more { color: var(--body-text-color); background: var(--background-fill-secondary); }
#more:hover { border-color: var(--color-accent); }
#add-go { color: #fff; background: var(--primary-600); border-color: var(--primary-600); }
#add-go:hover { background: var(--primary-700); }
#add .form, #add-label { padding: 0; border: 0; background: none; box-shadow: none; }
#add-label span { margin-bottom: .15rem; font-size: .85rem; color: var(--body-text-color-subdued); }
#add > button { flex-direction: row-reverse; justify-content: flex-end; gap: .4rem; padding: .2rem 0;
  font-size: 1rem; color: var(--body-text-color-subdued); }
#add > button .icon { font-size: .7em; scale: -1 1; }
#query button:not(.upload-container) { min-width: 28px; min-height: 28px; }
#query .source-selection button:not(.selected) { color: var(--body-text-color-subdued); }
@media (max-width: 360px) { .tab-container button { padding: 0 .5rem; } }
@media (prefers-reduced-motion: reduce) {
  *, ::before, ::after {
    animation-duration: .01ms !important; animation-iteration-count: 1 !important;
    transition-duration: .01ms !important; }
}
@media (forced-colors: active) {
  [role=tab][aria-selected=true] { border-bottom: 3px solid Highlight !important; }
  .html-container :is([aria-pressed=true], [aria-current]) { border: 3px double Highlight; }
  .html-container progress { appearance: auto; }
  .bars b { forced-color-adjust: none; background: CanvasText; }
  #report figure, #figures figure { forced-color-adjust: none; }
}

.made:focus { outline: none; }
#statistics h2 { margin: .9rem 0 .3rem; font-size: 1rem; font-weight: 600; color: var(--body-text-color); }
.bars { list-style: none; margin: 0; padding: 0; display: grid; gap: .25rem; max-width: 48rem; }
.bars + p { margin: .35rem 0 0; }
.bars li { display: grid; grid-template-columns: minmax(0, 3fr) 2.5rem minmax(4rem, 2fr); gap: .75rem;
  align-items: center; margin: 0; font-size: .9rem; font-variant-numeric: tabular-nums; }
.html-container .bars button { padding: .1rem .5rem; overflow: hidden; text-align: left;
  text-overflow: ellipsis; white-space: nowrap; border-color: transparent; }
.bars span { text-align: right; color: var(--body-text-color-subdued); }
.bars i { height: .5rem; border-radius: .25rem; background: var(--background-fill-secondary); }
.bars b { display: block; height: 100%; min-width: 2px; border-radius: .25rem;
  background: var(--color-accent); }
#duplicates form { display: flex; flex-wrap: wrap; gap: .75rem; align-items: end; margin: .5rem 0; }
#duplicates input { width: 8rem; }
#duplicates nav { display: flex; flex-wrap: wrap; align-items: center; gap: .5rem 1rem; margin: .5rem 0;
  color: var(--body-text-color-subdued); font-variant-numeric: tabular-nums; }
#duplicates progress { width: min(100%, 24rem); }
.groups { list-style: none; margin: .75rem 0; padding: 0; display: grid; gap: 1.5rem; }
.groups > li { margin: 0; min-width: 0; padding-top: .75rem;
  border-top: 1px solid var(--border-color-primary); }
.groups p { display: flex; flex-wrap: wrap; align-items: center; gap: .35rem 1rem; margin: 0 0 .5rem;
  font-variant-numeric: tabular-nums; }
.groups .grid { grid-template-columns: repeat(auto-fill, minmax(min(8rem, 44%), 1fr)); }
#add { border: 0; padding: 0; background: none; box-shadow: none; }
#add-how { align-items: end; }
.disagree { min-width: 0; padding: 0 .45rem; overflow-wrap: anywhere; border-left: 3px solid #d97706;
  color: var(--body-text-color); }
.html-container button.remove[data-asked] { border-color: var(--wrong); color: var(--wrong);
  font-weight: 600; }
.outcomes { margin: .25rem 0 0; padding: 0; list-style: none; display: grid; gap: .25rem; font-size: .9rem; }
.outcomes li { margin: 0; overflow-wrap: anywhere; }
.outcomes b { margin-right: .35rem; font-weight: 600; }

#report { color: var(--body-text-color); }
#report h2 { margin: .5rem 0; font-size: 1.25rem; font-weight: 600; }
#report figure { padding: .5rem; }
/* The figure is drawn on white: turned over, with its hues kept, it sits on a dark page. */
.dark #report figure { filter: invert(.93) hue-rotate(180deg); mix-blend-mode: screen; }

.running, .offer { display: flex; flex-wrap: wrap; align-items: center; gap: .4rem 1rem; min-height: 2.4rem;
  margin: 0; color: var(--body-text-color); font-variant-numeric: tabular-nums; }
.running progress { width: min(14rem, 60vw); }
#measure { color: var(--body-text-color); }
#choice form:not([hidden]) { display: grid; gap: .6rem; margin: .75rem 0;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 18rem), 1fr)); }
#figures { color: var(--body-text-color); }
#figures .actions { display: flex; flex-wrap: wrap; align-items: center; gap: .5rem; margin: .5rem 0; }
#figures .lookalike-report, #report .lookalike-report { margin: 0; }
#figures figure { max-width: 32rem; padding: .5rem; }
.dark #figures figure { filter: invert(.93) hue-rotate(180deg); mix-blend-mode: screen; }
#figures .plane { display: grid; grid-template-columns: minmax(0, 1fr) 13rem; gap: 1rem; align-items: start;
  margin: .5rem 0 1rem; }
#figures .map { display: block; width: 100%; height: auto; max-height: 80vh; cursor: crosshair;
  touch-action: pan-y; border: 1px solid var(--border-color-primary); border-radius: .5rem; }
#figures .m { fill: var(--c); stroke: var(--background-fill-primary); stroke-width: 1; opacity: .9; }
#figures .o { opacity: .55; }
#figures .lit .m { opacity: .16; }
#figures .lit .m.on { opacity: 1; }
#figures .m.at { stroke: var(--body-text-color); stroke-width: 3; }
#figures .card { min-height: 14.5rem; padding: .6rem; margin-bottom: .75rem; overflow-wrap: anywhere;
  border: 1px solid var(--border-color-primary); border-radius: .5rem;
  background: var(--background-fill-primary); }
#figures .card p { margin: 0 0 .4rem; }
#figures .card img { display: block; width: 8.5rem; height: 8.5rem; object-fit: contain;
  margin-bottom: .4rem; }
#figures .card button { white-space: nowrap; }
#figures .legend { list-style: none; margin: 0; padding: 0; font-size: .9rem; }
#figures .legend li { display: flex; gap: .4rem; align-items: center; margin: 0; }
#figures .legend svg { width: 1rem; height: 1rem; flex: none; }
#figures .legend span { min-width: 0; overflow-wrap: anywhere; }
@media (min-width: 46rem) { #form summary { display: none; } }
@media (max-width: 46rem) {
  #figures .plane { grid-template-columns: minmax(0, 1fr); }
  #figures .map .m { stroke: var(--c); stroke-width: 5; }
  #figures .map .m.at { stroke: var(--body-text-color); }
  #figures .card { min-height: 0; display: flex; flex-direction: row-reverse; justify-content: start;
    gap: .75rem; align-items: center; }
  #figures .card img { width: 5.5rem; height: 5.5rem; }
}

#asked:not(:has(img)) { display: none; }
#asked .frame { display: flex; justify-content: center; }
#asked .cropping { position: relative; overflow: hidden; cursor: crosshair; aspect-ratio: var(--aspect);
  width: min(100%, max(min(20rem, 40vh) * var(--aspect), 6rem));
  touch-action: none; user-select: none; border-radius: .4rem; background: var(--background-fill-secondary); }
#asked .cropping:not(:has(.region)) { cursor: auto; touch-action: auto; }
#asked .cropping img { display: block; width: 100%; height: 100%; }
#asked .html-container .region { position: absolute; padding: 0; border: 0;
  border-radius: 0; background: none; cursor: inherit; touch-action: none; outline-offset: -3px; }
#asked .html-container .region.chosen { cursor: move; border: 2px solid #fff;
  box-shadow: 0 0 0 1px #1e293b, 0 0 0 200vmax rgb(0 0 0 / .5); }
#asked .html-container .region.chosen:focus-visible { outline-offset: 0; }
#asked .region i { display: none; position: absolute; width: 24px; height: 24px; }
#asked .region.chosen i { display: block; }
#asked .region i::after { content: ''; position: absolute; inset: 7px; border: 1px solid #1e293b;
  background: #fff; }
#asked [data-corner^=top] { top: -13px; }
#asked [data-corner^=bottom] { bottom: -13px; }
#asked [data-corner$=left] { left: -13px; }
#asked [data-corner$=right] { right: -13px; }
#asked [data-corner='top left'], #asked [data-corner='bottom right'] { cursor: nwse-resize; }
#asked [data-corner='top right'], #asked [data-corner='bottom left'] { cursor: nesw-resize; }
#asked p { margin: .4rem 0 0; font-size: .85rem; }
#asked .keys { visibility: hidden; }
#asked .frame:has(.region:focus-visible) ~ .keys { visibility: visible; }
#asked .tools { display: flex; flex-wrap: wrap; gap: .4rem; justify-content: center; }
#asked .quiet { text-align: center; }
#asked .parts { list-style: none; display: flex; flex-wrap: wrap; gap: .5rem; margin: .75rem 0 0;
  padding: 0; }
#asked .parts li { position: relative; margin: 0; }
#asked .html-container .parts [data-enlarge] { display: block; width: 64px; height: 64px; padding: 2px;
  overflow: hidden; }
#asked .html-container .parts [aria-current] { border-color: var(--color-accent);
  box-shadow: inset 0 0 0 1px var(--color-accent); }
#asked .parts img { width: 100%; height: 100%; object-fit: contain; }
#asked .html-container .parts .omit { position: absolute; top: -8px; right: -8px; width: 24px; height: 24px;
  padding: 0; line-height: 1; font-size: .75rem; border-radius: 50%;
  background: var(--background-fill-primary); }
#ask:has(#asked img) #query:not(:has(video)) { height: 8.5rem !important; min-height: 0; }
#ask:has(#asked img) #query:not(:has(video)) .upload-container { height: 100%; }
#ask:not(:has(#asked img)) #more { display: none; }
/* Without a model there is nothing to do with another picture. */
#ask:has([data-closed]) :is(#query, #more, #address), body:has([data-closed]) #add { display: none; }
#address form { display: flex; gap: .5rem; align-items: end; }
#address label { flex: 1; }

#trail:not(:has(li)) { display: none; }
#trail h2 { margin: 0 0 .5rem; font-size: .9rem; font-weight: 600; color: var(--body-text-color-subdued); }
#trail ul { list-style: none; margin: -3px; padding: 3px; display: flex; gap: .5rem; }
#trail li { margin: 0; flex: none; min-width: 0; }
#trail button { display: block; }
#trail .past { overflow-x: auto; }
#trail .html-container button { border-color: var(--border-color-primary); }
#trail .html-container .past button { width: 5.5rem; padding: .25rem; font-size: .75rem; }
#trail .past img { width: 100%; height: 3.5rem; object-fit: contain; }
#trail span { display: block; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
#trail .html-container [aria-current] { border-color: var(--color-accent);
  box-shadow: inset 0 0 0 1px var(--color-accent); }
#trail .examples { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(8rem, 30%), 1fr)); }
#trail .html-container .examples button { width: 100%; height: 100%; padding: .4rem; font-size: .85rem;
  text-align: left; }
#trail .examples img { width: 100%; aspect-ratio: 1; object-fit: contain; border-radius: .35rem;
  margin-bottom: .3rem; background: var(--background-fill-secondary); }
#results .actions { display: flex; flex-wrap: wrap; gap: .5rem; margin: .6rem 0 0; font-size: .85rem; }
"""
