// The report's page: plots as inline SVG, drawn from the JSON beside it. No library, no network.
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00", "#56b4e9"];
const LATENCIES = { ttft: "TTFT", itl: "ITL", tpot: "TPOT", e2e: "E2E" };
const MODES = { concurrency: "streams", rate: "req/s", ramp: "req/s at the ramp's end", trace: "x speed" };
const runs = data.reports.map((report, i) => ({
  report, colour: COLOURS[i % COLOURS.length], shown: true,
  points: [...report.points].sort((a, b) => a.mode.localeCompare(b.mode) || a.value - b.value),
}));
const state = {
  latency: "e2e", share: "p50", x: "output_throughput", log: false,
  spread: "ttft", form: "share", dots: "e2e", run: 0, point: 0,
};
const $ = (id) => document.getElementById(id);

function element(name, attributes = {}, ...children) {
  const svg = ["svg", "g", "line", "path", "circle", "text", "rect", "polyline"].includes(name);
  const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

function number(value, digits = 3) {
  if (value === null || value === undefined || !isFinite(value)) return "–";
  if (value !== 0 && (Math.abs(value) >= 1e6 || Math.abs(value) < 1e-3)) return value.toExponential(2);
  return Number(value.toPrecision(Math.max(digits, Math.ceil(Math.log10(Math.abs(value) + 1))))).toLocaleString("en");
}
const pointName = (p) => `${number(p.value)} ${MODES[p.mode] || p.mode}`;

function tip(target, text) {
  const box = $("tip");
  const show = (event) => {
    box.textContent = text;
    box.style.display = "block";
    const at = target.getBoundingClientRect();
    const x = event.clientX || at.left, y = event.clientY || at.top;
    box.style.left = Math.min(x + 14, innerWidth - box.offsetWidth - 8) + "px";
    box.style.top = Math.min(y + 14, innerHeight - box.offsetHeight - 8) + "px";
  };
  target.addEventListener("mousemove", show);
  target.addEventListener("focus", show);
  for (const name of ["mouseleave", "blur"]) target.addEventListener(name, () => (box.style.display = "none"));
}

function ticks(low, high, log) {
  if (log) {
    const found = [];
    for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e++)
      for (const m of [1, 2, 5]) { const t = m * 10 ** e; if (t >= low * 0.999 && t <= high * 1.001) found.push(t); }
    return found;
  }
  const raw = (high - low) / 6 || 1, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw);
  const found = [];
  for (let t = Math.ceil(low / step) * step; t <= high + step * 1e-6; t += step) found.push(Math.abs(t) < step * 1e-9 ? 0 : t);
  return found;
}

// A plane with axes: {svg, x, y} where x and y map values to pixels.
function plane(holder, { xs, ys, xName, yName, height = 340, log = false, whole = false }) {
  const width = 1100, left = 64, right = 16, top = 28, bottom = 42;
  let xHigh = Math.max(...xs, 0), yHigh = Math.max(...ys, 0), xLow = Math.min(...xs, 0), yLow = 0;
  if (!isFinite(xLow)) xLow = 0;
  if (!isFinite(xHigh) || xHigh <= xLow) xHigh = xLow + 1;
  if (!isFinite(yHigh) || yHigh <= 0) yHigh = 1;
  if (log) { yLow = Math.min(...ys.filter((v) => v > 0)) / 1.3; yHigh *= 1.3; if (!isFinite(yLow) || yLow >= yHigh) yLow = yHigh / 10; }
  else if (!whole) yHigh *= 1.06;
  if (!whole) xHigh *= 1.03;
  const x = (v) => left + ((v - xLow) / (xHigh - xLow)) * (width - left - right);
  const y = (v) => {
    const share = log ? Math.log(Math.max(v, yLow) / yLow) / Math.log(yHigh / yLow) : (v - yLow) / (yHigh - yLow);
    return height - bottom - share * (height - top - bottom);
  };
  const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${yName} against ${xName}` });
  for (const t of ticks(yLow, yHigh, log)) {
    svg.append(element("line", { class: "grid", x1: left, x2: width - right, y1: y(t), y2: y(t) }));
    svg.append(element("text", { x: left - 8, y: y(t) + 4, "text-anchor": "end" }, number(t)));
  }
  for (const t of ticks(xLow, xHigh, false)) {
    svg.append(element("line", { class: "axis", x1: x(t), x2: x(t), y1: height - bottom, y2: height - bottom + 5 }));
    svg.append(element("text", { x: x(t), y: height - bottom + 19, "text-anchor": "middle" }, number(t)));
  }
  svg.append(element("line", { class: "axis", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom }));
  svg.append(element("text", { class: "label", x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }, xName));
  svg.append(element("text", { class: "label", x: 4, y: 13 }, yName));
  holder.replaceChildren(svg);
  return { svg, x, y, bottom: height - bottom, top };
}

function selector(holder, label, options, key) {
  const box = element("select", { id: `choose-${key}`, onchange: () => { state[key] = box.value; draw(); } });
  for (const [value, text] of Object.entries(options)) box.append(element("option", { value }, text));
  box.value = state[key];
  holder.append(element("label", {}, `${label} `, box));
}

function pick(run, point) {
  state.run = run;
  state.point = point;
  draw();
}

function curve() {
  const name = state.latency, share = state.share;
  const value = (p) => p.latencies[name]?.[share];
  const shown = runs.filter((r) => r.shown);
  const all = shown.flatMap((r) => r.points).filter((p) => value(p) != null && p[state.x] != null);
  const bounds = all.flatMap((p) => [value(p), ...(p.intervals?.[`${name}_${share}`] || [])]);
  const xName = state.x === "output_throughput" ? "output tokens/s" : "requests/s";
  const { svg, x, y } = plane($("curve"), {
    xs: all.flatMap((p) => [p[state.x], ...(p.intervals?.[state.x] || [])]), ys: bounds, xName, yName: `${LATENCIES[name]} ${share}, ms`, log: state.log,
  });
  const objective = Math.min(...shown.map((r) => r.report.objectives?.[name] ?? Infinity));
  if (isFinite(objective)) {
    svg.append(element("line", { x1: 64, x2: 1084, y1: y(objective), y2: y(objective), stroke: "var(--bad)", "stroke-dasharray": "6 4" }));
  }
  runs.forEach((run, r) => {
    if (!run.shown) return;
    const usable = run.points.filter((p) => value(p) != null && p[state.x] != null);
    for (const mode of new Set(usable.map((p) => p.mode))) {
      const line = usable.filter((p) => p.mode === mode).map((p) => `${x(p[state.x])},${y(value(p))}`).join(" ");
      svg.append(element("polyline", { points: line, fill: "none", stroke: run.colour, "stroke-width": 2, "stroke-opacity": 0.7 }));
    }
    for (const p of usable) {
      const bars = p.intervals?.[`${name}_${share}`], across = p.intervals?.[state.x];
      if (bars) svg.append(element("line", { x1: x(p[state.x]), x2: x(p[state.x]), y1: y(Math.max(bars[0], 0)), y2: y(bars[1]), stroke: run.colour }));
      if (across) svg.append(element("line", { x1: x(across[0]), x2: x(across[1]), y1: y(value(p)), y2: y(value(p)), stroke: run.colour }));
      const index = run.points.indexOf(p), on = r === state.run && index === state.point;
      const dot = element("circle", {
        cx: x(p[state.x]), cy: y(value(p)), r: on ? 8 : 5.5, fill: run.colour, tabindex: 0, style: "cursor:pointer",
        stroke: on ? "var(--fg)" : "none", "stroke-width": 2, class: "dot",
        onclick: () => pick(r, index), onkeydown: (e) => e.key === "Enter" && pick(r, index),
      });
      tip(dot, `${run.report.label}: ${pointName(p)}\n${LATENCIES[name]} ${share} ${number(value(p))} ms` +
        (bars ? ` (${number(bars[0])} to ${number(bars[1])})` : "") +
        `\n${number(p.output_throughput)} tok/s, ${number(p.request_throughput)} req/s\n${p.completed} of ${p.requests} completed`);
      svg.append(dot);
      svg.append(element("text", { x: x(p[state.x]) + 9, y: y(value(p)) - 8 }, number(p.value)));
    }
  });
}

// The chosen point and the same point of the other runs that are shown.
function chosen() {
  const wanted = runs[state.run].points[state.point];
  return runs.flatMap((run, r) => {
    if (!run.shown && r !== state.run) return [];
    const found = r === state.run ? wanted : run.points.find((p) => p.mode === wanted.mode && p.value === wanted.value);
    return found ? [{ run, point: found }] : [];
  });
}

function quantiles(point, name) {
  if (name === "itl") return point.series?.itl_quantiles || [];
  const values = (point.samples?.[name] || []).filter((v) => v != null).sort((a, b) => a - b);
  if (!values.length) return [];
  return Array.from({ length: 101 }, (_, q) => {
    const at = ((values.length - 1) * q) / 100, low = Math.floor(at);
    return values[low] + (values[Math.min(low + 1, values.length - 1)] - values[low]) * (at - low);
  });
}

function spread() {
  const found = chosen().map((c) => ({ ...c, q: quantiles(c.point, state.spread) })).filter((c) => c.q.length);
  const name = LATENCIES[state.spread];
  $("spread-caption").textContent = found.length
    ? `${pointName(runs[state.run].points[state.point])}: ` + found.map((c) =>
        `${c.run.report.label} p50 ${number(c.q[50])}, p99 ${number(c.q[99])} ms`).join("; ")
    : "This point has no samples.";
  if (!found.length) {
    $("spread").replaceChildren();
    return;
  }
  const xs = found.flatMap((c) => c.q);
  if (state.form === "share") {
    const { svg, x, y } = plane($("spread"), { xs, ys: [100], xName: `${name}, ms`, yName: "% of the requests at most", whole: true });
    for (const c of found) {
      svg.append(element("polyline", { points: c.q.map((v, q) => `${x(v)},${y(q)}`).join(" "), fill: "none", stroke: c.run.colour, "stroke-width": 2.2 }));
      for (const q of [50, 90, 99]) {
        const dot = element("circle", { cx: x(c.q[q]), cy: y(q), r: 5, fill: c.run.colour, tabindex: 0 });
        tip(dot, `${c.run.report.label}: p${q} ${number(c.q[q])} ms`);
        svg.append(dot);
      }
    }
    return;
  }
  const low = Math.min(...xs), bins = 40, size = (Math.max(...xs) - low) / bins || 1, high = low + bins * size;
  const counted = found.map((c) => {
    const shares = Array(bins).fill(0);
    c.q.forEach((v) => shares[Math.min(bins - 1, Math.floor((v - low) / size))]++);
    return { ...c, shares: shares.map((s) => (100 * s) / c.q.length) };
  });
  const { svg, x, y, bottom } = plane($("spread"), { xs: [low, high], ys: counted.flatMap((c) => c.shares), xName: `${name}, ms`, yName: "% of the requests" });
  for (const c of counted) c.shares.forEach((s, i) => {
    if (!s) return;
    const bar = element("rect", { x: x(low + i * size), width: Math.max(1, x(low + size) - x(low) - 1), y: y(s), height: bottom - y(s), fill: c.run.colour, "fill-opacity": 0.5 });
    tip(bar, `${c.run.report.label}: ${number(low + i * size)} to ${number(low + (i + 1) * size)} ms: ${number(s)} %`);
    svg.append(bar);
  });
}

function overTime() {
  const run = runs[state.run], point = run.points[state.point], series = point.series || {};
  const tokens = series.output_tokens || [], step = series.step || 1;
  const rates = tokens.map((t) => t / step);
  const { svg, x, y } = plane($("rate"), { xs: [tokens.length * step], ys: rates, xName: "seconds", yName: "output tokens/s, and requests in flight (grey, own scale)", height: 220 });
  const active = series.active || [], most = Math.max(...active, 1), top = Math.max(...rates, 1);
  svg.append(element("polyline", { points: active.map((a, i) => `${x((i + 0.5) * step)},${y((a / most) * top)}`).join(" "), fill: "none", stroke: "var(--dim)", "stroke-dasharray": "4 3" }));
  svg.append(element("polyline", { points: rates.map((r, i) => `${x((i + 0.5) * step)},${y(r)}`).join(" "), fill: "none", stroke: run.colour, "stroke-width": 2 }));
  const samples = point.samples || {}, starts = samples.start || [], values = samples[state.dots] || [];
  const known = values.map((v, i) => [starts[i], v, i]).filter((row) => row[1] != null);
  const stride = Math.ceil(known.length / 4000);
  const drawn = known.filter((_, i) => i % stride === 0);
  const plot = plane($("scatter"), { xs: [tokens.length * step], ys: drawn.map((r) => r[1]), xName: "intended send time, seconds", yName: `${LATENCIES[state.dots]} of each request, ms`, height: 280 });
  const steady = point.steady || {};
  if (steady.discarded) {
    plot.svg.append(element("rect", { x: plot.x(0), width: plot.x(steady.from_seconds) - plot.x(0), y: plot.top, height: plot.bottom - plot.top, fill: "var(--dim)", "fill-opacity": 0.13 }));
  }
  for (const [start, value, i] of drawn) {
    const dot = element("circle", { cx: plot.x(start), cy: plot.y(value), r: 3.2, fill: run.colour, "fill-opacity": 0.6 });
    tip(dot, `request ${i + 1}, due at ${number(start, 4)} s, sent at ${number(samples.sent[i], 4)} s\nTTFT ${number(samples.ttft[i])}, E2E ${number(samples.e2e[i])} ms\n${samples.input_tokens[i]} in (${samples.cached_tokens[i]} cached), ${samples.output_tokens[i]} out`);
    plot.svg.append(dot);
  }
  const client = point.client || {};
  $("time-caption").textContent =
    `${run.report.label}, ${pointName(point)}. ` +
    (steady.verdict === "drifting" ? `Not steady: latency changes by ${number(100 * (steady.drift || 0), 2)} % within the point. `
      : steady.discarded ? `Warm-up (shaded): ${steady.discarded} requests. ` : steady.verdict === "steady" ? "Steady from its start. " : "") +
    `Client: ${number(100 * (client.cpu || 0), 2)} % of a core, ${number(client.lag?.p99)} ms late (p99)` +
    (client.saturated ? ": SATURATED, its figures are partly the client's." : ".") +
    (point.repetitions?.length ? " Dots are of all repetitions, lines of the first." : "") +
    (stride > 1 ? ` Every ${stride}th request is drawn.` : "");
}

function table() {
  const head = ["run", "point", "done", "output tok/s", "req/s", "TTFT p50 / p99", "ITL p50 / p99", "TPOT p50 / p99", "E2E p50 / p99"];
  const objectives = runs.some((r) => Object.keys(r.report.objectives || {}).length);
  if (objectives) head.push("met", "goodput req/s");
  const body = element("tbody");
  runs.forEach((run, r) => run.points.forEach((p, i) => {
    const pair = (name) => `${number(p.latencies[name]?.p50)} / ${number(p.latencies[name]?.p99)}`;
    const cells = [run.report.label, pointName(p), `${p.completed}/${p.requests}`, number(p.output_throughput), number(p.request_throughput), ...Object.keys(LATENCIES).map(pair)];
    if (objectives) cells.push(p.attainment == null ? "–" : `${number(100 * p.attainment)} %`, number(p.goodput));
    const row = element("tr", { class: r === state.run && i === state.point ? "pick on" : "pick", onclick: () => pick(r, i) }, ...cells.map((c) => element("td", {}, c)));
    row.firstChild.prepend(element("span", { class: "swatch", style: `background:${run.colour}` }));
    body.append(row);
  }));
  $("points").replaceChildren(element("thead", {}, element("tr", {}, ...head.map((h) => element("th", {}, h)))), body);
}

function compared() {
  for (const { report } of runs) {
    if (report.search) $("verdicts").append(element("div", { class: "verdict" }, `${report.label}: ${report.search_sentence}`));
  }
  for (const c of data.comparisons) {
    $("verdicts").append(element("div", { class: `verdict ${c.verdict.split(" ")[0]}` }, c.sentence));
    const rows = c.rows.map((r) => element("tr", {},
      element("td", {}, r.value ? pointName(r) : r.mode), element("td", {}, r.metric.replace("_", " ")),
      element("td", {}, number(r.a)), element("td", {}, number(r.b)), element("td", {}, number(r.ratio, 4)),
      element("td", {}, r.interval ? `${number(r.interval[0], 4)} to ${number(r.interval[1], 4)}` : "unknown"),
      element("td", { class: r.verdict.split(" ")[0] }, r.verdict)));
    $("compared").append(
      element("h2", {}, `${c.b} against ${c.a}`),
      element("div", { class: "scroll" }, element("table", {},
        element("thead", {}, element("tr", {}, ...["point", "metric", c.a, c.b, "ratio", "interval", "verdict"].map((h) => element("th", {}, h)))),
        element("tbody", {}, ...rows))),
      ...c.notes.map((n) => element("p", { class: "dim" }, n)));
  }
}

function notes() {
  for (const run of runs) {
    const r = run.report;
    const lines = [...(r.notes || [])];
    for (const p of r.points) {
      for (const [kind, text] of Object.entries(p.error_details || {})) lines.push(`${pointName(p)}: ${p.errors[kind]}x ${kind}: ${text}`);
      for (const [name, joules] of Object.entries(p.energy || {})) lines.push(`${pointName(p)}: ${number(joules)} J (${name})`);
      for (const [name, dollars] of Object.entries(p.cost || {})) lines.push(`${pointName(p)}: cost, ${name}: ${number(dollars)} USD`);
    }
    if (r.quality) lines.push(...r.quality_sentences);
    const load = Object.entries(r.workload || {}).map(([k, v]) => `${k} ${JSON.stringify(v)}`).join(", ");
    $("notes").append(element("p", {}, element("strong", {}, r.label),
      ` — ${r.model} ${r.base_url ? "at " + r.base_url : ""} (${r.endpoint}), input ${r.input_tokens || "?"}, output ${r.output_tokens || "?"} tokens, ${r.created || "no date"}, by ${r.tool}. ${load}`));
    for (const line of lines) $("notes").append(element("p", { class: "dim" }, line));
  }
}

function draw() {
  curve();
  spread();
  overTime();
  table();
  $("runs").querySelectorAll("button").forEach((b, i) => b.setAttribute("aria-pressed", runs[i].shown));
}

function begin() {
  $("title").textContent = runs.length === 1 ? `Benchmark of ${runs[0].report.label}` : `Benchmarks: ${runs.map((r) => r.report.label).join(", ")}`;
  $("subtitle").textContent = [...new Set(runs.map((r) => `${r.report.model} (${r.report.endpoint})`))].join(", ");
  document.title = $("title").textContent;
  runs.forEach((run) => $("runs").append(element("button", { type: "button", onclick: () => { run.shown = !run.shown; draw(); } },
    element("span", { class: "swatch", style: `background:${run.colour}` }), run.report.label)));
  const shares = { p50: "p50", p90: "p90", p99: "p99", mean: "mean" };
  selector($("curve-controls"), "Latency", LATENCIES, "latency");
  selector($("curve-controls"), "at", shares, "share");
  selector($("curve-controls"), "against", { output_throughput: "output tokens/s", request_throughput: "requests/s" }, "x");
  const log = element("input", { type: "checkbox", id: "log", onchange: () => { state.log = log.checked; draw(); } });
  $("curve-controls").append(element("label", {}, log, " logarithmic"));
  selector($("spread-controls"), "Latency", LATENCIES, "spread");
  selector($("spread-controls"), "as", { share: "cumulative share", bars: "histogram" }, "form");
  selector($("time-controls"), "Dots are", { e2e: "E2E", ttft: "TTFT", tpot: "TPOT" }, "dots");
  state.run = Math.max(0, runs.findIndex((r) => r.points.length));
  state.point = Math.max(0, runs[state.run].points.length - 1);
  compared();
  notes();
  draw();
}
begin();
