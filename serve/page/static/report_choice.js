// Choose a report, and one to compare it with.
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
};
fill();
watch('value', fill);
form.addEventListener('submit', event => event.preventDefault());
form.addEventListener('change', () => {
  const against = form.against.value === form.report.value ? '' : form.against.value;
  props.value = {...props.value, report: form.report.value, against};
  fill();
  trigger('submit');
});
