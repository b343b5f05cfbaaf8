// Probabilities in place of similarities: learned from the labels by one press, and how good they are.

import {BANDS, known, points} from './bands.js';
import {announce} from './changes.js';
import {part, percent, show} from './dom.js';
import {Work} from './work.js';

const AIM = 'A similarity has no meaning of its own. From the labels of the gallery, the server can learn how probable it is that a hit shows the same thing; hits are then in bands.';
const COMMAND = 'On this server, visitors may not: its keeper runs lookalike calibrate with the folder of the gallery, or starts the server with --allow-changes.';

export class Calibration {
  #root; #api; #work; #changes = false;

  constructor(root, api, jobs) {
    this.#root = root;
    this.#api = api;
    this.#work = new Work(root, jobs);
    part(root, 'start').addEventListener('click', () => this.#calibrate());
  }

  /** Show what is known of the probabilities; `offered` says whether the gallery has labels that it was evaluated on. */
  async follow(offered) {
    const {calibration, changes, images} = await this.#api.get('/gallery');
    known.calibration = calibration;
    this.#changes = changes;
    show(this.#root, offered || calibration !== null);
    part(this.#root, 'aim').textContent = (calibration ? quality(calibration, images) : AIM) + (changes ? '' : ` ${COMMAND}`);
    part(this.#root, 'aim').classList.toggle('trouble', calibration?.reliable === false);
    part(this.#root, 'start').textContent = calibration ? 'Calibrate again' : 'Calibrate';
    show(part(this.#root, 'start'), changes);
    if (changes && !part(this.#root, 'bands').childElementCount) {
      const before = await this.#work.resume('calibration');
      if (before && calibration) this.#draw(before);
    }
  }

  async #calibrate() {
    show(part(this.#root, 'start'), false);
    part(this.#root, 'status').focus();  // the button that had it is hidden now
    const found = await this.#work.run('calibration', {});
    show(part(this.#root, 'start'), this.#changes);
    if (!found) return;
    await this.follow(true);
    this.#draw(found);
    this.#work.say('Calibrated: searches have probabilities from now on.');
    announce();
  }

  #draw(found) {
    const [low, high] = [Math.min(...found.error_of_folds), Math.max(...found.error_of_folds)];
    const single = [low, high].map(one => (100 * one).toFixed(1)).join(' to ');
    part(this.#root, 'measured').textContent = `From ${found.queries.toLocaleString('en')} queries: the difference is ${points(found.error)} (${single} in single fifths of the `
      + `${found.classes.toLocaleString('en')} classes, which have fewer hits), of which perfect probabilities would show ${(100 * found.error_by_chance).toFixed(1)} by chance. `
      + `For the best hit of a query alone it is ${points(found.error_of_best)}.`;
    part(this.#root, 'bands').replaceChildren(...bandRows(found.thresholds).map(row));
    show(part(this.#root, 'table'), true);
  }
}

/** Return how good the probabilities are, in words; old ones are those that `Calibration.is_stale` in Python calls so. */
function quality({created, images: then, error, reliable}, now) {
  const size = now > 1.5 * then || then > 1.5 * now ? ` The gallery had ${then.toLocaleString('en')} images then, and has ${now.toLocaleString('en')} now: calibrate again.` : '';
  const when = `Calibrated ${created.slice(0, 10)}.`;
  if (error === null) return when + size;
  return `${when} On classes that were held out, probability and share of right hits differ by ${points(error)} on average. `
    + (reliable ? 'On average they can be relied on.' : 'Do not rely on the probabilities: label more images, or take a better model.') + size;
}

/** Return for each band, the last one aside, its share of the hits and the share of right ones among them, from those above its limits. */
function bandRows(thresholds) {
  let above = {hits: 0, right: 0};
  return BANDS.filter(band => !band.last).map(({least, name, says}) => {
    const {hits, right} = thresholds.find(one => one.probability === least);
    const share = hits - above.hits, correct = hits * (right ?? 0) - above.hits * (above.right ?? 0);
    above = {hits, right};
    return [name, says, share > 0 ? percent(correct / share) : 'none', percent(share)];
  });
}

/** @param {string[]} texts The cells, of which the first is the head. */
function row(texts) {
  const line = document.createElement('tr');
  line.append(...texts.map((text, at) => {
    const cell = document.createElement(at ? 'td' : 'th');
    if (!at) cell.scope = 'row';
    cell.textContent = text;
    return cell;
  }));
  return line;
}
