"use strict";
// Zoom, search and keyboard of a flame graph that is drawn already: each call is a <g class="n">
// with its place in data-x, data-w (parts of the whole width), data-d (depth) and data-p (the number
// of the call above it).
const dcpiFlame = (svg, parts) => {
  const WIDTH = 1200;
  const CHARACTER = 6.7;
  const { input, details, found } = parts;
  const down = svg.dataset.grows === "down";
  const calls = [...svg.querySelectorAll("g.n")].map((group, index) => ({
    group,
    index,
    x: Number(group.dataset.x),
    w: Number(group.dataset.w),
    d: Number(group.dataset.d),
    p: Number(group.dataset.p),
    rect: group.querySelector("rect"),
    text: group.querySelector("text"),
    tip: group.querySelector("title").textContent,
    name: group.dataset.name,
  }));
  // Calls come in the order of reading, each before those below it: these are one stretch.
  for (const call of calls) call.end = call.index + 1;
  for (let at = calls.length - 1; at > 0; at -= 1) {
    const above = calls[calls[at].p];
    above.end = Math.max(above.end, calls[at].end);
  }
  const within = (call, outer) => call.index >= outer.index && call.index < outer.end;
  const parent = (call) => (call.index === 0 ? undefined : calls[call.p]);
  const below = (call) => calls.slice(call.index + 1, call.end).filter((of) => of.p === call.index);
  let zoomed = calls[0];
  let current = calls[0];
  let hits = [];

  const label = (call, width) => {
    const room = Math.floor((width - 6) / CHARACTER);
    if (room < 3) return "";
    return call.name.length <= room ? call.name : call.name.slice(0, room - 1) + "…";
  };
  const draw = () => {
    for (const call of calls) {
      const isAbove = call.d < zoomed.d && within(zoomed, call);
      const isShown = isAbove || (call.d >= zoomed.d && within(call, zoomed));
      const x = isAbove ? 0 : ((call.x - zoomed.x) / zoomed.w) * WIDTH;
      const width = isAbove ? WIDTH : (call.w / zoomed.w) * WIDTH;
      const visible = isShown && width >= 0.3;
      call.group.classList.toggle("away", !visible);
      call.group.classList.toggle("above", isAbove);
      if (!visible) continue;
      call.rect.setAttribute("x", x.toFixed(2));
      call.rect.setAttribute("width", Math.max(width - 0.5, 0.3).toFixed(2));
      call.text.setAttribute("x", (x + 3).toFixed(2));
      call.text.textContent = label(call, width);
    }
  };
  const tell = (call) => {
    if (details) details.textContent = call ? call.tip : "";
  };
  const select = (call, still) => {
    if (!call) return;
    current.group.classList.remove("current");
    current = call;
    current.group.classList.add("current");
    tell(call);
    if (!still) current.rect.scrollIntoView({ block: "nearest", inline: "nearest" });
  };
  const zoom = (call) => {
    if (!call) return;
    zoomed = call;
    draw();
    select(call);
  };
  const search = (words) => {
    const text = words.trim().toLowerCase();
    hits = text ? calls.filter((call) => call.tip.toLowerCase().includes(text)) : [];
    const hit = new Set(hits);
    for (const call of calls) call.group.classList.toggle("hit", hit.has(call));
    svg.classList.toggle("searched", text !== "");
    // The time of all hits: what is beneath a hit counts once.
    let [sum, end] = [0, 0];
    for (const call of hits.slice().sort((a, b) => a.x - b.x || a.d - b.d)) {
      const from = Math.max(call.x, end);
      if (call.x + call.w > from) sum += call.x + call.w - from;
      end = Math.max(end, call.x + call.w);
    }
    if (found) {
      const share = (100 * sum).toFixed(2) + " % of the time";
      found.textContent = text ? `${hits.length} found, ${share}` : "";
    }
  };
  const next = (step) => {
    const shown = hits.filter((call) => !call.group.classList.contains("away"));
    if (shown.length === 0) return;
    const at = shown.indexOf(current);
    select(shown[(at + step + shown.length) % shown.length]);
  };
  const side = (step) => {
    const shown = calls.filter(
      (call) => call.d === current.d && !call.group.classList.contains("away"),
    );
    shown.sort((a, b) => a.x - b.x);
    select(shown[shown.indexOf(current) + step]);
  };
  const inward = () =>
    select(below(current).find((call) => !call.group.classList.contains("away")));
  const outward = () => select(parent(current));
  const keys = {
    ArrowUp: () => (down ? outward() : inward()),
    ArrowDown: () => (down ? inward() : outward()),
    ArrowLeft: () => side(-1),
    ArrowRight: () => side(1),
    Enter: () => zoom(current),
    " ": () => zoom(current),
    Backspace: () => zoom(parent(zoomed) || zoomed),
    Escape: () => zoom(calls[0]),
    Home: () => select(zoomed),
    n: () => next(1),
    N: () => next(-1),
    "/": () => input && input.focus(),
  };
  const isHere = () => !svg.closest || !svg.closest("[hidden]");
  const key = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !isHere()) return false;
    if (event.target === input) {
      if (event.key === "Escape" || event.key === "Enter") {
        if (event.key === "Escape") {
          input.value = "";
          search("");
        }
        input.blur();
        svg.focus();
        next(1);
        event.preventDefault();
        return true;
      }
      return false;
    }
    const act = keys[event.key];
    if (!act) return false;
    act();
    event.preventDefault();
    return true;
  };
  for (const call of calls) {
    call.group.addEventListener("click", () => {
      zoom(call === zoomed && parent(call) ? parent(call) : call);
      svg.focus();
    });
    call.group.addEventListener("mouseenter", () => tell(call));
    call.group.addEventListener("mouseleave", () => tell(current));
  }
  if (input) input.addEventListener("input", () => search(input.value));
  if (calls.length > 0) {
    draw();
    select(calls[0], true);
  }
  return { key };
};
