// Selects marks of a map: the pointer selects the nearest mark, arrow keys the next one in their direction, and
// Escape none. `onChange(i)` is called with the number of the selected mark, -1 for none.
// Returns `select(i)`, and `reset()`, to be called after the marks were replaced.
function navigateMarks(map, group, onChange) {
  let positions = null, at = -1;
  const marks = () => [...group.children];
  const points = () => positions ??= marks().map(
    mark => mark.getAttribute("transform").match(/-?[\d.]+/g).map(Number));
  function select(i) {
    if (i === at) return;
    const all = marks();
    if (at >= 0) all[at].classList.remove("at");
    at = i;
    if (i >= 0) all[i].classList.add("at");
    onChange(i);
  }
  function selectNearest(event) {
    const pointer = new DOMPoint(event.clientX, event.clientY).matrixTransform(map.getScreenCTM().inverse());
    const reach = 30 / map.getScreenCTM().a;
    let best = -1, least = reach * reach;
    points().forEach(([x, y], i) => {
      const d = (x - pointer.x) ** 2 + (y - pointer.y) ** 2;
      if (d < least) { least = d; best = i; }
    });
    select(best);
  }
  function step(dx, dy) {
    if (at < 0) return select(0);
    let best = -1, least = Infinity;
    points().forEach(([x, y], i) => {
      const u = x - positions[at][0], v = y - positions[at][1], ahead = u * dx + v * dy;
      // Within 45 degrees of the key's direction.
      if (ahead <= 0 || Math.abs(u * dy - v * dx) > ahead) return;
      const d = u * u + v * v;
      if (d < least) { least = d; best = i; }
    });
    if (best >= 0) select(best);
  }
  map.addEventListener("pointermove", selectNearest);
  map.addEventListener("pointerdown", selectNearest);
  map.addEventListener("pointerleave", event => { if (event.pointerType === "mouse") select(-1); });
  map.addEventListener("keydown", event => {
    const ways = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    if (event.key in ways) { event.preventDefault(); step(...ways[event.key]); }
    if (event.key === "Escape") select(-1);
  });
  return { select, reset() { positions = null; at = -1; } };
}
