"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  data.flames = data.flames || [];
  const at = (id) => document.getElementById(id);
  const digits = new Intl.NumberFormat("en-US");
  const state = { event: 0, sort: { images: null, procedures: null }, filter: "" };
  const VIEWS = ["map", "images", "procedures", "flame", "listing", "notes"];

  // Everything from the profile becomes text through here, never markup.
  const make = (tag, text, className) => {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    if (className) made.className = className;
    return made;
  };
  const percent = (share) => {
    const value = 100 * share;
    return value > 0 && value < 0.005 ? "<0.01" : value.toFixed(2);
  };
  const numbered = (number, noun) => digits.format(number) + " " + noun + (number === 1 ? "" : "s");
  const interval = (share) => percent(share[1]) + "–" + percent(share[2]);
  const samples = (row) => row.n[state.event] || 0;
  const share = (row) => row.s[state.event] || [0, 0, 0];

  // The name with parameters and template arguments.
  const whole = (row) => row.whole || row.name;

  // A table whose titles sort. columns: title, value to sort by, cell, class of the cell.
  const table = (place, rows, columns, sort, className, resort) => {
    const made = make("table", undefined, className);
    const titles = made.createTHead().insertRow();
    columns.forEach((column, index) => {
      const title = make("th", undefined, column.className);
      title.scope = "col";
      if (column.value && resort) {
        const chosen = sort && sort.column === index;
        const button = make("button", column.title + (chosen ? (sort.down ? " ▼" : " ▲") : ""));
        button.type = "button";
        button.addEventListener("click", () => {
          resort({ column: index, down: chosen ? !sort.down : !column.up });
          const again = place.querySelectorAll("th button");
          const title = [...again].find((other) => other.textContent.startsWith(column.title + " "));
          if (title) title.focus();
        });
        title.setAttribute("aria-sort", chosen ? (sort.down ? "descending" : "ascending") : "none");
        title.append(button);
      } else {
        title.textContent = column.title;
      }
      titles.append(title);
    });
    let sorted = rows;
    if (sort && columns[sort.column].value) {
      const value = columns[sort.column].value;
      const sign = sort.down ? -1 : 1;
      sorted = rows.slice().sort((a, b) => {
        const [x, y] = [value(a), value(b)];
        return sign * (typeof x === "string" ? x.localeCompare(y) : x - y);
      });
    }
    const body = made.createTBody();
    for (const row of sorted) {
      const line = body.insertRow();
      if (row.gap) {
        line.className = "gap";
        const cell = line.insertCell();
        cell.colSpan = columns.length;
        cell.textContent = numbered(row.gap, "instruction") + " without samples " + (row.gap === 1 ? "is" : "are") + " left out";
        continue;
      }
      for (const column of columns) {
        const cell = line.insertCell();
        if (column.className) cell.className = column.className;
        const content = column.cell(row);
        if (content instanceof Node) cell.append(content);
        else cell.textContent = content;
      }
    }
    place.replaceChildren(made);
  };

  const bar = (value, most) => {
    const made = make("div");
    made.style.width = (most > 0 ? 100 * value / most : 0) + "%";
    return made;
  };
  const numbers = (most) => [
    { title: "samples", value: samples, cell: (row) => digits.format(samples(row)), className: "number" },
    { title: "%", value: samples, cell: (row) => percent(share(row)[0]), className: "number" },
    { title: data.confidence + " % interval", cell: (row) => interval(share(row)), className: "number interval" },
    { title: "", cell: (row) => bar(samples(row), most), className: "bar" },
  ];
  const most = (rows) => rows.reduce((sum, row) => Math.max(sum, samples(row)), 0);
  const bySamples = { column: 0, down: true };

  const showImages = () => {
    const columns = numbers(most(data.images)).concat([
      { title: "image", up: true, value: (row) => row.name, className: "name", cell: (row) => {
        const link = make("a", row.name);
        link.href = "#procedures=" + encodeURIComponent(row.name);
        return link;
      } },
      { title: "path", up: true, value: (row) => row.path, cell: (row) => row.path, className: "name" },
    ]);
    table(at("images-table"), data.images, columns, state.sort.images || bySamples, "", (sort) => {
      state.sort.images = sort;
      showImages();
    });
    at("images-left").textContent = data.omitted.images > 0 ? numbered(data.omitted.images, "more image") + (data.omitted.images === 1 ? " is" : " are") + " not in this page." : "";
  };

  const showProcedures = () => {
    const words = state.filter.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = (row) => words.every((word) => (whole(row) + " " + row.name + " " + row.image).toLowerCase().includes(word));
    const rows = data.procedures.filter((row) => samples(row) > 0 && fits(row));
    const columns = numbers(most(rows)).concat([
      { title: "procedure", up: true, value: (row) => row.name, className: "name", cell: (row) => {
        const linked = Boolean(data.listings[row.index]);
        const name = make(linked ? "a" : "span", row.name);
        if (linked) name.href = "#row=" + row.index;
        if (row.whole) name.title = row.whole;
        return name;
      } },
      { title: "image", up: true, value: (row) => row.image, cell: (row) => row.image, className: "image" },
    ]);
    table(at("procedures-table"), rows, columns, state.sort.procedures || bySamples, "", (sort) => {
      state.sort.procedures = sort;
      showProcedures();
    });
    const sum = rows.reduce((sum, row) => sum + samples(row), 0);
    const counted = data.events[state.event] ? data.events[state.event].counted : 0;
    at("shown").textContent = numbered(rows.length, "procedure") + " with " + percent(counted > 0 ? sum / counted : 0) + " % of the samples";
    at("procedures-left").textContent = data.omitted.procedures > 0
      ? numbered(data.omitted.procedures, "more procedure") + " with " + numbered(data.omitted.counts[state.event] || 0, "sample") + (data.omitted.procedures === 1 ? " is" : " are") + " not in this page (dcpi html -n)." : "";
  };

  const showListing = (index) => {
    const [row, listing] = [data.procedures[index], data.listings[index]];
    at("listing-title").textContent = whole(row) + (row.image ? " of " + row.image : "");
    const parts = [numbered(samples(row), "sample") + ", " + percent(share(row)[0]) + " % (" + interval(share(row)) + ")", listing.range];
    at("listing-hint").textContent = parts.concat(listing.notes).join("; ");
    at("listing-loops").replaceChildren(...listing.loops.map((loop) => make("li", loop)));
    const sampled = at("sampled").checked;
    let last = "";
    const lines = [];
    for (const line of listing.lines) {
      if (typeof line === "number") {
        if (!sampled) lines.push({ gap: line });
        continue;
      }
      const [address, text, n, place, costs] = line;
      if (sampled && !(n[state.event] > 0)) continue;
      lines.push({ address, text, n, s: [], costs, place: place === last ? "" : place });
      last = place;
    }
    const highest = most(lines.filter((line) => !line.gap));
    const all = samples(row);
    table(at("listing-table"), lines, [
      { title: "samples", cell: (line) => samples(line) ? digits.format(samples(line)) : "", className: "number" },
      { title: "%", cell: (line) => samples(line) && all ? percent(samples(line) / all) : "", className: "number" },
      { title: "", cell: (line) => samples(line) ? bar(samples(line), highest) : "", className: "bar" },
      ...(listing.costs ? data.costs : []).map((title, index) => ({ title, cell: (line) => line.costs[index] || "", className: "number" })),
      { title: "address", cell: (line) => line.address, className: "number" },
      { title: "instruction", cell: (line) => line.text || "(code not known)", className: "text" },
      { title: "source", cell: (line) => line.place, className: "place" },
    ], null, "code", null);
  };

  // Squarified treemap (Bruls, Huizing, van Wijk 2000): rows of tiles whose sides differ least.
  const squarify = (items, x, y, w, h) => {
    const placed = [];
    let rest = items.filter((item) => item.value > 0).sort((a, b) => b.value - a.value);
    let scale = rest.reduce((sum, item) => sum + item.value, 0);
    scale = scale > 0 ? w * h / scale : 0;
    const worst = (row, sum, side) => {
      const area = sum * scale;
      return Math.max(side * side * row[0].value * scale / (area * area), area * area / (side * side * row[row.length - 1].value * scale));
    };
    while (rest.length && w > 1 && h > 1) {
      const side = Math.min(w, h);
      let [row, sum, count] = [[rest[0]], rest[0].value, 1];
      while (count < rest.length) {
        const next = rest[count];
        if (worst(row.concat([next]), sum + next.value, side) > worst(row, sum, side)) break;
        row.push(next);
        sum += next.value;
        count += 1;
      }
      const thick = sum * scale / side;
      let along = 0;
      for (const item of row) {
        const long = item.value * scale / thick;
        placed.push(w >= h ? { item, x, y: y + along, w: thick, h: long } : { item, x: x + along, y, w: long, h: thick });
        along += long;
      }
      if (w >= h) { x += thick; w -= thick; } else { y += thick; h -= thick; }
      rest = rest.slice(count);
    }
    return placed;
  };
  const put = (element, tile) => {
    element.style.left = tile.x + "px";
    element.style.top = tile.y + "px";
    element.style.width = tile.w + "px";
    element.style.height = tile.h + "px";
  };

  const showMap = () => {
    const place = at("treemap");
    const groups = new Map();
    for (const row of data.procedures) {
      const key = row.id || "unresolved";
      if (!groups.has(key)) groups.set(key, { name: row.image || "unresolved", rows: [], value: 0 });
      const group = groups.get(key);
      group.rows.push(row);
      group.value += samples(row);
    }
    // An image is as large as all its samples: procedures that are not in this page share a tile.
    const counted = data.events[state.event] ? data.events[state.event].counted : 0;
    for (const image of data.images) {
      if (!groups.has(image.id)) groups.set(image.id, { name: image.name, rows: [], value: 0 });
      const group = groups.get(image.id);
      const rest = samples(image) - group.value;
      if (rest > 0) {
        const n = data.events.map((_, event) => event === state.event ? rest : 0);
        const s = data.events.map(() => { const part = counted > 0 ? rest / counted : 0; return [part, part, part]; });
        group.rows.push({ name: "(other procedures)", image: image.name, n, s, rest: true });
        group.value += rest;
      }
    }
    const made = [];
    let small = 0;
    // Neighbours in size differ most in colour: the golden angle.
    const ordered = [...groups.values()].sort((a, b) => b.value - a.value);
    ordered.forEach((group, index) => { group.hue = (200 + index * 137.5) % 360; });
    for (const tile of squarify(ordered, 0, 0, place.clientWidth, place.clientHeight)) {
      if (tile.w < 3 || tile.h < 3) { small += tile.item.value; continue; }
      const group = make("div", undefined, "group");
      group.setAttribute("role", "listitem");
      put(group, tile);
      const title = tile.item.name + "  " + percent(counted > 0 ? tile.item.value / counted : 0) + " %";
      group.title = title;
      const caption = tile.h > 34 && tile.w > 30 ? 18 : 0;
      if (caption) group.append(make("div", title, "caption"));
      const items = tile.item.rows.map((row) => ({ value: samples(row), row }));
      for (const inner of squarify(items, 0, caption, tile.w - 2, tile.h - 2 - caption)) {
        if (inner.w < 2 || inner.h < 2) continue;
        const row = inner.item.row;
        const linked = Boolean(data.listings[row.index]);
        const says = row.name + "  " + percent(share(row)[0]) + " %" + (row.rest ? "" : " (" + interval(share(row)) + ")");
        const leaf = make(linked ? "a" : "div", inner.w > 34 && inner.h > 13 ? says : undefined, "tile");
        if (linked) leaf.href = "#row=" + row.index;
        leaf.title = whole(row) + "\n" + says + "\n" + row.image;
        leaf.setAttribute("aria-label", says);
        leaf.style.backgroundColor = "hsl(" + tile.item.hue + " 45% var(--tile-light))";
        put(leaf, inner);
        group.append(leaf);
      }
      made.push(group);
    }
    place.replaceChildren(...made);
    at("map-hint").textContent = "The area of a tile stands for its samples. A tile with a link leads to the listing of its instructions.";
    at("map-left").textContent = small > 0 ? "Images that are too small to draw have " + numbered(small, "sample") + "." : "";
  };

  // The boxes that dcpi flame writes into a file, made of the page's data.
  let graph = null;
  const showFlame = () => {
    const old = at("flame");
    const flame = data.flames[Number(at("flame-which").value)];
    if (!flame) return;
    const [top, row, width] = [4, 18, 1200];
    const svg = old.cloneNode(false);
    const down = at("flame-down").checked;
    const height = top * 2 + (flame.depth + 1) * row;
    const set = (element, values) => {
      for (const [key, value] of Object.entries(values)) element.setAttribute(key, value);
      return element;
    };
    const part = (tag, values) => set(document.createElementNS(svg.namespaceURI, tag), values);
    set(svg, { class: "flame", viewBox: "0 0 " + width + " " + height, width, height });
    svg.dataset.grows = down ? "down" : "up";
    for (const [name, tip, x, w, depth, parent, color] of flame.calls) {
      const group = part("g", { class: "n " + color });
      Object.assign(group.dataset, { x, w, d: depth, p: parent, name });
      const y = top + (down ? depth : flame.depth - depth) * row;
      const title = part("title", {});
      title.textContent = tip;
      const box = part("rect", { y, height: row - 1, rx: 1 });
      group.append(title, box, part("text", { y: y + 12.5 }));
      svg.append(group);
    }
    old.replaceWith(svg);
    at("flame-search").value = "";
    graph = dcpiFlame(svg, { input: at("flame-search"), details: at("flame-details"), found: at("flame-found") });
    svg.focus({ preventScroll: true });
  };

  const show = () => {
    const [view, value] = location.hash.slice(1).split("=");
    let name = VIEWS.includes(view) ? view : "map";
    const index = Number.parseInt(value, 10);
    if (view === "row" && data.procedures[index] && data.listings[index]) name = "listing";
    if (name === "procedures" && value !== undefined) {
      try { state.filter = decodeURIComponent(value); } catch { state.filter = value; }
      at("filter").value = state.filter;
    }
    if (name === "listing" && view !== "row") name = "procedures";
    if (name === "flame" && data.flames.length === 0) name = "map";
    for (const other of VIEWS) at("view-" + other).hidden = other !== name;
    for (const link of document.querySelectorAll("nav a")) {
      const here = link.hash.slice(1) === (name === "listing" ? "procedures" : name);
      if (here) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
    }
    if (name === "map") showMap();
    if (name === "images") showImages();
    if (name === "procedures") showProcedures();
    if (name === "flame" && !graph) showFlame();
    if (name === "listing") { showListing(index); scrollTo(0, 0); }
  };

  data.procedures.forEach((row, index) => { row.index = index; });
  for (const line of data.head) {
    at("head").append(make("dt", line.slice(0, 12).trim()), make("dd", line.slice(12).trim()));
  }
  for (const note of data.notes.length ? data.notes : ["There are no notes."]) at("notes-list").append(make("li", note));
  data.events.forEach((event, index) => {
    const option = make("option", event.name);
    option.value = String(index);
    at("event").append(option);
  });
  data.flames.forEach((flame, index) => {
    const option = make("option", flame.title);
    option.value = String(index);
    at("flame-which").append(option);
  });
  at("flame-link").hidden = data.flames.length === 0;
  at("flame-which").addEventListener("change", showFlame);
  at("flame-down").addEventListener("change", showFlame);
  at("event-label").hidden = data.events.length < 2;
  at("event").addEventListener("change", () => { state.event = Number(at("event").value); show(); });
  at("filter").addEventListener("input", () => { state.filter = at("filter").value; showProcedures(); });
  at("sampled").addEventListener("change", show);
  at("theme").addEventListener("click", () => {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  });
  addEventListener("hashchange", show);
  let later = 0;
  addEventListener("resize", () => {
    clearTimeout(later);
    later = setTimeout(() => { if (!at("view-map").hidden) showMap(); }, 100);
  });
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (graph && !at("view-flame").hidden && graph.key(event)) return;
    const typing = ["INPUT", "SELECT"].includes(event.target.tagName) && event.target.type !== "checkbox";
    if (event.key === "Escape") {
      if (typing) event.target.blur();
      else if (!at("view-listing").hidden) history.back();
      return;
    }
    if (typing) return;
    const views = { m: "#map", i: "#images", p: "#procedures", f: "#flame", n: "#notes" };
    if (views[event.key]) location.hash = views[event.key];
    if (event.key === "/") {
      event.preventDefault();
      location.hash = "#procedures";
      setTimeout(() => at("filter").focus(), 0);
    }
  });
  show();
})();
