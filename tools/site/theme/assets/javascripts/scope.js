"use strict";
// What the theme keeps in the browser (colours, chosen tabs), under the address of the site. The names are the theme's.
window.__md_scope = new URL("../..", document.currentScript.src);
window.__md_hash = (text) => [...text].reduce((sum, one) => (sum << 5) - sum + one.charCodeAt(0), 0);
window.__md_get = (key, store = localStorage, scope = window.__md_scope) =>
  JSON.parse(store.getItem(`${scope.pathname}.${key}`));
window.__md_set = (key, value, store = localStorage, scope = window.__md_scope) => {
  try {
    store.setItem(`${scope.pathname}.${key}`, JSON.stringify(value));
  } catch {
    // A browser that stores nothing forgets the choice.
  }
};
