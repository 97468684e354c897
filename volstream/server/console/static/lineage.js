// The picture of the lineage is zoomed by buttons, wheel or fingers, moved by dragging, and saved as a file.

const card = document.querySelector(".lineage").closest(".card");
const svg = card.querySelector("svg");
const whole = svg.viewBox.baseVal;
const touches = new Map();
let all;
let view;
let moved = 0;

function show(part) {
  view = part;
  const { x, y, width, height } = part ?? all;
  svg.setAttribute("viewBox", `${x} ${y} ${width} ${height}`);
}

// An update of the page brings the whole picture, which may have grown.
function updated() {
  all = { x: 0, y: 0, width: whole.width, height: whole.height };
  card.querySelector("[data-picture]").hidden = false;
  if (view) {
    show(view);
  }
}

function zoom(factor, at = { x: whole.x + whole.width / 2, y: whole.y + whole.height / 2 }) {
  const by = Math.min(Math.max(factor, 120 / whole.width), (1.5 * all.width) / whole.width);
  show({ x: at.x - (at.x - whole.x) * by, y: at.y - (at.y - whole.y) * by, width: whole.width * by, height: whole.height * by });
}

function place(event) {
  return new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
}

// A picture in a file has the page's colours, as they are now.
function save() {
  const copy = svg.cloneNode(true);
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("viewBox", `0 0 ${all.width} ${all.height}`);
  const parts = copy.querySelectorAll("rect, path, text");
  svg.querySelectorAll("rect, path, text").forEach((part, at) => {
    const look = getComputedStyle(part);
    for (const name of ["fill", "stroke", "stroke-opacity", "stroke-width", "font-size", "font-weight", "font-family"]) {
      parts[at].style.setProperty(name, look.getPropertyValue(name));
    }
  });
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([new XMLSerializer().serializeToString(copy)], { type: "image/svg+xml" }));
  link.download = "lineage.svg";
  link.click();
  URL.revokeObjectURL(link.href);
}

updated();
document.addEventListener("volstream:changed", updated);
card.addEventListener("click", (event) => {
  const act = { in: () => zoom(0.7), out: () => zoom(1.4), all: () => show(), svg: save }[event.target.dataset.act];
  act?.();
  if (moved > 5 && event.target.closest("svg a")) {
    event.preventDefault(); // the end of a drag
  }
});
svg.addEventListener("dragstart", (event) => event.preventDefault());
svg.addEventListener(
  "wheel",
  (event) => {
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      zoom(event.deltaY > 0 ? 1.15 : 0.87, place(event));
    }
  },
  { passive: false },
);
svg.addEventListener("pointerdown", (event) => {
  touches.set(event.pointerId, event);
  moved = 0;
});
window.addEventListener("pointermove", (event) => {
  const before = touches.get(event.pointerId);
  if (!before) {
    return;
  }
  const other = [...touches.values()].find((touch) => touch.pointerId !== event.pointerId);
  moved += Math.abs(event.clientX - before.clientX) + Math.abs(event.clientY - before.clientY);
  if (other) {
    const apart = (one) => Math.hypot(one.clientX - other.clientX, one.clientY - other.clientY);
    zoom(apart(before) / Math.max(1, apart(event)), place(other));
  } else {
    const [from, to] = [place(before), place(event)];
    show({ x: whole.x + from.x - to.x, y: whole.y + from.y - to.y, width: whole.width, height: whole.height });
  }
  touches.set(event.pointerId, event);
});
for (const end of ["pointerup", "pointercancel"]) {
  window.addEventListener(end, (event) => touches.delete(event.pointerId));
}
