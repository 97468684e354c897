// Makes one element like another with as few changes as possible: focus, selection, scrolling and open details stay.

import { showTime } from "./times.js";

function sameKind(one, other) {
  return one.nodeType === other.nodeType && one.nodeName === other.nodeName && (one.dataset?.key ?? "") === (other.dataset?.key ?? "");
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

function children(from, to) {
  let current = from.firstChild;
  for (const wanted of [...to.childNodes]) {
    let match = current;
    while (match && !sameKind(match, wanted)) {
      match = match.nextSibling;
    }
    if (!match) {
      const added = document.importNode(wanted, true);
      from.insertBefore(added, current);
      if (added.nodeName === "TIME") {
        showTime(added);
      }
      added.querySelectorAll?.("time[datetime]").forEach(showTime);
      continue;
    }
    while (current !== match) {
      const gone = current;
      current = current.nextSibling;
      gone.remove();
    }
    morph(match, wanted);
    current = match.nextSibling;
  }
  while (current) {
    const gone = current;
    current = current.nextSibling;
    gone.remove();
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
