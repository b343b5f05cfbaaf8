// The filter and page that the gallery tab showed last, sent when it is opened again.
() => [{...document.querySelector('#browse [data-where]')?.dataset}]
