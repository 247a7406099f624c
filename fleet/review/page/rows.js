// The table of procedures. It holds as many rows as are in sight: their elements are made anew as
// the table is scrolled.
const columns = page.top;
const count = columns.core_hours.length;
const nameOf = (number) => (number < 0 ? "" : page.names[number]);
const DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_";
const digit = new Map([...DIGITS].map((letter, value) => [letter, value]));

// Core-hours of a week as a part of the row's largest week, 0..1; null: no samples.
const weekOf = (row, week) => {
  const first = (row * columns.weeks + week) * 2;
  const value = 64 * digit.get(columns.trend[first]) + digit.get(columns.trend[first + 1]);
  return value === 0 ? null : value / 4095;
};
const trendOf = (row) => Array.from({ length: columns.weeks }, (_, week) => weekOf(row, week));
// Relative change from the week before; null: one of both weeks has no samples.
const weekChange = (row) => {
  const [before, now] = [weekOf(row, columns.weeks - 2), weekOf(row, columns.weeks - 1)];
  return before && now ? now / before - 1 : null;
};
const shareOf = (hours) => percent(hours / report.fleet.core_hours);

// Names as the filter and the sort compare them: made while nothing else is to be done.
let lowerNames = null;
const lowered = () => (lowerNames ??= page.names.map((name) => name.toLowerCase()));
(window.requestIdleCallback || setTimeout)(lowered);

const rows = (() => {
  const HEIGHT = 26;
  const TITLES = 30;
  const names = (column, className, empty) => ({
    text: true,
    className,
    cell: (row) => procedureName(nameOf(column[row]), empty),
    // Names are compared once: sorting then compares numbers.
    keys: () => {
      const lower = lowered();
      const order = lower.map((_, index) => index);
      order.sort((a, b) => (lower[a] < lower[b] ? -1 : lower[a] > lower[b] ? 1 : 0));
      const rank = new Map(order.map((name, place) => [name, place]));
      return Float64Array.from(column, (name) => rank.get(name) ?? -1);
    },
  });
  const numbers = (values, show) => ({
    className: "number",
    cell: (row) => show(values[row]),
    keys: () => Float64Array.from(values, (value) => value ?? -Infinity),
  });
  const changes = () => Array.from({ length: count }, (_, row) => weekChange(row) ?? -Infinity);
  const COLUMNS = [
    { title: "core-hours", ...numbers(columns.core_hours, amount) },
    { title: "%", ...numbers(columns.core_hours, shareOf) },
    { title: moneyTitle, ...numbers(columns.money, amount) },
    { title: "week %", className: "number", keys: () => Float64Array.from(changes()),
      cell: (row) => change(weekChange(row)) },
    { title: "hosts", ...numbers(columns.hosts, thousands) },
    { title: columns.weeks + " weeks", cell: (row) => trendLine(trendOf(row), 104, 22) },
    { title: "procedure", ...names(columns.procedure, "procedure", "(no symbol)") },
    { title: "image", ...names(columns.image) },
    { title: "service", ...names(columns.service) },
    { title: "owner", ...names(columns.owner) },
  ];
  const grid = at("rows");
  const titles = make("div", undefined, "row titles");
  const space = make("div", undefined, "space");
  const state = {
    sort: 0, down: true, filter: "", only: null, chosen: 0, order: null, shown: null,
  };
  const keys = [];

  const sorted = () => {
    const key = keys[state.sort] ??= COLUMNS[state.sort].keys();
    const sign = state.down ? -1 : 1;
    // Equal rows stay in the order of the report.
    const order = Uint32Array.from({ length: count }, (_, row) => row);
    return order.sort((a, b) => (key[a] === key[b] ? a - b : key[a] < key[b] ? -sign : sign));
  };

  // Rows that have every word in one of their names: each name is searched once.
  const filtered = () => {
    const wanted = state.filter.toLowerCase().split(/\s+/).filter(Boolean);
    const { order, only } = state;
    if (wanted.length === 0 && !only) return order;
    const lower = lowered();
    const found = wanted.map((word) => Uint8Array.from(lower, (name) => name.includes(word)));
    const { service, image, procedure, owner } = columns;
    return order.filter((row) =>
      (!only || only.every(([column, name]) => columns[column][row] === name))
      && found.every((has) => has[service[row]] || has[image[row]] || has[procedure[row]]
        || has[owner[row]]));
  };

  const cellsOf = (row) => COLUMNS.map((column) => {
    const cell = make("div", column.cell(row), column.className);
    cell.setAttribute("role", "gridcell");
    if (column.text) cell.title = cell.textContent;
    return cell;
  });
  const draw = () => {
    const first = Math.max(0, Math.floor(grid.scrollTop / HEIGHT) - 4);
    const last = Math.min(state.shown.length, first + Math.ceil(grid.clientHeight / HEIGHT) + 8);
    const made = [];
    for (let place = first; place < last; place += 1) {
      const line = make("div", cellsOf(state.shown[place]), "row");
      line.id = "row-" + place;
      line.setAttribute("role", "row");
      line.setAttribute("aria-rowindex", place + 2);
      line.setAttribute("aria-selected", place === state.chosen);
      line.style.top = place * HEIGHT + "px";
      made.push(line);
    }
    space.replaceChildren(...made);
    if (state.shown.length > 0) grid.setAttribute("aria-activedescendant", "row-" + state.chosen);
    else grid.removeAttribute("aria-activedescendant");
  };

  const drawTitles = () => {
    titles.replaceChildren(...COLUMNS.map((column, index) => {
      const chosen = index === state.sort;
      const title = make("div", undefined, column.className);
      title.setAttribute("role", "columnheader");
      if (!column.keys) {
        title.textContent = column.title;
        return title;
      }
      const arrow = chosen ? (state.down ? " ▼" : " ▲") : "";
      const button = make("button", column.title + arrow);
      button.type = "button";
      button.addEventListener("click", () => sortBy(index));
      title.setAttribute("aria-sort", chosen ? (state.down ? "descending" : "ascending") : "none");
      title.append(button);
      return title;
    }));
  };

  const details = () => {
    const row = state.shown[state.chosen];
    if (row === undefined) {
      const says = "No procedure has these words. Esc clears them.";
      at("details").replaceChildren(make("p", says, "hint"));
      return;
    }
    const [service, image, procedure, owner] = ["service", "image", "procedure", "owner"]
      .map((column) => nameOf(columns[column][row]));
    const says = [image + " of " + service, owner ? "owner " + owner : "no owner",
      amount(columns.core_hours[row]) + " core-hours, " + shareOf(columns.core_hours[row]) + " %",
      counted(columns.hosts[row], "host")];
    if (report.currency) says.splice(3, 0, amount(columns.money[row]) + " " + report.currency);
    const left = make("div", [make("h2", procedure || "(no symbol)"),
      make("p", says.join("; "), "hint"), command(service, image, procedure)]);
    const weeks = trendOf(row);
    const known = weeks.filter((part) => part !== null);
    const hours = (part) => amount(part * columns.most[row]);
    const right = make("div", trendLine(weeks, 320, 80, true));
    if (known.length > 0) {
      const says = hours(Math.min(...known)) + " to " + hours(Math.max(...known)) + " core-hours";
      right.append(make("p", columns.weeks + " weeks: " + says, "hint"));
    }
    at("details").replaceChildren(left, right);
  };

  const choose = (place) => {
    state.chosen = Math.max(0, Math.min(place, state.shown.length - 1));
    const top = state.chosen * HEIGHT;
    const inside = grid.clientHeight - TITLES - HEIGHT;
    if (grid.clientHeight > 0) {
      if (top < grid.scrollTop) grid.scrollTop = top;
      if (top > grid.scrollTop + inside) grid.scrollTop = top - inside;
    }
    draw();
    details();
  };

  const show = () => {
    state.order ??= sorted();
    state.shown = filtered();
    space.style.height = state.shown.length * HEIGHT + "px";
    grid.setAttribute("aria-rowcount", state.shown.length + 1);
    const hours = state.shown.reduce((sum, row) => sum + columns.core_hours[row], 0);
    at("shown").textContent = counted(state.shown.length, "procedure") + ", " + amount(hours)
      + " core-hours, " + shareOf(hours) + " % of the fleet";
    at("only").hidden = !state.only;
    if (state.only) {
      const parts = state.only.map(([, name]) => nameOf(name) || "(no symbol)").join(": ");
      at("only").textContent = "Only " + parts + " ✕";
      at("only").title = "Shows all procedures again";
    }
    grid.scrollTop = 0;
    drawTitles();
    choose(0);
  };

  const sortBy = (index) => {
    state.down = index === state.sort ? !state.down : !COLUMNS[index].text;
    state.sort = index;
    state.order = null;
    show();
    titles.children[index].firstChild.focus();
  };

  titles.setAttribute("role", "row");
  space.setAttribute("role", "rowgroup");
  grid.setAttribute("aria-colcount", COLUMNS.length);
  grid.append(titles, space);
  let waits = false;
  grid.addEventListener("scroll", () => {
    if (waits) return;
    waits = true;
    requestAnimationFrame(() => { waits = false; draw(); });
  });
  grid.addEventListener("click", (event) => {
    const line = event.target.closest(".space .row");
    if (line) choose(Number(line.id.slice(4)));
  });
  grid.addEventListener("keydown", (event) => {
    if (event.target !== grid || event.ctrlKey || event.metaKey || event.altKey) return;
    const page = Math.max(1, Math.floor((grid.clientHeight - TITLES) / HEIGHT) - 1);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page };
    if (steps[event.key]) choose(state.chosen + steps[event.key]);
    else if (event.key === "Home") choose(0);
    else if (event.key === "End") choose(state.shown.length - 1);
    else if (event.key === "Enter") at("details").querySelector("button")?.focus();
    else return;
    event.preventDefault();
  });
  at("details").addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    event.stopPropagation();
    grid.focus();
  });
  at("filter").addEventListener("input", () => { state.filter = at("filter").value; show(); });
  at("filter").addEventListener("keydown", (event) => {
    if (event.key !== "ArrowDown" && event.key !== "Enter") return;
    event.preventDefault();
    grid.focus();
  });
  const clear = () => {
    state.only = null;
    state.filter = at("filter").value = "";
    show();
  };
  at("only").addEventListener("click", () => { clear(); at("filter").focus(); });

  return {
    clear,
    // All of a service, of one of its images, or one procedure: pairs of column and name's number.
    only: (pairs) => { clear(); state.only = pairs; show(); },
    visible: () => { if (state.shown) draw(); else show(); },
    hasFilter: () => state.filter !== "" || state.only !== null,
  };
})();
