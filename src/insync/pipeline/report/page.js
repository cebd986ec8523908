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
    const ticks = [];
    for (let value = 0; value <= high * 1.0001; value += step) ticks.push(value);
    return ticks;
  };
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
  const clock = (ms, step) => {
    const iso = new Date(ms).toISOString();
    if (step >= 86400000) return iso.slice(5, 10);
    return step >= 60000 ? iso.slice(11, 16) : step >= 1000 ? iso.slice(11, 19) : iso.slice(17, 23);
  };
  const timeTicks = (from, to, count) => {
    const steps = [100, 200, 500, 1e3, 2e3, 5e3, 1e4, 15e3, 3e4, 6e4, 12e4, 3e5, 6e5, 9e5, 18e5, 36e5, 72e5, 108e5, 216e5, 432e5, 864e5, 1728e5, 6048e5];
    const step = steps.find((each) => (to - from) / each <= count) || 6048e5 * Math.ceil((to - from) / count / 6048e5);
    const ticks = [];
    for (let at = Math.ceil(from / step) * step; at <= to; at += step) ticks.push(at);
    return { step, at: ticks };
  };

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
  const timeAxis = (svg, x, { from, to, top, bottom, width, named = true }) => {
    const { step, at } = timeTicks(from, to, Math.max(3, Math.floor(width / 90)));
    for (const each of at) {
      const half = step >= 60000 ? 16 : 26;
      svg.append(line(x(each), top, x(each), bottom, "grid"));
      if (named && x(each) >= half && x(each) + half <= x(to) + 8) svg.append(text(x(each), bottom + 16, clock(each, step), { "text-anchor": "middle" }));
    }
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

  // Replicas out of sync.

  const hiddenCauses = new Set();
  const timeline = (box) => {
    const { replicas, bars } = data.timeline;
    const [from, to] = data.span;
    const narrow = box.clientWidth < 560;
    const row = narrow ? 38 : 26;
    const left = narrow ? 0 : Math.min(230, 40 + 7 * Math.max(...replicas.map((each) => each.partition.length + 6)));
    const top = 4, bottom = top + row * replicas.length;
    const { svg, width } = canvas(box, bottom + 24);
    const x = linear(from, to, left + 4, width - 6);
    timeAxis(svg, x, { from, to, top, bottom, width: width - left });
    replicas.forEach((each, at) => {
      const y = top + at * row;
      svg.append(line(0, y + row, width, y + row, "grid"));
      const name = text(0, narrow ? y + 14 : y + row / 2 + 4, "", { class: "name" });
      const room = Math.floor((narrow ? width : left) / 7) - 6;
      const shown = each.partition.length > room ? `${each.partition.slice(0, room - 1)}…` : each.partition;
      name.append(el("tspan", {}, shown), el("tspan", { fill: "var(--soft)" }, `  on ${each.broker}`), el("title", {}, `${each.partition} on broker ${each.broker}`));
      svg.append(name);
    });
    for (const bar of bars) {
      const y = top + bar.row * row + (narrow ? 19 : 5), height = narrow ? 14 : row - 10;
      const color = `var(--${bar.cause})`;
      const leaves = bar.left ?? bar.first;
      const group = el("g", { class: hiddenCauses.has(bar.cause) ? "bar dim" : "bar", "data-cause": bar.cause });
      if (x(leaves) - x(bar.first) > 1) group.append(el("rect", { x: x(bar.first), y: y + height / 2 - 1.5, width: x(leaves) - x(bar.first), height: 3, fill: color, opacity: 0.6 }));
      group.append(el("rect", { x: x(leaves), y, width: Math.max(4, x(bar.end) - x(leaves)), height, rx: 3, fill: color }));
      if (bar.ending === "open") group.append(el("path", { d: `M${x(bar.end)} ${y}l7 ${height / 2}l-7 ${height / 2}z`, fill: color }));
      const where = replicas[bar.row];
      const lines = [
        { words: `${where.partition} on broker ${where.broker}`, strong: true },
        { words: `${bar.cause}: ${data.causes[bar.cause]}`, color },
        { words: `${moment(bar.first)}: first cause` },
      ];
      if (bar.left !== null) lines.push({ words: `${moment(bar.left)}: left, ${duration(bar.left - bar.first)} later` });
      const endings = { open: `still out after ${duration(bar.end - leaves)}`, rejoined: `${moment(bar.end)}: back after ${duration(bar.end - leaves)}`, "moved-away": `${moment(bar.end)}: moved away after ${duration(bar.end - leaves)}` };
      lines.push({ words: endings[bar.ending] ?? "its return is not recorded" });
      if (bar.lagMs !== null) lines.push({ words: `lag when it left: ${duration(bar.lagMs)}, ${short(bar.lagMessages)} messages` });
      if (bar.flaps > 1) lines.push({ words: `one of ${bar.flaps} in a row` });
      group.addEventListener("pointermove", (event) => show(event, lines));
      group.addEventListener("pointerleave", hide);
      svg.append(group);
    }
    if (!box.querySelector(".legend")) {
      const legend = html("div", { class: "legend" });
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
    const left = 62, top = 8, bottom = 232;
    const { svg, width } = canvas(box, bottom + 24);
    const x = linear(from, to, left, width - 6), y = linear(0, highest * 1.04, bottom, top);
    timeAxis(svg, x, { from, to, top, bottom, width: width - left });
    for (const value of ticks(highest, 4)) {
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
    const cursor = line(0, top, 0, bottom, "cursor");
    cursor.setAttribute("visibility", "hidden");
    const ground = el("rect", { x: left, y: top, width: width - left - 6, height: bottom - top, fill: "transparent" });
    ground.addEventListener("pointermove", (event) => {
      const ms = from + ((event.offsetX - left) / (width - 6 - left)) * (to - from);
      let near = 0;
      at.forEach((each, index) => { if (Math.abs(each - ms) < Math.abs(at[near] - ms)) near = index; });
      cursor.setAttribute("x1", x(at[near])); cursor.setAttribute("x2", x(at[near]));
      cursor.setAttribute("visibility", "visible");
      show(event, [{ words: moment(at[near]), strong: true }, ...shown.filter((each) => each[unit][near] !== null).map((each) => ({ color: `var(--s${each.index % 6})`, words: `${each.name}: ${words(each[unit][near])}` }))]);
    });
    ground.addEventListener("pointerleave", () => { hide(); cursor.setAttribute("visibility", "hidden"); });
    svg.append(cursor, ground);
    if (!box.querySelector(".legend")) {
      const legend = html("div", { class: "legend" });
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
  const whatIf = (box, column, words) => {
    const all = policies().filter((each) => !hiddenPolicies.has(each.name));
    const limits = [...new Set(data.whatIf.map((row) => row.lag_time_max_ms))].sort((one, other) => one - other);
    const values = all.flatMap((each) => each.points.map((row) => row[column])).filter((value) => value !== null);
    const highest = Math.max(1, ...values);
    const left = 56, top = 10, bottom = 210;
    const { svg, width } = canvas(box, bottom + 40);
    const x = linear(Math.log(limits[0]), Math.log(limits[limits.length - 1]), left + 10, width - 14);
    const y = linear(0, highest * 1.05, bottom, top);
    for (const value of ticks(highest, 4)) {
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
    const cursor = line(0, top, 0, bottom, "cursor");
    cursor.setAttribute("visibility", "hidden");
    const ground = el("rect", { x: left, y: top, width: width - left, height: bottom - top, fill: "transparent" });
    ground.addEventListener("pointermove", (event) => {
      const near = limits.reduce((best, each) => (Math.abs(x(Math.log(each)) - event.offsetX) < Math.abs(x(Math.log(best)) - event.offsetX) ? each : best));
      cursor.setAttribute("x1", x(Math.log(near))); cursor.setAttribute("x2", x(Math.log(near)));
      cursor.setAttribute("visibility", "visible");
      const rows = all.map((each) => ({ each, row: each.points.find((row) => row.lag_time_max_ms === near) })).filter(({ row }) => row);
      show(event, [{ words: `T = ${duration(near)}`, strong: true }, ...rows.map(({ each, row }) => ({ color: each.color, words: `${each.name}: ${row[column] === null ? "none to notice" : words(row[column])}` }))]);
    });
    ground.addEventListener("pointerleave", () => { hide(); cursor.setAttribute("visibility", "hidden"); });
    svg.append(cursor, ground);
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
    const { svg, width } = canvas(box, height * panels.length + 20);
    const x = linear(from, to, left, width - 6);
    panels.forEach((panel, index) => {
      const top = index * height + 24, bottom = index * height + height - 14;
      const highest = Math.max(1, ...panel.limit, ...panel.bytes);
      const y = linear(0, highest * 1.08, bottom, top);
      timeAxis(svg, x, { from, to, top, bottom: bottom + 6, width: width - left, named: index === panels.length - 1 });
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
      const ground = el("rect", { x: left, y: top, width: width - left - 6, height: bottom - top + 8, fill: "transparent" });
      ground.addEventListener("pointermove", (event) => {
        const ms = from + ((event.offsetX - left) / (width - 6 - left)) * (to - from);
        let near = 0;
        panel.at_ms.forEach((each, at) => { if (Math.abs(each - ms) < Math.abs(panel.at_ms[near] - ms)) near = at; });
        show(event, [
          { words: moment(panel.at_ms[near]), strong: true },
          { words: `${sized(panel.bytes[near], "B/s")} of ${sized(panel.limit[near], "B/s")}`, color: "var(--s0)" },
          ...(panel.bytes_in[near] === null ? [] : [{ words: `${sized(panel.bytes_in[near], "B/s")} coming in` }]),
          ...(panel.held[near] ? [{ words: `replicas held back for ${panel.held[near]} s`, color: "var(--stuck)" }] : []),
        ]);
      });
      ground.addEventListener("pointerleave", hide);
      svg.append(ground);
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
      const key = (row) => row.cells[column].dataset.v;
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
    for (const row of document.querySelector(`[data-table="${input.dataset.filters}"]`).tBodies[0].rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
  }));
  document.querySelectorAll("time[data-ms]").forEach((time) => { time.textContent = moment(Number(time.dataset.ms)); });
  const isOneDay = data.span && moment(data.span[0]).slice(0, 10) === moment(data.span[1]).slice(0, 10);
  document.querySelectorAll("td.moment").forEach((cell) => {
    const at = moment(Number(cell.dataset.v));
    cell.textContent = isOneDay ? at.slice(11) : at;
    cell.title = at;
  });

  // Draw, and draw again when the width changes.

  const CHARTS = {
    timeline,
    lag,
    "false-evictions": (box) => whatIf(box, "false_evictions", short),
    detection: (box) => whatIf(box, "detection_ms_p99", duration),
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
