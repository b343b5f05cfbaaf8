let awaited = 0, wish = null;
const want = (name, data) => {
  if (awaited && performance.now() - awaited < 10000) { wish = [name, data]; return; }
  awaited = performance.now();
  wish = null;
  trigger(name, data);
};
watch('value', () => {
  awaited = 0;
  if (wish) want(...wish);
});
