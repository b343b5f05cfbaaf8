// The evaluation tab: evaluate the gallery, and look at its reports, at their classes, and at a figure.

import {address} from './address.js';
import {parts} from './api.js';
import {Calibration} from './calibration.js';
import {Classes} from './classes.js';
import {Coverage} from './coverage.js';
import {part, show} from './dom.js';
import {Figure} from './figure.js';
import {Jobs} from './jobs.js';
import {Work} from './work.js';

const DONE = 'This gallery has been evaluated in its current state.';
const NONE = 'There is no evaluation yet. On the command line, lookalike evaluate does it with other images.';

/** Start the tab. */
export function mount(root, api) {
  const tab = new Evaluation(root, api);
  address.onChange(() => tab.follow());
  tab.follow();
}

class Evaluation {
  #root; #api; #parts = parts(); #work; #jobs; #classes; #figure; #calibration; #coverage; #kept = null; #shown = null;

  constructor(root, api) {
    this.#root = root;
    this.#api = api;
    this.#jobs = new Jobs(api);
    this.#work = new Work(part(root, 'measure'), this.#jobs);
    this.#classes = new Classes(part(root, 'all'), api);
    this.#figure = new Figure(part(root, 'figures'), this.#jobs);
    this.#calibration = new Calibration(part(root, 'calibration'), api, this.#jobs);
    this.#coverage = new Coverage(part(root, 'coverage'), this.#jobs);
    part(root, 'start').addEventListener('click', () => this.#evaluate());
    const choice = part(root, 'choice');
    choice.addEventListener('submit', event => event.preventDefault());
    choice.addEventListener('change', () => {
      const report = choice.report.value;
      address.update({report, against: choice.against.value === report ? '' : choice.against.value});
    });
    part(root, 'report').addEventListener('click', event => searchWith(event.target.closest('[data-search]')));
    document.addEventListener('lookalike:changed', () => { this.#kept = null; this.follow(); });
    document.addEventListener('lookalike:live', ({detail}) => {
      if (!detail.changed || part(part(root, 'measure'), 'status').textContent !== DONE) return;
      this.#kept = null;  // that may be wrong by now
      this.follow();
    });
  }

  /** Show the report, the class and the figure of the address. */
  async follow() {
    if (address.state.tab !== 'evaluation') {
      this.#kept = null;  // there may be other reports when it is opened again
      return;
    }
    this.#coverage.follow();
    try {
      const kept = await (this.#kept ??= this.#read());
      this.#figure.follow(kept.state);
      const [report, against] = this.#choose(kept.reports.map(one => one.name));
      this.#classes.follow(report, against);
      await this.#show(report, against);
    } catch (error) {
      this.#kept = null;
      part(this.#root, 'report').textContent = error.message;
    }
  }

  /** Return the reports, and say whether the gallery has to be evaluated. */
  async #read() {
    const kept = await this.#api.get('/evaluation/reports');
    this.#calibration.follow(kept.reports.length > 0).catch(() => {});  // the reports say what is wrong
    const choice = part(this.#root, 'choice');
    show(choice, kept.reports.length > 0);
    show(choice.against.parentElement, kept.reports.length > 1);
    choice.report.replaceChildren(...kept.reports.map(({name, title}) => new Option(title, name)));
    show(part(this.#root, 'offer'), !kept.current && !kept.obstacle);
    this.#work.say(kept.obstacle ? `${kept.obstacle}.` : kept.current ? DONE : '');
    if (!kept.current && !kept.obstacle) this.#join();
    return kept;
  }

  /** Follow an evaluation that another visitor has started. */
  async #join() {
    const job = await this.#jobs.newest('evaluation').catch(() => null);
    if (job?.state !== 'running') return;
    show(part(this.#root, 'offer'), false);
    await this.#work.resume('evaluation');
    this.#again();
  }

  async #evaluate() {
    show(part(this.#root, 'offer'), false);
    part(part(this.#root, 'measure'), 'status').focus();  // the button that had it is hidden now
    const done = await this.#work.run('evaluation', {});
    if (done) return this.#again();
    show(part(this.#root, 'offer'), true);
  }

  /** Show the newest report. */
  #again() {
    this.#kept = null;
    address.update({report: '', against: ''}, {replace: true});
  }

  /** Return the report and the one beside it that the address names, of those that are kept. */
  #choose(names) {
    const {state} = address, choice = part(this.#root, 'choice');
    const report = names.includes(state.report) ? state.report : names[0] ?? '';
    const against = names.includes(state.against) && state.against !== report ? state.against : '';
    const others = [...choice.report.options].filter(one => one.value !== report);
    choice.against.replaceChildren(new Option('none', ''), ...others.map(one => new Option(one.text, one.value)));
    choice.report.value = report;
    choice.against.value = against;
    return [report, against];
  }

  async #show(report, against) {
    const asked = JSON.stringify([report, against]), box = part(this.#root, 'report');
    if (asked === this.#shown) return;
    this.#shown = asked;
    if (!report) { box.textContent = NONE; return; }
    box.ariaBusy = 'true';
    if (box.textContent === NONE) box.textContent = '';
    try {
      const drawn = await this.#parts.get(`/report?${new URLSearchParams({report, against})}`, {type: 'text'});
      if (asked === this.#shown) box.innerHTML = drawn;
    } catch (error) {
      if (asked !== this.#shown) return;
      this.#shown = null;
      box.textContent = error.message;
    } finally {
      if (asked === (this.#shown ?? asked)) box.ariaBusy = null;
    }
  }
}

function searchWith(button) {
  if (!button) return;
  document.dispatchEvent(new CustomEvent('lookalike:search', {detail: {item: Number(button.dataset.search)}}));
  document.getElementById('search-tab-button').focus();  // the button that had it is hidden now
}
