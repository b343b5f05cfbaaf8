// The query's images, and a rectangle on them: the region to search with. The template never changes, so that the
// focus stays and nothing moves under the pointer. A region is left, top, right, bottom in fractions of the image;
// null is all of it.
const box = document.createElement('div');
element.append(box);
const STEP = 0.02, LEAST = 0.02, CLICK = 6, PAUSE = 700;
let region = null, sent = null, drag = null, timer = 0;
const between = (value, low, high) => Math.min(Math.max(value, low), high);
const shape = () => box.querySelector('.region');
const paint = () => {
  const [left, top, right, bottom] = region || [0, 0, 1, 1];
  Object.assign(shape().style, {left: 100 * left + '%', top: 100 * top + '%',
    width: 100 * (right - left) + '%', height: 100 * (bottom - top) + '%'});
  shape().classList.toggle('chosen', Boolean(region));
};
const draw = () => {
  const held = box.contains(document.activeElement);
  box.innerHTML = props.value;
  if (shape()) {
    const given = shape().dataset.region;
    region = given ? given.split(',').map(Number) : null;
    sent = String(region);
    paint();
  }
  if (held) (shape() || box.querySelector('button') || document.querySelector('#query button'))?.focus();
};
watch('value', () => {
  if (!props.value) return;
  if (!drag && !timer) draw();
});
if (props.value) draw();
const search = () => {
  clearTimeout(timer);
  timer = 0;
  if (region) region = region.map(value => Math.round(1e4 * value) / 1e4);
  if (String(region) === sent) return;
  sent = String(region);
  const part = Number(box.querySelector('.cropping').dataset.part);
  triggerLatest('crop', {part, region});
};
const whole = () => { region = null; paint(); search(); };

box.addEventListener('click', event => {
  const button = event.target.closest('button');
  if (!button) return;
  if ('whole' in button.dataset) whole();
  else if ('omit' in button.dataset) trigger('remove', {part: Number(button.dataset.omit)});
  else if ('enlarge' in button.dataset) triggerLatest('select', {part: Number(button.dataset.enlarge)});
});
box.addEventListener('dragstart', event => event.preventDefault());
const place = event => {
  const frame = box.querySelector('.cropping').getBoundingClientRect();
  return [between((event.clientX - frame.left) / frame.width, 0, 1),
          between((event.clientY - frame.top) / frame.height, 0, 1)];
};
box.addEventListener('pointerdown', event => {
  const frame = event.target.closest('.cropping');
  if (!frame || !shape() || event.button || !event.isPrimary) return;
  event.preventDefault();
  shape().focus({preventScroll: true, focusVisible: false});
  const corner = event.target.closest('[data-corner]');
  const inside = region && event.target.closest('.region');
  drag = {start: place(event), at: [event.clientX, event.clientY], before: region, mode: 'new', moved: false};
  if (corner && region) {
    const [left, top, right, bottom] = region;  // drawn again from the opposite corner
    drag.start = [corner.dataset.corner.includes('left') ? right : left,
                  corner.dataset.corner.includes('top') ? bottom : top];
  } else if (inside) drag.mode = 'move';
  frame.setPointerCapture(event.pointerId);
});
box.addEventListener('pointermove', event => {
  if (!drag) return;
  drag.moved ||= Math.hypot(event.clientX - drag.at[0], event.clientY - drag.at[1]) >= CLICK;
  if (!drag.moved) return;
  const [x, y] = place(event), [u, v] = drag.start;
  if (drag.mode === 'move') {
    const [left, top, right, bottom] = drag.before;
    const across = between(x - u, -left, 1 - right), down = between(y - v, -top, 1 - bottom);
    region = [left + across, top + down, right + across, bottom + down];
  } else region = [Math.min(x, u), Math.min(y, v), Math.max(x, u), Math.max(y, v)];
  paint();
});
const stop = keep => {
  if (!drag) return;
  const small = region && (region[2] - region[0] < LEAST || region[3] - region[1] < LEAST);
  if (!keep || !drag.moved || small) region = drag.before;
  drag = null;
  paint();
  search();
};
box.addEventListener('pointerup', () => stop(true));
box.addEventListener('pointercancel', () => stop(false));

box.addEventListener('keydown', event => {
  if (!event.target.classList.contains('region')) return;
  if (event.key === 'Escape') {
    if (drag) stop(false);
    else whole();
    return;
  }
  if (event.key === 'Enter') { search(); return; }
  const [across, down] = {ArrowLeft: [-STEP, 0], ArrowRight: [STEP, 0], ArrowUp: [0, -STEP],
                          ArrowDown: [0, STEP]}[event.key] || [0, 0];
  if (!across && !down) return;
  event.preventDefault();
  if (!region) region = [0.2, 0.2, 0.8, 0.8];
  else {
    const [left, top, right, bottom] = region;
    if (event.shiftKey) {
      region = [left, top, between(right + across, left + 2 * LEAST, 1),
                between(bottom + down, top + 2 * LEAST, 1)];
    } else {
      const x = between(across, -left, 1 - right), y = between(down, -top, 1 - bottom);
      region = [left + x, top + y, right + x, bottom + y];
    }
  }
  paint();
  clearTimeout(timer);
  timer = setTimeout(search, PAUSE);  // when no key is pressed for a while
});
