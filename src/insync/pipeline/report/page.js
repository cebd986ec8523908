"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const tip = document.getElementById("tip");
  const SVG = "http://www.w3.org/2000/svg";

  // Helpers of all charts.

  const el = (name, attributes = {}, ...children) => {
    const node = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...children);
    return node;
  };
  const text = (x, y, content, attributes = {}) => el("text", { x, y, ...attributes }, content);
  const line = (x1, y1, x2, y2, kind) => el("line", { x1, y1, x2, y2, class: kind });
  const html = (name, attributes = {}, ...children) => {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...children);
    return node;
  };
  const linear = (from, to, low, high) => {
    const span = to - from || 1;
    return (value) => low + ((value - from) / span) * (high - low);
  };
  // Everything that is drawn is counted in whole numbers.
  const ticks = (high, count) => {
    const raw = Math.max(1, high / count);
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 2.5, 5, 10].map((each) => each * power).find((each) => each >= raw && Number.isInteger(each));
    return upTo(high, step);
  };
  const upTo = (high, step) => Array.from({ length: Math.floor((high * 1.0001) / step) + 1 }, (_, at) => at * step);
  // Durations are round on a clock: 30 s, not 25.
  const durationTicks = (high, count) => upTo(high, data.steps.find((step) => step * count >= high) ?? data.steps.at(-1));
  const short = (value) => (Number.isInteger(value) ? value.toLocaleString("en") : value.toPrecision(3).replace(/\.?0+$/, ""));
  const duration = (ms) => {
    if (ms === null || ms === undefined) return "unknown";
    if (ms < 1000) return `${short(Math.round(ms))} ms`;
    if (ms < 60000) return `${short(ms / 1000)} s`;
    if (ms < 3600000) return ms % 60000 ? `${Math.floor(ms / 60000)} min ${Math.floor((ms % 60000) / 1000)} s` : `${ms / 60000} min`;
    if (ms < 86400000) return `${Math.floor(ms / 3600000)} h ${Math.floor((ms % 3600000) / 60000)} min`;
    return `${Math.floor(ms / 86400000)} d ${Math.floor((ms % 86400000) / 3600000)} h`;
  };
  const sized = (value, unit = "B") => {
    for (const [name, size] of [["G", 1e9], ["M", 1e6], ["k", 1e3]]) if (value >= size) return `${short(Number((value / size).toPrecision(3)))} ${name}${unit}`;
    return `${short(Math.round(value))} ${unit}`;
  };
  const moment = (ms) => new Date(ms).toISOString().replace("T", " ").slice(0, 19);
  // The tip follows the pointer and stays inside the window. Lines are text, never markup.
  const show = (event, lines) => {
    tip.replaceChildren(...lines.flatMap(({ color, words, strong }, at) => {
      const parts = at ? [html("br")] : [];
      if (color) parts.push(html("i", { style: `background:${color}` }));
      parts.push(strong ? html("b", {}, words) : words);
      return parts;
    }));
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = Math.min(event.clientX + 14, window.innerWidth - box.width - 8);
    const above = event.clientY - box.height - 12;
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${above < 8 ? event.clientY + 18 : above}px`;
  };
  const hide = () => { tip.hidden = true; };
  document.addEventListener("scroll", hide, { passive: true });

  const canvas = (box, height) => {
    const width = Math.max(260, Math.floor(box.clientWidth));
    const svg = el("svg", { viewBox: `0 0 ${width} ${height}`, height });
    box.querySelectorAll("svg").forEach((old) => old.remove());
    box.prepend(svg);
    return { svg, width };
  };
  // Round moments come with the data, for each number of them that may have room.
  const timeAxis = (svg, x, { to, top, bottom, width, named = true }) => {
    const count = Math.min(12, Math.max(3, Math.floor(width / 90)));
    let free = 0;
    for (const [at, words] of data.ticks[count]) {
      const half = 3.3 * words.length;
      svg.append(line(x(at), top, x(at), bottom, "grid"));
      if (!named || x(at) - half < free || x(at) + half > x(to) + 8) continue;
      svg.append(text(x(at), bottom + 16, words, { "text-anchor": "middle" }));
      free = x(at) + half + 4;
    }
    if (named) svg.append(text(x(to), bottom + 32, "time, UTC", { "text-anchor": "end" }));
  };
  const AXIS = 40;  // below a chart, for its moments and "time, UTC"

  // A chart that is read off at one of several positions, by a pointer or with the arrow keys.
  const readable = (svg, { label, box: [left, top, width, height], positions, x, lines, marked = true }) => {
    const cursor = line(0, top, 0, top + height, "cursor");
    cursor.setAttribute("visibility", "hidden");
    const ground = el("rect", { x: left, y: top, width, height, fill: "transparent", tabindex: 0, role: "slider", "aria-label": `${label}; arrow keys read it off`, "aria-valuemin": 0, "aria-valuemax": positions.length - 1 });
    let now = 0;
    const read = (index, event) => {
      now = index;
      const at = x(positions[index]);
      const words = lines(index);
      cursor.setAttribute("x1", at); cursor.setAttribute("x2", at);
      cursor.setAttribute("visibility", marked ? "visible" : "hidden");
      ground.setAttribute("aria-valuenow", index);
      ground.setAttribute("aria-valuetext", words.map((each) => each.words).join("; "));
      const frame = svg.getBoundingClientRect();
      show(event ?? { clientX: frame.left + at, clientY: frame.top + top + 40 }, words);
    };
    const leave = () => { hide(); cursor.setAttribute("visibility", "hidden"); };
    ground.setAttribute("aria-valuenow", now);
    ground.addEventListener("pointermove", (event) => {
      const at = event.clientX - svg.getBoundingClientRect().left;
      read(positions.reduce((near, each, index) => (Math.abs(x(each) - at) < Math.abs(x(positions[near]) - at) ? index : near), 0), event);
    });
    ground.addEventListener("pointerleave", leave);
    ground.addEventListener("blur", leave);
    ground.addEventListener("focus", () => { if (ground.matches(":focus-visible")) read(now); });
    ground.addEventListener("keydown", (event) => {
      const steps = { ArrowLeft: now - 1, ArrowDown: now - 1, ArrowRight: now + 1, ArrowUp: now + 1, PageDown: now - 10, PageUp: now + 10, Home: 0, End: positions.length - 1 };
      if (event.key === "Escape") leave();
      if (!(event.key in steps)) return;
      event.preventDefault();
      read(Math.max(0, Math.min(positions.length - 1, steps[event.key])));
    });
    svg.append(cursor, ground);
  };
  const legendButton = (mark, words, note, toggle) => {
    const button = html("button", { type: "button", "aria-pressed": "true" }, mark, words);
    if (note) button.append(html("small", {}, note));
    button.addEventListener("click", () => {
      const on = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(on));
      toggle(on);
    });
    return button;
  };

  // Incidents: a lane per broker and cause. A bar opens its incident in the list below.

  const hiddenCauses = new Set();
  const openIncident = (at) => {
    const entry = document.getElementById(`incident-${at}`);
    for (let node = entry; node; node = node.parentElement.closest("details")) { node.hidden = false; node.open = true; }
    entry.scrollIntoView({ block: "nearest" });
    entry.querySelector("summary").focus();
  };
  const incidents = (box) => {
    const { lanes, bars } = data.incidents;
    const [from, to] = data.span;
    const narrow = box.clientWidth < 560;
    const row = narrow ? 38 : 26;
    const names = lanes.map((each) => `broker ${each.broker}, ${each.cause}`);
    const left = narrow ? 0 : 16 + 6.6 * Math.max(...names.map((each) => each.length));
    const top = 4, bottom = top + row * lanes.length;
    const { svg, width } = canvas(box, bottom + AXIS);
    const x = linear(from, to, left + 4, width - 8);
    timeAxis(svg, x, { to, top, bottom, width: width - left });
    names.forEach((name, at) => {
      const y = top + at * row;
      svg.append(line(0, y + row, width, y + row, "grid"));
      svg.append(text(0, narrow ? y + 14 : y + row / 2 + 4, name, { class: "name" }));
    });
    const groups = bars.map((bar, at) => {
      const y = top + bar.lane * row + (narrow ? 19 : 5), height = narrow ? 14 : row - 10;
      const color = `var(--${bar.cause})`;
      const lines = [
        { words: `${names[bar.lane]}: ${data.causes[bar.cause]}`, strong: true },
        { words: bar.extent, color },
        { words: `${moment(bar.began)}: first cause` },
        { words: bar.open ? `still open after ${duration(bar.ms)}` : `${moment(bar.ended)}: over after ${duration(bar.ms)}` },
      ];
      const group = el("g", { class: hiddenCauses.has(bar.cause) ? "bar dim" : "bar", "data-cause": bar.cause, role: "button", tabindex: at ? -1 : 0, "aria-label": `${lines.map((each) => each.words).join("; ")}; Enter shows its partitions` });
      const end = Math.min(x(bar.ended), width - 8);
      group.append(el("rect", { x: x(bar.began), y, width: Math.max(4, end - x(bar.began)), height, rx: 3, fill: color }));
      if (bar.open) group.append(el("path", { d: `M${end} ${y}l7 ${height / 2}l-7 ${height / 2}z`, fill: color }));
      group.addEventListener("pointermove", (event) => show(event, lines));
      group.addEventListener("pointerleave", hide);
      group.addEventListener("blur", hide);
      group.addEventListener("focus", () => {
        const frame = group.getBoundingClientRect();
        if (group.matches(":focus-visible")) show({ clientX: frame.left, clientY: frame.top }, lines);
      });
      group.addEventListener("click", () => openIncident(at));
      return group;
    });
    svg.append(...groups);
    // One tab stop: the arrow keys go from bar to bar, in the order of time.
    const inTime = bars.map((_, at) => at).sort((one, other) => bars[one].began - bars[other].began || one - other);
    svg.addEventListener("keydown", (event) => {
      const at = groups.indexOf(document.activeElement);
      if (at < 0) return;
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); openIncident(at); return; }
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      const next = inTime[inTime.indexOf(at) + step];
      if (next === undefined) return;
      event.preventDefault();
      groups[at].setAttribute("tabindex", -1);
      groups[next].setAttribute("tabindex", 0);
      groups[next].focus();
    });
    if (!box.querySelector(".legend")) {
      const legend = html("div", { class: "legend", role: "group", "aria-label": "Causes shown" });
      for (const cause of Object.keys(data.causes)) {
        const count = bars.filter((bar) => bar.cause === cause).length;
        if (!count) continue;
        const mark = html("i", { style: `background:var(--${cause})` });
        const button = legendButton(mark, cause, ` ${count}`, (on) => {
          hiddenCauses[on ? "delete" : "add"](cause);
          box.querySelectorAll(`g[data-cause="${cause}"]`).forEach((group) => group.classList.toggle("dim", !on));
        });
        button.title = data.causes[cause];
        legend.append(button);
      }
      box.append(legend);
    }
  };

  // Lines over time, with a cursor that reads off all of them.

  let unit = "ms";
  const hiddenSeries = new Set();
  const lag = (box) => {
    const { at_ms: at, series } = data.lag;
    const [from, to] = data.span;
    const words = unit === "ms" ? duration : unit === "bytes" ? (value) => sized(value) : (value) => short(Math.round(value));
    const shown = series.map((each, index) => ({ ...each, index })).filter((each) => !hiddenSeries.has(each.name));
    const limit = unit === "ms" ? data.limitMs : null;
    const highest = Math.max(1, limit ?? 0, ...shown.flatMap((each) => each[unit].map((value) => value ?? 0)));
    const left = 70, top = 24, bottom = 248;
    const { svg, width } = canvas(box, bottom + AXIS);
    const x = linear(from, to, left, width - 6), y = linear(0, highest * 1.04, bottom, top);
    timeAxis(svg, x, { to, top, bottom, width: width - left });
    svg.append(text(0, 12, `highest lag, ${{ ms: "time", messages: "messages", bytes: "bytes" }[unit]}`));
    for (const value of unit === "ms" ? durationTicks(highest, 5) : ticks(highest, 4)) {
      svg.append(line(left, y(value), width - 6, y(value), value ? "grid" : "axis"));
      svg.append(text(left - 8, y(value) + 4, words(value), { "text-anchor": "end" }));
    }
    const step = data.lag.step_ms;
    for (const each of [...shown].reverse()) {
      let path = "", before = null;
      at.forEach((ms, index) => {
        const value = each[unit][index];
        if (value === null) return;
        // A hole in the record is a hole in the line.
        path += `${before !== null && ms - before <= 2.5 * step ? "L" : "M"}${x(ms).toFixed(1)} ${y(value).toFixed(1)}`;
        before = ms;
      });
      svg.append(el("path", { d: path, fill: "none", stroke: `var(--s${each.index % 6})`, "stroke-width": each.index === 5 ? 1.5 : 2, "stroke-linejoin": "round", "stroke-linecap": "round", "data-series": each.name }));
    }
    if (limit !== null) {
      svg.append(line(left, y(limit), width - 6, y(limit), "limit"));
      svg.append(text(width - 8, y(limit) - 5, `limit ${duration(limit)}`, { "text-anchor": "end", fill: "var(--bad)", style: "fill:var(--bad)" }));
    }
    readable(svg, {
      label: "Lag of each replica", box: [left, top, width - left - 6, bottom - top], positions: at, x,
      lines: (near) => [{ words: moment(at[near]), strong: true }, ...shown.filter((each) => each[unit][near] !== null).map((each) => ({ color: `var(--s${each.index % 6})`, words: `${each.name}: ${words(each[unit][near])}` }))],
    });
    if (!box.querySelector(".legend")) {
      const legend = html("div", { class: "legend", role: "group", "aria-label": "Replicas shown" });
      series.forEach((each, index) => {
        const mark = html("i", { style: `background:var(--s${index % 6})` });
        legend.append(legendButton(mark, each.name, "", (on) => { hiddenSeries[on ? "delete" : "add"](each.name); lag(box); }));
      });
      box.append(legend);
    }
  };
  document.querySelectorAll("[data-unit]").forEach((button) => button.addEventListener("click", () => {
    unit = button.dataset.unit;
    document.querySelectorAll("[data-unit]").forEach((each) => each.setAttribute("aria-pressed", String(each === button)));
    draw("lag");
  }));

  // What if: a line per policy. Lines that coincide stay visible, the lower ones being wider.

  const DASHES = ["", "7 3", "2 3", "9 3 2 3", "5 5", "1 4"];
  const hiddenPolicies = new Set();
  const policies = () => {
    const policies = new Map();
    for (const row of data.whatIf) {
      const name = `${row.policy}${row.lag_max_messages === null ? "" : ` > ${short(row.lag_max_messages)}`}${row.half_period_check ? ", checked every T/2" : ""}`;
      if (!policies.has(name)) policies.set(name, { name, points: [], half: row.half_period_check });
      policies.get(name).points.push(row);
    }
    return [...policies.values()].map((each, index) => ({ ...each, index, color: `var(--s${index % 6})`, dash: DASHES[Math.floor(index / 6) % 6] }));
  };
  const MARKS = [
    (x, y) => el("circle", { cx: x, cy: y, r: 4 }),
    (x, y) => el("rect", { x: x - 3.6, y: y - 3.6, width: 7.2, height: 7.2 }),
    (x, y) => el("path", { d: `M${x} ${y - 4.8}l4.6 8.4h-9.2z` }),
    (x, y) => el("path", { d: `M${x} ${y - 5}l5 5l-5 5l-5 -5z` }),
    (x, y) => el("path", { d: `M${x} ${y + 4.8}l4.6 -8.4h-9.2z` }),
    (x, y) => el("rect", { x: x - 5, y: y - 2, width: 10, height: 4 }),
  ];
  const marked = (index, x, y, color, hollow) => {
    const mark = MARKS[index % MARKS.length](x, y);
    mark.setAttribute("fill", hollow ? "var(--card)" : color);
    mark.setAttribute("stroke", hollow ? color : "var(--card)");
    mark.setAttribute("stroke-width", hollow ? 1.8 : 1);
    return mark;
  };
  const whatIf = (box, column, words, label, ticksOf) => {
    const all = policies().filter((each) => !hiddenPolicies.has(each.name));
    const limits = [...new Set(data.whatIf.map((row) => row.lag_time_max_ms))].sort((one, other) => one - other);
    const values = all.flatMap((each) => each.points.map((row) => row[column])).filter((value) => value !== null);
    const highest = Math.max(1, ...values);
    const left = 62, top = 24, bottom = 224;
    const { svg, width } = canvas(box, bottom + 40);
    const x = linear(Math.log(limits[0]), Math.log(limits[limits.length - 1]), left + 10, width - 14);
    const y = linear(0, highest * 1.05, bottom, top);
    svg.append(text(0, 12, label));
    for (const value of ticksOf(highest, 5)) {
      svg.append(line(left, y(value), width - 4, y(value), value ? "grid" : "axis"));
      svg.append(text(left - 8, y(value) + 4, words(value), { "text-anchor": "end" }));
    }
    let free = -1e9;
    for (const limit of limits) {
      const at = x(Math.log(limit));
      svg.append(line(at, bottom, at, bottom + 4, "axis"));
      if (at - free >= 38) { svg.append(text(at, bottom + 18, duration(limit).replace(" ms", "ms").replace(" s", "s").replace(" min", "m"), { "text-anchor": "middle" })); free = at; }
    }
    svg.append(text((left + width) / 2, bottom + 36, "replica.lag.time.max.ms", { "text-anchor": "middle" }));
    if (data.limitMs && data.limitMs >= limits[0] && data.limitMs <= limits[limits.length - 1]) {
      const at = x(Math.log(data.limitMs));
      svg.append(line(at, top, at, bottom, "limit"));
      svg.append(text(at + (at > width - 90 ? -6 : 6), top + 10, "running", { "text-anchor": at > width - 90 ? "end" : "start", style: "fill:var(--bad)" }));
    }
    all.forEach((each, order) => {
      const known = each.points.filter((row) => row[column] !== null);
      const path = known.map((row, at) => `${at ? "L" : "M"}${x(Math.log(row.lag_time_max_ms)).toFixed(1)} ${y(row[column]).toFixed(1)}`).join("");
      svg.append(el("path", { d: path, fill: "none", stroke: each.color, "stroke-width": Math.max(1.6, 6 - 1.1 * order), "stroke-dasharray": each.dash, "stroke-linejoin": "round", "data-policy": each.name }));
    });
    all.forEach((each) => {
      for (const row of each.points) if (row[column] !== null) svg.append(marked(each.index, x(Math.log(row.lag_time_max_ms)), y(row[column]), each.color, row.below_resolution));
    });
    readable(svg, {
      label, box: [left, top, width - left, bottom - top], positions: limits, x: (limit) => x(Math.log(limit)),
      lines: (near) => {
        const rows = all.map((each) => ({ each, row: each.points.find((row) => row.lag_time_max_ms === limits[near]) })).filter(({ row }) => row);
        return [{ words: `T = ${duration(limits[near])}`, strong: true }, ...rows.map(({ each, row }) => ({ color: each.color, words: `${each.name}: ${row[column] === null ? "none to notice" : words(row[column])}` }))];
      },
    });
  };
  const policyLegend = () => {
    const legend = document.querySelector('[data-legend="policies"]');
    for (const each of policies()) {
      const mark = el("svg", { viewBox: "0 0 26 12" }, el("path", { d: "M0 6H26", stroke: each.color, "stroke-width": 2.5, "stroke-dasharray": each.dash }), marked(each.index, 13, 6, each.color, false));
      legend.append(legendButton(mark, each.name, "", (on) => {
        hiddenPolicies[on ? "delete" : "add"](each.name);
        draw("false-evictions"); draw("detection");
      }));
    }
  };

  // Throttles: one panel for each broker and side.

  const throttle = (box) => {
    const panels = data.seconds;
    const [from, to] = data.span;
    const height = 118, left = 66;
    const { svg, width } = canvas(box, height * panels.length + AXIS - 8);
    const x = linear(from, to, left, width - 6);
    panels.forEach((panel, index) => {
      const top = index * height + 24, bottom = index * height + height - 14;
      const highest = Math.max(1, ...panel.limit, ...panel.bytes);
      const y = linear(0, highest * 1.08, bottom, top);
      timeAxis(svg, x, { to, top, bottom: bottom + 6, width: width - left, named: index === panels.length - 1 });
      svg.append(text(left, top - 8, `broker ${panel.broker}, ${panel.side} side`, { class: "strong" }));
      for (const value of [0, highest]) {
        svg.append(line(left, y(value), width - 6, y(value), value ? "grid" : "axis"));
        svg.append(text(left - 8, y(value) + 4, sized(value, "B/s"), { "text-anchor": "end" }));
      }
      let area = "", limit = "", open = null;
      const step = panel.step_ms;
      panel.at_ms.forEach((ms, at) => {
        const begins = open === null || ms - open > 2.5 * step;
        if (begins && open !== null) area += `L${x(open + step)} ${bottom}Z`;
        area += begins ? `M${x(ms)} ${bottom}L${x(ms)} ${y(panel.bytes[at])}` : `L${x(ms)} ${y(panel.bytes[at])}`;
        area += `L${x(ms + step)} ${y(panel.bytes[at])}`;
        limit += `${begins ? "M" : "L"}${x(ms)} ${y(panel.limit[at])}L${x(ms + step)} ${y(panel.limit[at])}`;
        open = ms;
        if (panel.held[at]) svg.append(el("rect", { x: x(ms), y: bottom + 2, width: Math.max(1.5, x(ms + step) - x(ms)), height: 4, fill: "var(--stuck)" }));
      });
      area += `L${x(open + step)} ${bottom}Z`;
      svg.append(el("path", { d: area, fill: "var(--s0)", opacity: 0.35, "data-throttle": `${panel.broker} ${panel.side}` }));
      svg.append(el("path", { d: limit, fill: "none", class: "limit" }));
      readable(svg, {
        label: `Throttle of broker ${panel.broker}, ${panel.side} side`, box: [left, top, width - left - 6, bottom - top + 8], positions: panel.at_ms, x: (ms) => x(ms + step / 2),
        lines: (near) => [
          { words: moment(panel.at_ms[near]), strong: true },
          { words: `${sized(panel.bytes[near], "B/s")} of ${sized(panel.limit[near], "B/s")}`, color: "var(--s0)" },
          ...(panel.bytes_in[near] === null ? [] : [{ words: `${sized(panel.bytes_in[near], "B/s")} coming in` }]),
          ...(panel.held[near] ? [{ words: `replicas held back for ${panel.held[near]} s`, color: "var(--stuck)" }] : []),
        ],
      });
    });
    if (!box.querySelector(".legend")) {
      const key = (style, words) => html("span", { style: "display:inline-flex;align-items:center;gap:6px;font-size:13px;color:var(--soft)" }, html("i", { style }), words);
      box.append(html("div", { class: "legend" },
        key("background:var(--s0);opacity:.5", "used"),
        key("height:0;border-radius:0;border-top:2px dashed var(--bad)", "limit"),
        key("background:var(--stuck);height:5px", "replicas held back")));
    }
  };

  // Tables: a click on a heading sorts by it, another one the other way round.

  const sortable = (table) => {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
      const key = (row) => row.cells[column].dataset.v ?? row.cells[column].textContent;
      const rows = [...table.tBodies[0].rows];
      const numeric = rows.every((row) => key(row) !== "" && Number.isFinite(Number(key(row))));
      const up = head.hasAttribute("aria-sort") ? head.getAttribute("aria-sort") !== "ascending" : !numeric;
      heads.forEach((each) => each.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const order = numeric ? (one, other) => Number(key(one)) - Number(key(other)) : (one, other) => key(one).localeCompare(key(other), "en", { numeric: true });
      rows.sort((one, other) => (up ? order(one, other) : order(other, one)));
      table.tBodies[0].append(...rows);
    }));
  };
  document.querySelectorAll("table").forEach(sortable);
  document.querySelectorAll("[data-filters]").forEach((input) => input.addEventListener("input", () => {
    const wanted = input.value.trim().toLowerCase();
    const list = document.querySelector(`[data-list="${input.dataset.filters}"]`);
    list.querySelectorAll(".incident").forEach((entry) => { entry.hidden = !entry.textContent.toLowerCase().includes(wanted); });
    list.querySelectorAll(":scope > details:not(.incident)").forEach((rest) => { rest.open = wanted !== ""; });
  }));
  // Paper has nothing to open.
  window.addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((each) => { each.open = true; }));

  // Draw, and draw again when the width changes.

  const CHARTS = {
    incidents,
    lag,
    "false-evictions": (box) => whatIf(box, "false_evictions", short, "false evictions", ticks),
    detection: (box) => whatIf(box, "detection_ms_p99", duration, "detection delay", durationTicks),
    throttle,
  };
  const boxes = new Map([...document.querySelectorAll("[data-chart]")].map((box) => [box.dataset.chart, box]));
  const draw = (name) => { const box = boxes.get(name); if (box) CHARTS[name](box); };
  if (document.querySelector('[data-legend="policies"]')) policyLegend();
  const widths = new Map();
  const redraw = () => boxes.forEach((box, name) => {
    if (widths.get(name) === box.clientWidth) return;
    widths.set(name, box.clientWidth);
    draw(name);
  });
  redraw();
  window.addEventListener("resize", redraw);
  document.body.dataset.drawn = [...boxes.keys()].join(" ");
})();
