// Follows the daemon's events: when facts of this page change, the page is fetched again, and what differs is swapped in place.

import { morph } from "./morph.js";

const PAUSE = 1000;

let topics = [];
let waiting = false;
let stale = false;
let fetched = 0;

function concerns(changed) {
  return topics.includes("*") || changed.some((topic) => topics.includes(topic));
}

function say(on, text) {
  const shown = document.querySelector(".live");
  shown?.classList.toggle("on", on);
  if (shown && shown.textContent !== text) {
    shown.textContent = text;
  }
}

async function refresh() {
  waiting = false;
  if (document.hidden) {
    stale = true;
    return;
  }
  fetched = Date.now();
  try {
    const answer = await fetch(location.href, { headers: { accept: "text/html" } });
    if (!answer.ok) {
      say(false, answer.status === 401 ? "Locked" : "Not updated");
      return;
    }
    const next = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main");
    if (next) {
      morph(document.querySelector("main"), next);
      say(true, "Live");
      document.dispatchEvent(new CustomEvent("volstream:changed"));
    }
  } catch {
    say(false, "Not connected");
  }
}

function soon() {
  if (!waiting) {
    waiting = true;
    setTimeout(refresh, Math.max(0, fetched + PAUSE - Date.now()));
  }
}

export function follow(wanted) {
  topics = wanted;
  const events = new EventSource("/events");
  let lost = false;
  events.addEventListener("open", () => {
    say(true, "Live");
    if (lost) {
      lost = false;
      soon();
    }
  });
  events.addEventListener("error", () => {
    lost = true;
    say(false, "Not connected");
  });
  events.addEventListener("change", (event) => {
    if (concerns(JSON.parse(event.data))) {
      soon();
    }
  });
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden && stale) {
      stale = false;
      soon();
    }
  });
  // A browser that keeps the page for its back button would hold the connection.
  window.addEventListener("pagehide", () => events.close());
  window.addEventListener("pageshow", (event) => event.persisted && location.reload());
}
