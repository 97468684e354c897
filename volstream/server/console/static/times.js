// Times as people say them, with the exact one in the reader's zone on hover.

const exact = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });
const day = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });
const far = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", year: "numeric" });

function words(moment) {
  const seconds = Math.round((moment - Date.now()) / 1000);
  const away = Math.abs(seconds);
  if (away < 45) {
    return seconds > 0 ? `in ${away} s` : away < 10 ? "just now" : `${away} s ago`;
  }
  if (away < 86_400) {
    const [amount, unit] = away < 5400 ? [Math.round(away / 60), "min"] : [Math.round(away / 3600), "h"];
    return seconds > 0 ? `in ${amount} ${unit}` : `${amount} ${unit} ago`;
  }
  return away < 180 * 86_400 ? day.format(moment) : far.format(moment);
}

export function showTime(element) {
  const moment = new Date(element.dateTime);
  if (Number.isNaN(moment.getTime())) {
    return;
  }
  const text = element.dataset.exact === undefined ? words(moment) : exact.format(moment);
  if (element.textContent !== text) {
    element.textContent = text;
  }
  element.title = exact.format(moment);
}

export function showTimes(root) {
  root.querySelectorAll("time[datetime]").forEach(showTime);
}
