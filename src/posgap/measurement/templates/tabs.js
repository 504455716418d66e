"use strict";
// The sections of a page become tabs; without this script they stand below each other.
(() => {
  const sections = [...document.querySelectorAll("main > section[data-tab]")];
  const buttons = new Map();

  function show(id, focus) {
    for (const section of sections) {
      const chosen = section.id === id;
      section.hidden = !chosen;
      const button = buttons.get(section.id);
      button.setAttribute("aria-selected", chosen);
      button.tabIndex = chosen ? 0 : -1;
      if (chosen && focus) button.focus();
    }
    // A page in a sandbox has no history of its own.
    try {
      history.replaceState(null, "", id.replace("part-", "#"));
    } catch {
      /* it works without */
    }
  }

  function makeTabs() {
    const list = document.querySelector(".tabs");
    if (sections.length < 2) return;
    list.hidden = false;
    list.setAttribute("role", "tablist");
    sections.forEach((section, at) => {
      const button = document.createElement("button");
      Object.assign(button, { type: "button", id: `tab-${section.id}`, textContent: section.dataset.tab });
      button.setAttribute("role", "tab");
      button.setAttribute("aria-controls", section.id);
      button.addEventListener("click", () => show(section.id));
      button.addEventListener("keydown", (event) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        const next =
          event.key === "Home"
            ? 0
            : event.key === "End"
              ? sections.length - 1
              : step && (at + step + sections.length) % sections.length;
        if (next === undefined) return;
        event.preventDefault();
        show(sections[next].id, true);
      });
      section.setAttribute("role", "tabpanel");
      section.setAttribute("aria-labelledby", button.id);
      buttons.set(section.id, button);
      list.append(button);
    });
    const turn = () => {
      const asked = location.hash.replace("#", "part-");
      show(buttons.has(asked) ? asked : sections[0].id);
    };
    window.addEventListener("hashchange", turn);
    turn();
    window.addEventListener("beforeprint", () =>
      sections.forEach((section) => {
        section.hidden = false;
      }),
    );
  }

  makeTabs();
})();
