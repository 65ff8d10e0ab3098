// Tables and numbers. Everything is made with textContent: names of files and users are data, never markup.

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== null && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined).map((child) => (child instanceof Node ? child : String(child))));
  return made;
}

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export function bytes(count) {
  let unit = 0;
  while (count >= 1024 && unit < UNITS.length - 1) { count /= 1024; unit += 1; }
  return `${count >= 100 || unit === 0 ? Math.round(count) : count.toFixed(1)} ${UNITS[unit]}`;
}

export function rate(count) {
  return count < 1 ? "–" : `${bytes(count)}/s`;
}

export function bits(count) {
  const giga = count / 1e9;
  return giga >= 1 ? `${+giga.toFixed(1)} Gbit/s` : `${Math.round(count / 1e6)} Mbit/s`;
}

export function since(seconds) {
  const units = [[86400, "d"], [3600, "h"], [60, "min"]];
  for (const [size, name] of units) if (seconds >= size) return `${Math.floor(seconds / size)} ${name}`;
  return `${Math.max(0, Math.floor(seconds))} s`;
}

// Show rows in a container. columns: [title, row => cell, class]. A table that has the focus inside keeps it.
export function table(container, columns, rows, empty) {
  const focused = container.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  if (!rows.length) {
    container.replaceChildren(element("p", { class: "empty" }, empty));
    return;
  }
  const head = element("tr", {}, ...columns.map(([title, , kind]) => element("th", { scope: "col", class: kind }, title)));
  const body = rows.map((row) => element("tr", {}, ...columns.map(([title, cell, kind]) => element("td", { class: kind, "data-title": title }, cell(row)))));
  container.replaceChildren(element("table", {}, element("thead", {}, head), element("tbody", {}, ...body)));
  if (focused) container.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
}
