// The fields of a search; every change is submitted.
const form = element.querySelector('form');
const texts = ['text', 'without'];
const names = ['k', 'min_score', 'min_probability', 'where', 'group_by', ...texts];
let sent;
// On a phone the results would begin below the fold: settings at their defaults are folded.
const wide = matchMedia('(min-width: 46rem)');
const unfold = () => { if (wide.matches) form.querySelector('details').open = true; };
wide.addEventListener('change', unfold);
unfold();
const fill = () => {
  const given = props.value;
  if (names.some(name => name !== 'k' && !texts.includes(name) && given[name])) form.querySelector('details').open = true;
  const groups = given.groups.includes(given.group_by) || !given.group_by
    ? given.groups : [...given.groups, given.group_by];
  form.group_by.replaceChildren(
    new Option('image (all of them)', ''), ...groups.map(name => new Option(name, name)));
  form.min_probability.closest('label').hidden = !given.calibrated && !given.min_probability;
  form.querySelector('.texts').hidden = !given.texts && !given.text;
  form.where.placeholder = given.example;
  for (const name of names) form.elements[name].value = given[name];
  sent = text();
};
const read = () => {  // also text that has not been submitted is used for the next image
  const now = {...props.value};
  for (const name of names) now[name] = form.elements[name].value;
  props.value = now;
};
const text = () => names.map(name => props.value[name]).join('\n');
const send = () => {
  const {value, min, max, defaultValue} = form.k;  // the value shown is the value used
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
