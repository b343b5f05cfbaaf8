// Light or dark: what the visitor chose, or the system has. It runs before anything is drawn.
'use strict';
{
  const dark = matchMedia('(prefers-color-scheme: dark)');
  const set = () => document.documentElement.classList.toggle('dark', (localStorage.getItem('lookalike-theme') ?? (dark.matches ? 'dark' : '')) === 'dark');
  dark.addEventListener('change', set);
  set();
}
