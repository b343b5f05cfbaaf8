// Colours of classes: hues far apart for neighbours in the order of names, in three lightnesses.

const GOLDEN_ANGLE = 137.508;  // degrees: any number of hues is spread evenly
const LIGHTNESS = {light: [42, 54, 34], dark: [66, 78, 56]};  // percent

/** Right and wrong are told apart by lightness, too. */
export const VERDICTS = {light: ['#9a3412', '#60a5fa', '#94a3b8'], dark: ['#fb923c', '#1d4ed8', '#64748b']};

/** Return the colours of `count` classes, as #rrggbb. */
export const classColours = (count, theme) => Array.from({length: Math.max(count, 1)}, (_, index) =>
  hex((index * GOLDEN_ANGLE) % 360, index % 2 ? 55 : 75, LIGHTNESS[theme][index % 3]));

const SCALE = ['#440154', '#46327e', '#365c8d', '#277f8e', '#1fa187', '#4ac16d', '#a0da39', '#fde725'];  // viridis

/** Return the colours of so many steps of a scale, dark ones first: told apart by lightness, too. */
export const scaleColours = steps => Array.from({length: steps}, (_, at) => {
  const place = steps > 1 ? at * (SCALE.length - 1) / (steps - 1) : 0, from = Math.min(Math.floor(place), SCALE.length - 2);
  const mixed = channel => Math.round((1 - place + from) * channels(SCALE[from])[channel] + (place - from) * channels(SCALE[from + 1])[channel]);
  return `#${[0, 1, 2].map(channel => mixed(channel).toString(16).padStart(2, '0')).join('')}`;
});

const channels = colour => [1, 3, 5].map(at => parseInt(colour.slice(at, at + 2), 16));

function hex(hue, saturation, lightness) {
  const reach = saturation / 100 * Math.min(lightness, 100 - lightness) / 100;
  const channel = offset => {
    const at = (offset + hue / 30) % 12;
    const value = lightness / 100 - reach * Math.max(-1, Math.min(at - 3, 9 - at, 1));
    return Math.round(255 * value).toString(16).padStart(2, '0');
  };
  return `#${channel(0)}${channel(8)}${channel(4)}`;
}
