() => [{...document.querySelector('#browse [data-where]')?.dataset}]
