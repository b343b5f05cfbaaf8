// Coalesce events: `triggerLatest` in place of `trigger` keeps only the latest event while an answer is awaited.
// Gradio would drop events meanwhile, or send the same one again. Every answer has to change the component's
// value, see `fresh` in tab.py; an event without an answer is given up after ten seconds.
let sentAt = 0;  // milliseconds; 0: no answer is awaited
let pending = null;
const triggerLatest = (name, data) => {
  if (sentAt && performance.now() - sentAt < 10000) { pending = [name, data]; return; }
  sentAt = performance.now();
  pending = null;
  trigger(name, data);
};
watch('value', () => {
  sentAt = 0;
  if (pending) triggerLatest(...pending);
});
