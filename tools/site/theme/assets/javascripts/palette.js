"use strict";
// Runs before the page is drawn, so that it does not flash in the other colours.
(() => {
  const palette = window.__md_get("__palette");
  if (!palette?.color) return;
  const { color } = palette;
  if (color.media === "(prefers-color-scheme)") {
    const scheme = matchMedia("(prefers-color-scheme: light)").matches ? "light" : "dark";
    const input = document.querySelector(`[data-md-color-media="(prefers-color-scheme: ${scheme})"]`);
    for (const name of ["media", "scheme", "primary", "accent"]) {
      color[name] = input.getAttribute(`data-md-color-${name}`);
    }
  }
  for (const [name, value] of Object.entries(color)) document.body.setAttribute(`data-md-color-${name}`, value);
})();
