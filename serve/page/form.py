"""The form beside the query picture."""

from __future__ import annotations

import gradio as gr

from serve.page.wishes import MAX_K, Wishes

_FORM = f"""
<form novalidate autocomplete="off"><details><summary>Settings</summary><div>
  <label>Results (K)<input name="k" type="number" min="1" max="{MAX_K}" step="1"
    value="{Wishes.k}"></label>
  <label>Lowest score<input name="min_score" type="number" min="-1" max="1" step="0.05"
    placeholder="any"></label>
  <label class="wide">Filter<input name="where" type="text" maxlength="4096" spellcheck="false"
    autocapitalize="off"></label>
  <label class="wide">One result for each<select name="group_by"></select></label>
</div></details></form>
"""
# The template never changes, so that an answer of the server does not take the focus from a field.
_SCRIPT = """
const form = element.querySelector('form');
const names = ['k', 'min_score', 'where', 'group_by'];
let sent;
// On a phone the results would begin below the fold: it folds what is as usual.
const wide = matchMedia('(min-width: 46rem)');
const unfold = () => { if (wide.matches) form.querySelector('details').open = true; };
wide.addEventListener('change', unfold);
unfold();
const fill = () => {
  const given = props.value;
  if (given.where || given.min_score || given.group_by) form.querySelector('details').open = true;
  const groups = given.groups.includes(given.group_by) || !given.group_by
    ? given.groups : [...given.groups, given.group_by];
  form.group_by.replaceChildren(
    new Option('picture (all of them)', ''), ...groups.map(name => new Option(name, name)));
  form.where.placeholder = given.example;
  for (const name of names) form.elements[name].value = given[name];
  sent = text();
};
const read = () => {  // also what is typed and not sent yet goes with the next picture
  const now = {...props.value};
  for (const name of names) now[name] = form.elements[name].value;
  props.value = now;
};
const text = () => names.map(name => props.value[name]).join('\\n');
const send = () => {
  const {value, min, max, defaultValue} = form.k;  // what is shown is what is searched for
  form.k.value = value === '' ? defaultValue : Math.min(Math.max(Math.trunc(value), min), max);
  read();
  if (text() === sent) return;
  sent = text();
  trigger('submit');
};
fill();
watch('value', fill);
form.addEventListener('input', read);
form.addEventListener('change', send);
form.addEventListener('submit', event => { event.preventDefault(); send(); });
"""


def make() -> gr.HTML:
    """A component whose value handlers receive as `Wishes`; its `submit` comes with every change.

    This holds as long as no event answers it with an update: the framework would then make it anew.
    """
    form = gr.HTML(
        Wishes().form([]),
        elem_id="form",
        apply_default_css=False,
        html_template=_FORM,
        js_on_load=_SCRIPT,
    )
    form.preprocess = Wishes.of
    return form
