// What pages do beyond reading: times in the reader's zone, news without a reload, order of tables, charts, and questions before actions.

import { showTimes } from "./times.js";
import { follow } from "./live.js";
import { prepare } from "./tables.js";

showTimes(document);
setInterval(() => showTimes(document), 30_000);

prepare(document);

if (document.querySelector(".lineage svg")) {
  import("./lineage.js");
}

if (document.querySelector("[data-chart]")) {
  import("./charts.js").then(({ draw }) => draw(document));
}

const main = document.querySelector("main");
if (main?.dataset.topics) {
  follow(main.dataset.topics.split(" "));
}

// A file that is no picture, whatever its name says.
document.addEventListener(
  "error",
  (event) => {
    if (event.target.tagName === "IMG") {
      event.target.classList.add("broken");
    }
  },
  true,
);

document.addEventListener("submit", (event) => {
  const question = event.target.dataset.confirm;
  if (question && !window.confirm(question)) {
    event.preventDefault();
  }
});

// Control and Enter run a query.
document.querySelector("textarea[data-run]")?.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.target.form.requestSubmit();
  }
});
