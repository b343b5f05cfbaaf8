// Choose a report, and one to compare it with; both are in the address.
const form = element.querySelector('form');
const fill = () => {
  const {reports, report, against} = props.value;
  form.hidden = !reports.length;
  form.report.replaceChildren(...reports.map(([name, title]) => new Option(title, name)));
  const others = reports.filter(([name]) => name !== report);
  form.against.replaceChildren(
    new Option('none', ''), ...others.map(([name, title]) => new Option(title, name)));
  form.against.parentElement.hidden = !others.length;
  form.report.value = report;
  form.against.value = against;
  document.dispatchEvent(new CustomEvent('lookalike:report'));
};
const choose = (report, against) => {
  props.value = {...props.value, report, against};
  fill();
  trigger('submit');
};
const given = new URLSearchParams(location.search);
props.value = {...props.value, report: given.get('report') ?? '', against: given.get('against') ?? ''};
fill();
watch('value', fill);
form.addEventListener('submit', event => event.preventDefault());
form.addEventListener('change', () => {
  const report = form.report.value, against = form.against.value === report ? '' : form.against.value;
  choose(report, against);
  document.dispatchEvent(new CustomEvent('lookalike:state', {detail: {report, against}}));
});
document.addEventListener('lookalike:moved', ({detail: {tab, report, against}}) => {
  const shown = props.value, newest = shown.reports[0]?.[0] ?? '';
  if (tab === 'evaluation' && shown.reports.length && ((report || newest) !== shown.report || against !== shown.against)) {
    choose(report || newest, against);
  }
});
