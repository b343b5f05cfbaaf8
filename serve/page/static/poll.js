// Poll background work while the answer is a progress bar: soon at first, then once a second.
let timer = 0, pause = 100;
const poll = () => {
  clearTimeout(timer);
  const running = element.querySelector('[data-running]');
  pause = running ? Math.min(2 * pause, 1000) : 100;
  if (!running) return;
  timer = setTimeout(() => {
    if (element.offsetParent) trigger('tick', {of: running.dataset.running});
    poll();
  }, pause);
};
watch('value', poll);
