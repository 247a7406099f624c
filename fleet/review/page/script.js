// Views, and the tables of all but procedures.
const VIEWS = ["summary", "changes", "procedures", "map", "fleet", "hosts"];

const titled = (title, ...parts) => [make("h2", title), ...parts];
const hint = (says) => make("p", says, "hint");
const linkTo = (says, hash) => {
  const link = make("a", says);
  link.href = hash;
  return make("p", link, "hint");
};
// A name that leads to its procedures.
let numbers = null;
const numberOf = (name) => {
  numbers ??= new Map(page.names.map((of, number) => [of, number]));
  return numbers.get(name) ?? -1;
};
const showOnly = (pairs) => {
  rows.only(pairs);
  location.hash = "#procedures";
  show();
  at("rows").focus();
};
const toProcedures = (says, parts) => {
  const pairs = Object.entries(parts).map(([column, name]) => [column, numberOf(name)]);
  if (pairs.some(([, number]) => number < 0)) return says;
  const button = make("button", says, "linked");
  button.type = "button";
  button.addEventListener("click", () => showOnly(pairs));
  return button;
};
const serviceName = { title: "service", value: (row) => row.service, className: "name",
  cell: (row) => toProcedures(row.service, { service: row.service }) };
const imageName = { title: "image", value: (row) => row.image, className: "name",
  cell: (row) => toProcedures(row.image, { service: row.service, image: row.image }) };
const namesOf = ({ service, image, procedure }) => ({ service, image, procedure });
const procedureOf = (empty) => ({
  title: "procedure", value: (row) => row.procedure, className: "name wide",
  cell: (row) => (row.procedure
    ? toProcedures(row.procedure, namesOf(row)) : make("span", empty, "dim")),
});

const build = (id) => id.slice(0, 12);
const changeNotes = (row) => {
  const notes = [];
  if (row.kind === "build") notes.push(build(row.build_old) + " to " + build(row.build_new));
  notes.push("q " + amount(row.q));
  // Above half, the day explains as much as the build.
  if (row.kind === "build" && row.same_day > 0.5) {
    notes.push(percent(row.same_day) + " % of hosts changed on one day");
  }
  const parts = [hint(notes.join("; "))];
  if (row.accepted) parts.push(hint("accepted: " + row.accepted));
  if (row.moved_with.length > 0) {
    parts.push(hint("perhaps moved from or to: " + row.moved_with.join(", ")));
  }
  return parts;
};
const changeTable = (key, list) => table(key, list, [
  { title: "cores", value: (row) => row.cores, className: "number",
    cell: (row) => judged(row.cores, signed(row.cores)) },
  ...money(signed),
  number("change %", (row) => row.change.value, change),
  { title: "interval", className: "number",
    cell: (row) => change(row.change.low) + " to " + change(row.change.high) },
  hostCount,
  { title: "procedure", value: (row) => row.procedure, className: "name wide", cell: (row) => {
    const drill = make("details", make("summary", "To the instructions"), "hint");
    drill.append(command(row.service, row.image, row.procedure));
    return [procedureOf("(whole image)").cell(row), ...changeNotes(row), drill];
  } },
  imageName, serviceName, owner,
]);
const seenTable = (key, list) => table(key, list, [
  coreHours, ...money(amount), hostCount, procedureOf("(no symbol)"), imageName, serviceName, owner,
]);
const taxTable = () => table("tax", report.tax, [
  text("kind", (row) => row.kind), coreHours, share, ...money(amount),
  bar((row) => row.core_hours, largest(report.tax, (row) => row.core_hours)),
]);

const topTable = (most) => {
  const list = Array.from({ length: Math.min(count, most) }, (_, row) => row);
  return table("top", list, [
    { title: "core-hours", className: "number", cell: (row) => amount(columns.core_hours[row]) },
    { title: "%", className: "number", cell: (row) => shareOf(columns.core_hours[row]) },
    { title: columns.weeks + " weeks", cell: (row) => trendLine(trendOf(row), 104, 22) },
    { title: "procedure", className: "name wide", cell: (row) => {
      const [service, image, procedure, owner] = ["service", "image", "procedure", "owner"]
        .map((column) => nameOf(columns[column][row]));
      const says = image + " of " + service + (owner ? "; " + owner : "");
      const name = procedure || "(no symbol)";
      return [toProcedures(name, { service, image, procedure }), hint(says)];
    } },
  ]);
};

const figures = () => {
  const list = make("dl", undefined, "figures");
  const add = (title, value) => {
    list.append(make("div", [make("dt", title), make("dd", value)]));
  };
  const { fleet, hosts } = report;
  add("core-hours in procedures", amount(fleet.core_hours));
  add("of " + thousands(fleet.cpus) + " CPUs busy in the mean", amount(fleet.busy_cores));
  if (fleet.change !== null) {
    add("from the week before", change(fleet.change) + " %");
  }
  if (report.currency) add(report.currency + " a week", amount(fleet.money));
  add("of " + counted(hosts.expected, "host") + " heard", thousands(hosts.heard));
  const tax = report.tax.reduce((sum, row) => sum + row.share, 0);
  if (report.tax.length > 0) add("the fleet's tax", percent(tax) + " %");
  return list;
};

const MOST = 8;
const all = (length, hash) => (length > MOST ? [linkTo("All " + thousands(length), hash)] : []);
const summary = () => [
  figures(),
  ...titled("Changed between builds, on the same hosts in this week",
    changeTable("first", report.changed.slice(0, MOST)), ...all(report.changed.length, "#changes")),
  make("div", [
    make("div", titled("Procedures with the most time", topTable(MOST),
      ...all(count, "#procedures"))),
    make("div", titled("The fleet's tax", taxTable(),
      hint("Work below the services' own code, by the names of procedures: a lower bound."))),
  ], "pair"),
];
const changes = () => [
  ...titled("Between builds, on the same hosts in this week",
    changeTable("changed", report.changed)),
  ...titled("From the week before, in services that kept their builds",
    changeTable("between_weeks", report.between_weeks)),
  ...titled("Accepted findings", table("findings", report.findings, [
    text("id", (row) => row.id),
    { title: "finding", value: (row) => row.what, className: "name wide",
      cell: (row) => [row.what, make("p", [procedureOf("(whole image)").cell(row), " of ",
        imageName.cell(row), " of ", serviceName.cell(row)], "hint")] },
    text("since", (row) => row.week),
    number("cores promised", (row) => row.promised_cores, amount),
    { title: "got", className: "number", cell: (row) => {
      const last = row.got[row.got.length - 1];
      return last
        ? [amount(last.value), hint(signed(last.low) + " to " + signed(last.high))]
        : "";
    } },
    { title: "by week", cell: (row) => {
      const most = Math.max(row.promised_cores, ...row.got.map((week) => week.value));
      const parts = row.got.map((week) => (most > 0 ? Math.max(0, week.value / most) : 0));
      return parts.length > 0 ? trendLine(parts, 104, 22) : "";
    } },
    text("state", (row) => row.state.replaceAll("-", " ")),
  ])),
  ...titled("New procedures, which no earlier build had", seenTable("new", report.new)),
  ...titled("Procedures that went away", seenTable("gone", report.gone)),
  ...titled("Procedures seen seldom", seenTable("seldom", report.seldom)),
];
const dayOf = (title, value) => ({
  title, value, className: "short", cell: (row) => day(value(row)),
});
const fleet = () => [
  ...titled("Services", table("services", report.services, [
    serviceName, owner, coreHours, share, ...money(amount),
    { title: "week %", value: (row) => row.change, className: "number",
      cell: (row) => change(row.change) },
    hostCount, bar((row) => row.core_hours, largest(report.services, (row) => row.core_hours)),
  ])),
  make("div", [
    make("div", titled("Machines", table("machines", report.machines, [
      text("type", (row) => row.type), hostCount, number("CPUs", (row) => row.cpus, thousands),
      coreHours, number("busy %", (row) => row.busy, percent),
    ]))),
    make("div", titled("The fleet's tax", taxTable(),
      hint("Work below the services' own code, by the names of procedures: a lower bound."))),
  ], "pair"),
  ...titled("Several builds at once", table("skew", report.skew.flatMap((row) =>
    row.builds.map((of, index) => ({ ...of, index, service: row.service, image: row.image }))), [
    serviceName, imageName,
    { title: "build", value: (row) => row.build, className: "name",
      cell: (row) => {
        const made = make("span", build(row.build));
        made.title = row.build;
        return made;
      } },
    hostCount, number("% of image", (row) => row.share, percent),
    dayOf("first seen", (row) => row.first_s), dayOf("last seen", (row) => row.last_s),
    text("not judged", (row) => row.not_judged ?? ""), bar((row) => row.share, 1),
  ])),
  ...titled("Images", table("images", report.images, [
    imageName, serviceName, owner, coreHours, share, ...money(amount), hostCount,
  ])),
];
const hosts = () => {
  const { ledger } = report;
  const fates = [{ fate: "in procedures", reason: "", samples: ledger.facts },
    { fate: "idle", reason: "", samples: ledger.idle }];
  for (const fate of ["unresolved", "lost"]) {
    for (const [reason, samples] of Object.entries(ledger[fate])) {
      fates.push({ fate, reason, samples });
    }
    fates.sort((a, b) => (a.fate === b.fate ? b.samples - a.samples : 0));
  }
  const closes = page.difference === "0" ? "All are accounted for."
    : "NOT accounted for: " + page.difference + ". This is a mistake of the store's.";
  const list = (title, key, rows, columns) => make("div", titled(title, table(key, rows, columns)));
  return [
    ...titled("Samples", hint(counted(ledger.taken, "sample") + " taken on all hosts. " + closes),
      table("ledger", fates, [
        text("fate", (row) => row.fate), text("reason", (row) => row.reason),
        number("samples", (row) => row.samples, thousands),
        number("%", (row) => row.samples / (ledger.taken || 1), percent),
        bar((row) => row.samples, ledger.taken),
      ])),
    ...titled("Hosts unlike their fellows", table("unlike", report.unlike, [
      text("host", (row) => row.host), serviceName,
      number("unlike %", (row) => row.distance, percent),
      number("expected %", (row) => row.expected, percent),
      text("most by procedure", (row) => row.procedure),
    ])),
    make("div", [
      make("div", titled("Silent", make("p", report.hosts.silent.join(", ") || "None.", "list"))),
      list("Heard for less than half of the week", "half", report.hosts.half,
        [text("host", (row) => row.host), number("covered %", (row) => row.covered, percent)]),
      list("Clocks ahead", "clocks", report.hosts.clocks,
        [text("host", (row) => row.host), number("seconds", (row) => row.ahead_s, thousands)]),
    ], "pair"),
  ];
};

const made = { summary, changes, fleet, hosts };
const show = () => {
  const view = VIEWS.find((of) => "#" + of === location.hash) || "summary";
  for (const of of VIEWS) at("view-" + of).hidden = of !== view;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === "#" + view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (made[view]) {
    at("view-" + view).replaceChildren(...made[view]());
    delete made[view];
  }
  // The other views need the room.
  for (const line of document.querySelectorAll("#head .more")) line.hidden = view !== "summary";
  if (view === "procedures") rows.visible();
  if (view === "map") icicle.show();
};
at("title").textContent = "Fleet review, week " + report.week + ", event " + report.event;
for (const [word, says] of page.coverage) {
  const line = make("div", [make("dt", word), make("dd", says)], word ? "" : "more");
  at("head").append(line);
}

at("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  icicle.redraw();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", icicle.redraw);
addEventListener("hashchange", show);
addEventListener("resize", show);
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target.tagName === "INPUT";
  if (event.key === "Escape" && !at("view-procedures").hidden) {
    if (rows.hasFilter()) rows.clear();
    else if (typing) at("rows").focus();
    return;
  }
  if (typing) return;
  const view = VIEWS.find((of) => of[0] === event.key);
  if (view) {
    location.hash = "#" + view;
    show();
    if (view === "procedures") at("rows").focus();
    if (view === "map") at("icicle").focus();
  }
  if (event.key === "/") {
    event.preventDefault();
    location.hash = "#procedures";
    show();
    at("filter").focus();
  }
});
show();
