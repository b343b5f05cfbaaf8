// Colours of classes: hues far apart for neighbours in the order of names, in three lightnesses.

const GOLDEN_ANGLE = 137.508;  // degrees: any number of hues is spread evenly
const LIGHTNESS = {light: [42, 54, 34], dark: [66, 78, 56]};  // percent

/** Right and wrong are told apart by lightness, too. */
export const VERDICTS = {light: ['#9a3412', '#60a5fa', '#94a3b8'], dark: ['#fb923c', '#1d4ed8', '#64748b']};

/** Return the colours of `count` classes, as #rrggbb. */
export const classColours = (count, theme) => Array.from({length: Math.max(count, 1)}, (_, index) =>
  hex((index * GOLDEN_ANGLE) % 360, index % 2 ? 55 : 75, LIGHTNESS[theme][index % 3]));

function hex(hue, saturation, lightness) {
  const reach = saturation / 100 * Math.min(lightness, 100 - lightness) / 100;
  const channel = offset => {
    const at = (offset + hue / 30) % 12;
    const value = lightness / 100 - reach * Math.max(-1, Math.min(at - 3, 9 - at, 1));
    return Math.round(255 * value).toString(16).padStart(2, '0');
  };
  return `#${channel(0)}${channel(8)}${channel(4)}`;
}
