// Charts of a job's batches, drawn by uPlot in the page's colours.

const { uPlot } = window;

const drawn = new Map();

// A canvas needs a colour itself, not the light-dark() of a variable.
function color(name) {
  const probe = document.body.appendChild(document.createElement("span"));
  probe.style.color = `var(${name})`;
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

function number(value) {
  if (value === null || value === undefined) {
    return "—";
  }
  return value >= 100 ? Math.round(value).toLocaleString() : value.toPrecision(3).replace(/\.?0+$/, "");
}

function options(element, width) {
  const axis = { stroke: color("--dim"), font: "11px system-ui", grid: { stroke: color("--line"), width: 1 }, ticks: { show: false } };
  const line = color("--accent");
  return {
    width,
    height: 200,
    cursor: { y: false, points: { size: 7 } },
    legend: { live: true },
    scales: { y: { range: (_, least, most) => [0, most > 0 ? most * 1.12 : 1] } },
    axes: [
      { ...axis, grid: { show: false } },
      { ...axis, size: 52, values: (_, values) => values.map(number) },
    ],
    series: [
      { label: "At" },
      {
        label: element.dataset.label,
        stroke: line,
        width: 1.6,
        fill: `color-mix(in srgb, ${line} 12%, transparent)`,
        points: { show: (plot) => plot.data[0].length < 40, size: 5, fill: color("--card") },
        value: (_, value) => `${number(value)} ${element.dataset.unit}`,
      },
    ],
  };
}

// Batches that lie apart are not joined: idle time has no throughput.
function withPauses([times, values, seconds]) {
  const pause = Math.max(1, (times.at(-1) - times[0]) / 40);
  const data = [[], []];
  times.forEach((time, at) => {
    const idle = at > 0 && time - seconds[at] - times[at - 1];
    if (idle > pause) {
      data[0].push(times[at - 1] + idle / 2);
      data[1].push(null);
    }
    data[0].push(time);
    data[1].push(values[at]);
  });
  return data;
}

function drawOne(element, anew) {
  const source = element.dataset.chart;
  const before = drawn.get(element);
  if (before && before.source === source && !anew) {
    return;
  }
  const data = withPauses(JSON.parse(source));
  if (before && !anew) {
    before.plot.setData(data);
    before.source = source;
    return;
  }
  before?.plot.destroy();
  element.replaceChildren();
  drawn.set(element, { source, plot: new uPlot(options(element, element.clientWidth - 24), data, element) });
}

export function draw(root, anew = false) {
  root.querySelectorAll("[data-chart]").forEach((element) => drawOne(element, anew));
}

let resizing;
window.addEventListener("resize", () => {
  clearTimeout(resizing);
  resizing = setTimeout(() => draw(document, true), 120);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw(document, true));
document.addEventListener("volstream:theme", () => draw(document, true));
document.addEventListener("volstream:changed", () => draw(document));
