// Services, images and procedures as columns of boxes, as high as their core-hours.
const icicle = (() => {
  const canvas = at("icicle");
  const WIDTHS = [0.22, 0.26, 0.52];
  let root = null;

  const child = (parent, name, hours, hosts) => {
    const made = { parent, name, hours, hosts, children: [], level: parent.level + 1 };
    parent.children.push(made);
    return made;
  };
  const build = () => {
    root = { name: "the fleet", hours: report.fleet.core_hours, children: [], level: -1,
      hosts: report.hosts.heard };
    const services = new Map();
    for (const row of report.services) {
      services.set(row.service, child(root, row.service, row.core_hours, row.hosts));
    }
    const images = new Map();
    for (const row of report.images) {
      const parent = services.get(row.service);
      if (!parent) continue;
      const made = child(parent, row.image, row.core_hours, row.hosts);
      images.set(row.service + "\n" + row.image, made);
    }
    for (let row = 0; row < count; row += 1) {
      const key = nameOf(columns.service[row]) + "\n" + nameOf(columns.image[row]);
      const parent = images.get(key);
      if (!parent) continue;
      const name = nameOf(columns.procedure[row]) || "(no symbol)";
      child(parent, name, columns.core_hours[row], columns.hosts[row]).row = row;
    }
    // Where each begins, in core-hours.
    const place = (node, begin) => {
      node.begin = begin;
      node.children.sort((a, b) => b.hours - a.hours);
      for (const inner of node.children) {
        place(inner, begin);
        begin += inner.hours;
      }
    };
    place(root, 0);
    root.children.forEach((node, index) => { node.hue = (200 + index * 137.5) % 360; });
  };

  const state = { zoom: null, chosen: null };
  const hueOf = (node) => (node.level === 0 ? node.hue : hueOf(node.parent));
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const draw = () => {
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    const scale = devicePixelRatio || 1;
    canvas.width = width * scale;
    canvas.height = height * scale;
    const context = canvas.getContext("2d");
    context.scale(scale, scale);
    const [back, light, ink, focus] = ["--back", "--box-light", "--box-text", "--link"].map(color);
    context.fillStyle = back;
    context.fillRect(0, 0, width, height);
    context.font = "12px system-ui, sans-serif";
    context.textBaseline = "middle";
    const { begin, hours } = state.zoom;
    const y = (value) => (value - begin) / hours * height;
    const lefts = [0, WIDTHS[0] * width, (WIDTHS[0] + WIDTHS[1]) * width, width];
    const box = (node, depth) => {
      const top = Math.max(0, y(node.begin));
      const bottom = Math.min(height, y(node.begin + node.hours));
      if (bottom <= 0 || top >= height) return;
      const [left, right] = [lefts[depth], lefts[depth + 1]];
      const large = bottom - top >= 3;
      context.fillStyle = "hsl(" + hueOf(node) + " 38% " + light + ")";
      context.fillRect(left, top, right - left - 1, Math.max(0.5, bottom - top - (large ? 1 : 0)));
      if (bottom - top >= 13) {
        context.save();
        context.beginPath();
        context.rect(left, top, right - left - 6, bottom - top);
        context.clip();
        context.fillStyle = ink;
        const says = node.name + "  " + percent(node.hours / root.hours) + " %";
        context.fillText(says, left + 5, (top + bottom - 1) / 2);
        context.restore();
      }
      for (const inner of node.children) {
        const size = inner.hours / hours * height;
        if (size < 1.5) {
          // They are sorted: all that follow are as small.
          const last = node.children[node.children.length - 1];
          const [first, end] = [Math.max(0, y(inner.begin)), y(last.begin + last.hours)];
          context.fillStyle = "hsl(" + hueOf(node) + " 15% " + light + ")";
          context.fillRect(lefts[depth + 1], first, lefts[depth + 2] - lefts[depth + 1] - 1,
            Math.min(height, end) - first);
          break;
        }
        box(inner, depth + 1);
      }
    };
    for (const node of root.children) {
      if (node.hours / hours * height >= 0.2) box(node, 0);
    }
    const chosen = state.chosen;
    if (chosen && chosen.level >= 0) {
      const top = Math.max(1, y(chosen.begin));
      const bottom = Math.min(height - 1, y(chosen.begin + chosen.hours));
      context.strokeStyle = document.activeElement === canvas ? focus : ink;
      context.lineWidth = 2;
      const [left, right] = [lefts[chosen.level], lefts[chosen.level + 1]];
      context.strokeRect(left + 1, top, right - left - 3, Math.max(2, bottom - top - 1));
    }
  };

  const path = (node) => (node.level <= 0 ? [node.name] : [...path(node.parent), node.name]);
  const describe = (node) => [path(node).join(": "), amount(node.hours) + " core-hours",
    percent(node.hours / root.hours) + " %", counted(node.hosts, "host")].join(", ");
  const choose = (node) => {
    if (!node) return;
    state.chosen = node;
    at("box").textContent = describe(node);
    // What the keyboard chose is in sight.
    let zoom = state.zoom;
    const inside = () => node.begin >= zoom.begin - 1e-9
      && node.begin + node.hours <= zoom.begin + zoom.hours + 1e-9;
    while (zoom !== root && !inside()) zoom = zoom.parent;
    state.zoom = zoom;
    draw();
  };
  // Of the same level, before or behind it.
  const beside = (node, step) => {
    if (node.level < 0) return null;
    const all = node.parent.children;
    const next = all[all.indexOf(node) + step];
    if (next) return next;
    const parent = beside(node.parent, step);
    return parent && (step > 0 ? parent.children[0] : parent.children[parent.children.length - 1]);
  };
  const enlarge = (node) => {
    state.zoom = node.children.length > 0 ? node : node.parent;
    choose(node);
  };
  const toTable = (node) => {
    if (node.level < 0) return;
    const parts = path(node);
    const pairs = ["service", "image"].slice(0, parts.length)
      .map((column, index) => [column, numberOf(parts[index])]);
    if (node.row !== undefined) pairs.push(["procedure", columns.procedure[node.row]]);
    showOnly(pairs);
  };
  const hit = (event) => {
    const inside = canvas.getBoundingClientRect();
    const part = (event.clientX - inside.left) / inside.width;
    const level = part < WIDTHS[0] ? 0 : part < WIDTHS[0] + WIDTHS[1] ? 1 : 2;
    const down = (event.clientY - inside.top) / inside.height;
    const value = state.zoom.begin + down * state.zoom.hours;
    let node = root;
    for (let depth = 0; depth <= level; depth += 1) {
      const next = node.children.find((of) => value >= of.begin && value < of.begin + of.hours);
      if (!next) break;
      node = next;
    }
    return node.level >= 0 ? node : null;
  };

  canvas.addEventListener("click", (event) => {
    const node = hit(event);
    canvas.focus();
    if (node) enlarge(node);
  });
  canvas.addEventListener("mousemove", (event) => {
    const node = hit(event);
    at("box").textContent = describe(node || state.chosen);
  });
  canvas.addEventListener("mouseleave", () => { at("box").textContent = describe(state.chosen); });
  canvas.addEventListener("focus", draw);
  canvas.addEventListener("blur", draw);
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { chosen, zoom } = state;
    if (event.key === "ArrowDown") choose(beside(chosen, 1));
    else if (event.key === "ArrowUp") choose(beside(chosen, -1));
    else if (event.key === "ArrowRight") choose(chosen.children[0]);
    else if (event.key === "ArrowLeft") choose(chosen.level > 0 ? chosen.parent : null);
    else if (event.key === "Enter") enlarge(chosen);
    else if (event.key === "Escape" && zoom !== root) {
      state.zoom = zoom.parent;
      choose(zoom.level >= 0 ? zoom : chosen);
    } else if (event.key === "t") toTable(chosen);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });

  return {
    show: () => {
      if (root) { draw(); return; }
      build();
      state.zoom = root;
      choose(root.children[0] || root);
    },
    redraw: () => { if (root) draw(); },
  };
})();
