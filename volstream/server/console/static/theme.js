// Light or dark: as the system has it, or as the reader chose on this machine. Read before the page is drawn, so that it never flashes.

const system = matchMedia("(prefers-color-scheme: dark)");
const root = document.documentElement;

function stored() {
  try {
    return localStorage.getItem("theme");
  } catch {
    return null;
  }
}

function shown() {
  return root.dataset.theme || (system.matches ? "dark" : "light");
}

function label(button) {
  const other = shown() === "dark" ? "light" : "dark";
  button.textContent = other === "dark" ? "Dark" : "Light";
  button.setAttribute("aria-label", `Switch to ${other} colours`);
}

if (stored()) {
  root.dataset.theme = stored();
}

document.addEventListener("DOMContentLoaded", () => {
  const button = document.querySelector(".theme");
  if (!button) {
    return;
  }
  button.hidden = false;
  label(button);
  system.addEventListener("change", () => label(button));
  button.addEventListener("click", () => {
    root.dataset.theme = shown() === "dark" ? "light" : "dark";
    try {
      localStorage.setItem("theme", root.dataset.theme);
    } catch {
      // Without storage the choice is for this page.
    }
    label(button);
    document.dispatchEvent(new CustomEvent("volstream:theme"));
  });
});
