// Tables are sorted by the column whose head is clicked, and back; the order stays when the page is updated.

const UNITS = { KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40, min: 60, h: 3600, d: 86_400 };

const chosen = new Map();

function key(cell) {
  const time = cell.querySelector("time[datetime]");
  if (time) {
    return Date.parse(time.dateTime);
  }
  const text = (cell.firstChild?.textContent.trim() ? cell.firstChild : cell).textContent.trim();
  const found = text.match(/^(-?[\d.,\u202f]+(?:e[+-]?\d+)?) ?([a-zA-Z%/]*)$/);
  return found ? parseFloat(found[1].replace(/[,\u202f]/g, "")) * (UNITS[found[2]] ?? 1) : text.toLowerCase();
}

function compare(one, other) {
  if (typeof one === typeof other) {
    return typeof one === "number" ? one - other : one.localeCompare(other);
  }
  return typeof one === "number" ? -1 : 1; // a dash is below the numbers
}

function nameOf(table) {
  return table.closest("[aria-label]")?.getAttribute("aria-label") ?? table.closest("[aria-labelledby]")?.getAttribute("aria-labelledby");
}

function sort(table, column, direction) {
  const body = table.tBodies[0];
  const rows = [...body.rows].map((row) => [key(row.cells[column]), row]);
  rows.sort((one, other) => direction * compare(one[0], other[0]));
  body.append(...rows.map(([, row]) => row));
}

function sortable(table) {
  const body = table.tBodies[0];
  return table.tHead && body?.rows.length > 1 && [...body.rows].every((row) => row.cells.length === table.tHead.rows[0].cells.length);
}

export function prepare(root) {
  root.querySelectorAll("table").forEach((table) => {
    if (!sortable(table)) {
      return;
    }
    const [column, direction] = chosen.get(nameOf(table)) ?? [];
    [...table.tHead.rows[0].cells].forEach((head, at) => {
      head.tabIndex = 0;
      head.ariaSort = at === column ? (direction > 0 ? "ascending" : "descending") : "none";
    });
    if (column !== undefined) {
      sort(table, column, direction);
    }
  });
}

function choose(event) {
  const head = event.target.closest("thead th[aria-sort]");
  if (!head || (event.type === "keydown" && event.key !== "Enter" && event.key !== " ")) {
    return;
  }
  event.preventDefault();
  const table = head.closest("table");
  const name = nameOf(table);
  const [column, direction] = chosen.get(name) ?? [];
  const numbers = head.classList.contains("n");
  chosen.set(name, [head.cellIndex, column === head.cellIndex ? -direction : numbers ? -1 : 1]);
  prepare(table.parentNode);
}

document.addEventListener("click", choose);
document.addEventListener("keydown", choose);
document.addEventListener("volstream:changed", () => prepare(document));
