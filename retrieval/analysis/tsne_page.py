"""The map as a page that needs nothing from outside: thumbnails, classes to highlight, keys to walk on it."""

from __future__ import annotations

import html
import json
import os
import re
from pathlib import Path

import numpy as np

from retrieval.analysis.embeddings import Embeddings
from retrieval.analysis.tsne import Map
from retrieval.analysis.tsne_marks import WALK, marks
from retrieval.reports.thumbnails import thumbnails


def page(found: Map) -> str:
    """One HTML file: the map, thumbnails of what is pointed at, and a list of classes to highlight."""
    embeddings = found.embeddings
    classes, numbers = np.unique(embeddings.labels, return_inverse=True)
    drawn = marks(found)
    options = "".join(f'<option value="{i}">{html.escape(label)}</option>' for i, label in enumerate(classes))
    names, pictures = _files(embeddings)
    data = {
        "names": names,
        "pictures": pictures,
        "classes": classes.tolist(),
        "labels": numbers.tolist(),
        "synthetic": embeddings.synthetic.tolist(),
    }
    words = {
        "title": html.escape(f"Lookalike: {embeddings.name}"),
        "heading": html.escape(found.title),
        "box": drawn.box,
        "marks": drawn.marks,
        "legend": drawn.legend,
        "hollow": "<p>Hollow: synthetic points.</p>" if embeddings.synthetic.any() else "",
        "grey": "<p>Grey: all other classes.</p>" if drawn.grey else "",
        "options": options,
        "perplexity": f"{found.perplexity:g}",
        "walk": WALK,
        # Inside a script only this could end it.
        "data": json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),
    }
    # In one pass, so that a class called like a slot stays what it is.
    return re.sub("@([a-z]+)@", lambda slot: words[slot[1]], _PAGE)


def _files(embeddings: Embeddings) -> tuple[list[str], list[str]]:
    """Of each row the path, from the folder that holds them all, and the picture; empty where it has none."""
    if embeddings.paths is None:
        return [""] * len(embeddings), [""] * len(embeddings)
    paths = [Path(path).absolute() if path else None for path in embeddings.paths]
    known = [path for path in paths if path]
    root = os.path.commonpath([path.parent for path in known]) if known else ""
    small = thumbnails(known)
    names = [os.path.relpath(path, root) if path else "" for path in paths]
    return names, [small[path] if path else "" for path in paths]


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>@title@</title>
<style>
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #fff; --line: #8885; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8eb; --paper: #15181c; } }
* { box-sizing: border-box; }
body { font: 16px/1.45 system-ui, sans-serif; margin: 1rem auto; padding: 0 1rem; max-width: 75rem;
  color: var(--ink); background: var(--paper); }
h1 { font-size: 1.15rem; margin: 0 0 .25rem; overflow-wrap: anywhere; }
p { margin: .25rem 0; }
main { display: grid; grid-template-columns: minmax(0, 1fr) 15rem; gap: 1rem; align-items: start; }
#map { display: block; width: 100%; height: auto; max-height: 88vh; border: 1px solid var(--line);
  border-radius: .5rem; touch-action: pan-y; cursor: crosshair; }
#map:focus-visible { outline: 3px solid #56b4e9; }
.m { fill: var(--c); stroke: var(--paper); stroke-width: 1; opacity: .9; }
.o { opacity: .55; }
.s { fill: none; stroke: var(--c); stroke-width: 2; }
.lit .m { opacity: .16; }
.lit .m.on { opacity: 1; }
.m.at { stroke: var(--ink); stroke-width: 3; }
aside { position: sticky; top: 1rem; }
#card { min-height: 13rem; border: 1px solid var(--line); border-radius: .5rem; padding: .6rem;
  margin-bottom: .75rem; overflow-wrap: anywhere; background: var(--paper); }
#card img { display: block; width: 8.5rem; height: 8.5rem; object-fit: contain; margin-bottom: .4rem; }
#card small { display: block; opacity: .8; }
label { display: block; font-weight: 600; }
select { font: inherit; width: 100%; margin: .2rem 0 .75rem; }
ul { list-style: none; margin: 0; padding: 0; font-size: .9rem; }
li { display: flex; gap: .4rem; align-items: center; }
li svg { width: 1rem; height: 1rem; flex: none; }
li span { overflow-wrap: anywhere; min-width: 0; }
@media (max-width: 46rem) {
  main { grid-template-columns: minmax(0, 1fr); }
  #map .m { stroke: var(--c); stroke-width: 5; }
  #map .m.at { stroke: var(--ink); }
  aside { position: static; }
  #card { position: sticky; bottom: 0; min-height: 0; display: flex; gap: .75rem; align-items: center; }
  #card img { width: 5.5rem; height: 5.5rem; flex: none; margin: 0; }
}
</style></head><body>
<header><h1>@heading@</h1>
<p>Point at the map, or walk on it with the arrow keys. Axes and large distances mean nothing.</p></header>
<main>
<svg id="map" viewBox="@box@" tabindex="0" role="application"
  aria-label="Map of embeddings. Arrow keys go from point to point, Escape lets go." aria-describedby="card">
<g id="marks">
@marks@
</g></svg>
<aside>
<div id="card" aria-live="polite">Nothing is pointed at.</div>
<label for="class">Highlight a class</label>
<select id="class"><option value="">none</option>@options@</select>
<ul>@legend@</ul>
@grey@@hollow@<p><small>Perplexity @perplexity@.</small></p>
</aside></main>
<script type="application/json" id="data">@data@</script>
<script>
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const map = document.getElementById("map"), card = document.getElementById("card");
const choice = document.getElementById("class"), group = document.getElementById("marks");
const marks = [...group.children];
@walk@function light(label) {
  group.classList.toggle("lit", label >= 0);
  marks.forEach((mark, i) => mark.classList.toggle("on", data.labels[i] === label));
}
function chosen() {
  light(choice.value === "" ? -1 : Number(choice.value));
}
const walk = walkOn(map, group, i => {
  card.replaceChildren();
  if (i < 0) {
    card.textContent = "Nothing is pointed at.";
    chosen();
    return;
  }
  light(data.labels[i]);
  if (data.pictures[i]) {
    const picture = document.createElement("img");
    picture.src = data.pictures[i];
    picture.alt = "";
    card.append(picture);
  }
  const words = document.createElement("div"), label = document.createElement("strong");
  label.textContent = data.classes[data.labels[i]];
  words.append(label);
  const file = document.createElement("small");
  file.textContent = data.synthetic[i] ? "synthetic point" : data.names[i];
  words.append(file);
  card.append(words);
});
choice.addEventListener("change", () => { walk.go(-1); chosen(); });
</script>
</body></html>
"""
