// Makes one element like another with as few changes as possible, by idiomorph: focus, selection, scrolling and open details stay.

import { showTime } from "./times.js";

// Idiomorph tells elements apart by their ids.
function identify(root) {
  for (const node of root.querySelectorAll("[data-key]")) {
    node.id ||= `${node.closest("section")?.getAttribute("aria-labelledby")} ${node.dataset.key}`;
  }
}

const callbacks = {
  beforeNodeMorphed(from, to) {
    if (from.nodeName === "TIME") {
      from.dateTime = to.dateTime;
      showTime(from);
      return false;
    }
    if (from.dataset?.chart !== undefined) {
      [...to.attributes].forEach(({ name, value }) => from.setAttribute(name, value)); // what is inside was drawn here
      return false;
    }
    // What the reader has written stays.
    return from !== document.activeElement && !from.matches?.("textarea, input:not([type=hidden])");
  },
  afterNodeAdded(node) {
    [node, ...(node.querySelectorAll?.("time") ?? [])].filter((one) => one.nodeName === "TIME").forEach(showTime);
  },
  // The reader has opened details, and chosen options.
  beforeAttributeUpdated: (name, node) => name !== "selected" && (name !== "open" || node.nodeName !== "DETAILS"),
};

export function morph(from, to) {
  identify(from);
  identify(to);
  Idiomorph.morph(from, to, { callbacks });
}
