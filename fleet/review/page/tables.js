const page = JSON.parse(document.getElementById("data").textContent);
const report = page.report;
const at = (id) => document.getElementById(id);

// Everything from hosts becomes text through here, never markup.
const make = (tag, content, className) => {
  const made = document.createElement(tag);
  if (content instanceof Node) made.append(content);
  else if (Array.isArray(content)) made.append(...content);
  else if (content !== undefined && content !== null) made.textContent = content;
  if (className) made.className = className;
  return made;
};

const digits = [0, 1, 2, 3].map((most) => new Intl.NumberFormat("en-US", {
  minimumFractionDigits: most, maximumFractionDigits: most,
}));
const thousands = (number) => digits[0].format(number);
const counted = (number, noun) => thousands(number) + " " + noun + (number === 1 ? "" : "s");
// Three digits, as src/quantity.rs.
const amount = (number) => {
  if (!Number.isFinite(number)) return "";
  const size = Math.abs(number);
  if (size > 0 && size < 0.0005) return (number < 0 ? "-" : "") + "<0.001";
  const most = size >= 99.95 || size === 0 ? 0 : size >= 9.995 ? 1 : size >= 0.9995 ? 2 : 3;
  return digits[most].format(number || 0); // Not -0.
};
const signed = (number) => (number > 0 ? "+" : "") + amount(number);
const percent = (share) => {
  if (!Number.isFinite(share)) return "";
  const value = 100 * share;
  if (value > 0 && value < 0.005) return "<0.01";
  return Math.abs(value) < 0.005 ? "0.00" : value.toFixed(2);
};
const change = (relative) => {
  const text = percent(relative);
  return relative > 0 && !text.startsWith("<") && text !== "0.00" ? "+" + text : text;
};
// More cost is worse. Words and signs say the same, for those who see no colours.
const judged = (number, text) =>
  make("span", text, number > 0 ? "worse" : number < 0 ? "better" : "");
const day = (seconds) => new Date(seconds * 1000).toISOString().slice(0, 10);
const procedureName = (name, empty) => name || make("span", empty, "dim");
const moneyTitle = report.currency || "money";

// Commands.
const words = new Map(Object.entries(page.words));
// Where the page is served, what leads to the instructions is a link.
const isLink = report.drill.startsWith("/");
const shellWord = (shown) => {
  if (words.has(shown)) return words.get(shown);
  if (isLink) return encodeURIComponent(shown);
  const plain = /^[A-Za-z0-9_.\/:@%+,=-]+$/.test(shown);
  return plain ? shown : "'" + shown.replaceAll("'", "'\\''") + "'";
};
const drillCommand = (service, image, procedure) => {
  const names = { "{service}": service, "{image}": image, "{procedure}": procedure };
  let whole = true;
  const command = report.drill.replace(/\{(service|image|procedure)\}/g, (place) => {
    const word = shellWord(names[place]);
    if (word === null) whole = false;
    return word;
  });
  return whole ? command : null;
};
const command = (service, image, procedure) => {
  const text = drillCommand(service, image, procedure);
  const code = make("code", text || "The name is too long for this page; it is in --format json.");
  if (text && isLink) {
    const link = make("a", procedure ? "Instructions, executions and causes" : "The image's page");
    link.href = text;
    return make("div", link, "command");
  }
  const place = make("div", code, "command");
  if (!text) return place;
  const copy = make("button", "Copy");
  copy.type = "button";
  copy.title = "Copies the command that leads to the instructions";
  copy.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      copy.textContent = "Copied";
    } catch {
      // Where a page may not write to the clipboard, Ctrl+C does.
      getSelection().selectAllChildren(code);
      copy.textContent = "Selected";
    }
    setTimeout(() => { copy.textContent = "Copy"; }, 1500);
  });
  place.append(copy);
  return place;
};

// A table of rows. Columns: title, value to sort by, cell, class. It has the first rows, and a
// button that shows all of them.
const SHOWN = 100;
const sortedBy = new Map();
const table = (key, rows, all) => {
  let most = SHOWN;
  // On a narrow screen the name is in sight, and numbers are scrolled to.
  const isNarrow = matchMedia("(max-width: 40rem)").matches;
  const isFirst = (column) => isNarrow && (column.className || "").includes("wide");
  const columns = [...all.filter(isFirst), ...all.filter((column) => !isFirst(column))];
  const place = make("div", undefined, "scroll");
  if (rows.length === 0) {
    place.append(make("p", "None.", "hint"));
    return place;
  }
  const draw = (focus) => {
    const sort = sortedBy.get(key);
    const made = make("table");
    const titles = made.createTHead().insertRow();
    columns.forEach((column, index) => {
      const title = make("th", undefined, column.className);
      title.scope = "col";
      const chosen = sort && sort.index === index;
      if (column.value) {
        const arrow = chosen ? (sort.down ? " ▼" : " ▲") : "";
        const button = make("button", column.title + arrow);
        button.type = "button";
        button.addEventListener("click", () => {
          sortedBy.set(key, { index, down: chosen ? !sort.down : column.className === "number" });
          draw(index);
        });
        title.setAttribute("aria-sort", chosen ? (sort.down ? "descending" : "ascending") : "none");
        title.append(button);
      } else title.textContent = column.title;
      titles.append(title);
    });
    let shown = rows;
    if (sort) {
      const [value, sign] = [columns[sort.index].value, sort.down ? -1 : 1];
      shown = rows.slice().sort((a, b) => sign * compare(value(a), value(b)));
    }
    const body = made.createTBody();
    for (const row of shown.slice(0, most)) {
      const line = body.insertRow();
      for (const column of columns) line.append(make("td", column.cell(row), column.className));
    }
    place.replaceChildren(made);
    if (rows.length > most) {
      const more = make("button", "Show all " + thousands(rows.length), "linked");
      more.type = "button";
      more.addEventListener("click", () => { most = rows.length; draw(); });
      place.append(make("p", more, "hint"));
    }
    if (focus !== undefined) titles.children[focus].firstChild.focus();
  };
  draw();
  return place;
};
// Nothing is less than everything.
const compare = (a, b) => {
  const [x, y] = [a ?? -Infinity, b ?? -Infinity];
  return x < y ? -1 : x > y ? 1 : 0;
};

// Columns that several tables have.
const number = (title, value, show) => ({
  title, value, className: "number", cell: (row) => show(value(row)),
});
const text = (title, value, empty = "") => ({
  title, value, className: "name", cell: (row) => procedureName(value(row), empty),
});
const hostCount = number("hosts", (row) => row.hosts, thousands);
const coreHours = number("core-hours", (row) => row.core_hours, amount);
const money = (show) => (report.currency ? [number(moneyTitle, (row) => row.money, show)] : []);
const share = number("%", (row) => row.share, percent);
const owner = text("owner", (row) => row.owner);
const bar = (value, most) => ({ title: "", className: "bar", cell: (row) => {
  const made = make("div");
  made.style.width = (most > 0 ? 100 * value(row) / most : 0) + "%";
  return made;
} });
const largest = (rows, value) => rows.reduce((most, row) => Math.max(most, value(row)), 0);

// A trend as a line: gaps are weeks without samples. weeks: parts of the largest, 0..1, or null.
const SVG = at("svg").namespaceURI;
const trendLine = (weeks, width, height, base = false) => {
  const svg = document.createElementNS(SVG, "svg");
  const set = (element, values) => {
    for (const [name, value] of Object.entries(values)) element.setAttribute(name, value);
    return element;
  };
  set(svg, { class: "trend", width, height, viewBox: "0 0 " + width + " " + height });
  svg.setAttribute("aria-hidden", "true");
  const x = (index) => (3 + index * (width - 6) / Math.max(1, weeks.length - 1)).toFixed(1);
  const y = (part) => (height - 3 - part * (height - 6)).toFixed(1);
  if (base) {
    const level = document.createElementNS(SVG, "path");
    svg.append(set(level, { class: "base", d: "M0 " + y(0) + "H" + width }));
  }
  let line = "";
  weeks.forEach((part, index) => {
    if (part === null) return;
    const begins = index === 0 || weeks[index - 1] === null;
    // A round end makes a dot of a week that stands alone.
    line += (begins ? "M" : "L") + x(index) + " " + y(part) + (begins ? "h0" : "");
  });
  svg.append(set(document.createElementNS(SVG, "path"), { d: line }));
  const last = weeks[weeks.length - 1];
  if (typeof last === "number") {
    const dot = document.createElementNS(SVG, "circle");
    svg.append(set(dot, { cx: x(weeks.length - 1), cy: y(last), r: 2 }));
  }
  return svg;
};
