// How the values of a column are distributed in their range: a bar for each of equal parts.

/**
 * Draw the bars.
 * @param {Element} root Receives them.
 * @param {number[]} counts Images in each part.
 * @param {[number, number]} chosen Ends of the range that is chosen, as shares of the whole; bars outside are pale.
 */
export function drawHistogram(root, counts, [low, high]) {
  const most = Math.max(...counts);
  root.replaceChildren(...counts.map((count, at) => {
    const bar = document.createElement('i');
    bar.style.height = count ? `${Math.max(4, 100 * Math.sqrt(count / most))}%` : '0';  // by the root, so that few are seen beside many
    bar.classList.toggle('outside', (at + 1) / counts.length <= low || at / counts.length >= high);
    return bar;
  }));
}
