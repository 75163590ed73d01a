"use strict";
// Opens the tabs that the reader chose on another page, and the one that the address names.
(() => {
  const chosen = window.__md_get("__tabs");
  if (Array.isArray(chosen)) {
    for (const set of document.querySelectorAll(".tabbed-set")) {
      const label = [...set.querySelectorAll(".tabbed-labels label")].find((one) =>
        chosen.includes(one.innerText.trim()),
      );
      if (label) document.getElementById(label.htmlFor).checked = true;
    }
  }
  const target = document.getElementById(location.hash.slice(1));
  if (target?.name) target.checked = target.name.startsWith("__tabbed_");
})();
