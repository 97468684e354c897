// Makes one element like another with as few changes as possible: focus, selection, scrolling and open details stay.

import { showTime } from "./times.js";

// Parts of a page have names, so that one that appears is not taken for the one that stood there.
function keyOf(node) {
  return node.dataset?.key ?? (node.id || node.getAttribute?.("aria-labelledby")) ?? null;
}

function sameKind(one, other) {
  return one.nodeType === other.nodeType && one.nodeName === other.nodeName;
}

function attributes(from, to) {
  for (const { name } of [...from.attributes]) {
    if (!to.hasAttribute(name) && !(name === "open" && from.nodeName === "DETAILS")) {
      from.removeAttribute(name);
    }
  }
  for (const { name, value } of to.attributes) {
    if (from.getAttribute(name) !== value && !(name === "open" && from.nodeName === "DETAILS")) {
      from.setAttribute(name, value);
    }
  }
}

function add(from, wanted, before) {
  const added = document.importNode(wanted, true);
  from.insertBefore(added, before);
  if (added.nodeName === "TIME") {
    showTime(added);
  }
  added.querySelectorAll?.("time[datetime]").forEach(showTime);
}

function children(from, to) {
  const named = new Map([...from.childNodes].filter(keyOf).map((node) => [keyOf(node), node]));
  const stay = new Set([...to.childNodes].map(keyOf).filter(Boolean));
  let current = from.firstChild;
  const drop = () => {
    const gone = current;
    current = current.nextSibling;
    gone.remove();
  };
  for (const wanted of [...to.childNodes]) {
    const key = keyOf(wanted);
    let match = key ? named.get(key) : current;
    while (!key && match && keyOf(match)) {
      match = match.nextSibling;
    }
    if (!match || !sameKind(match, wanted)) {
      add(from, wanted, current);
      continue;
    }
    // What is before it goes, so that it need not move itself: that would take the focus from what is in it.
    while (key && current !== match && current && !stay.has(keyOf(current))) {
      drop();
    }
    if (current === match) {
      current = match.nextSibling;
    } else {
      from.insertBefore(match, current);
    }
    morph(match, wanted);
  }
  while (current) {
    drop();
  }
}

export function morph(from, to) {
  if (from.nodeType === Node.TEXT_NODE) {
    if (from.data !== to.data) {
      from.data = to.data;
    }
    return;
  }
  if (from.nodeType !== Node.ELEMENT_NODE) {
    return;
  }
  if (from.nodeName === "TIME") {
    if (from.dateTime !== to.dateTime) {
      from.dateTime = to.dateTime;
    }
    showTime(from);
    return;
  }
  if (from.hasAttribute("data-chart")) {
    attributes(from, to); // what is inside was drawn here
    return;
  }
  if (from.nodeName === "TEXTAREA" || from === document.activeElement) {
    return;
  }
  attributes(from, to);
  children(from, to);
}
