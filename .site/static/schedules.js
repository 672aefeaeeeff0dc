// The schedules' page: sliders, and charts that are drawn here, without a kernel.
//
// `ALKIT_SCHEDULES` holds, by "layers/workers" and method, how many micro-batches a batch has, how many
// layers, from the lowest, run their forward again in their backward, and tasks that are sorted so that whatever one waits for stands
// before it: [worker, kind, layer, batch, numbers of tasks that it waits for ...].
"use strict";

const NAMES = {
  bp: "backprop, one worker", bp_cut: "backprop, cut", gpipe: "GPipe", "1f1b": "1F1B",
  zero_bubble: "zero bubble", interleaved_1f1b: "interleaved 1F1B", looped_bfs: "looped BFS",
  zbv: "ZB-V", dualpipev: "DualPipeV", ddg: "DDG", ddg_barrier: "DDG, barrier", fr: "FR",
  fr_barrier: "FR, barrier", fr_1f1b: "FR, 1F1B order", pipedream: "PipeDream",
  pipedream_recompute: "PipeDream, recomputed", "2bw": "2BW",
  dfa: "direct feedback", al: "AL, one worker", al_m: "AL-M", al_fm: "AL-FM",
  al_pipeline: "AL and local pipeline",
};
const SHOWN = ["bp_cut", "1f1b", "pipedream", "al_pipeline"]; // to begin with
const KINDS = ["forward", "backward", "update"];
const ROW = 18, LEFT = 66, WIDE = 760;

// Start and end of every task, for costs of a whole batch [forward, backward, update].
function walk({ micro, again, tasks }, [f, b, u]) {
  const takes = [f, b, u * micro, b / 2, b / 2].map((each) => each / micro);
  const free = [], spans = [];
  for (const [worker, kind, layer, , ...waits] of tasks) {
    const start = Math.max(free[worker] || 0, ...waits.map((at) => spans[at][1]), 0);
    const more = kind === 1 && layer < again ? f / micro : 0;
    spans.push([start, (free[worker] = start + takes[kind] + more)]);
  }
  return spans;
}

// The time of a step once the pipeline is filled: the pace of the slowest layer from a quarter of its
// batches on, as `Timeline.steady_s` has it.
function stepOf({ tasks }, spans) {
  const ends = [];
  tasks.forEach(([, , layer, batch], at) => {
    const own = (ends[layer] ||= []);
    own[batch] = Math.max(own[batch] || 0, spans[at][1]);
  });
  return Math.max(...ends.map((own) => {
    const first = Math.floor(own.length / 4), last = own.length - 1;
    return (own[last] - own[first]) / (last - first);
  }));
}

const svg = (name, about, text) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(about)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
};

function chart(method, graph, spans, longest) {
  const { tasks } = graph, workers = Math.max(...tasks.map(([worker]) => worker)) + 1;
  const high = workers * ROW + 16, wide = (s) => (s / longest) * (WIDE - LEFT);
  const said = `${NAMES[method]}: ${workers} workers, a step takes ${stepOf(graph, spans).toFixed(2)}`;
  const picture = svg("svg", { viewBox: `0 0 ${WIDE} ${high}`, role: "img", "aria-label": said });
  for (let worker = 0; worker < workers; worker++) {
    const y = worker * ROW + 13;
    picture.append(svg("text", { x: 0, y, class: "worker" }, `worker ${worker}`));
  }
  tasks.forEach(([worker, own, stage, batch], at) => {
    const kind = own > 2 ? 1 : own; // both halves of a backward look like one
    const [start, end] = spans[at], x = LEFT + wide(start), y = worker * ROW;
    const box = svg("rect", { x, y, width: wide(end - start), height: ROW - 3 });
    box.setAttribute("class", `${KINDS[kind]} ${batch % 2 ? "odd" : "even"}`);
    box.append(svg("title", {}, `${KINDS[kind]} of layer ${stage}, batch ${batch}`));
    picture.append(box);
    if (wide(end - start) > 9) {
      picture.append(svg("text", { x: x + wide(end - start) / 2, y: y + 12, class: "in" }, stage));
    }
  });
  const unit = [1, 2, 5, 10, 20, 50, 100].find((each) => longest / each < 12) || 200;
  for (let at = 0; at <= longest; at += unit) {
    picture.append(svg("text", { x: LEFT + wide(at), y: workers * ROW + 12, class: "time" }, at));
  }
  return picture;
}

function draw(page) {
  const value = (name) => Number(page.querySelector(`[name=${name}]`).value);
  const costs = KINDS.map(value), layers = value("layers");
  const all = ALKIT_SCHEDULES[`${layers}/${Math.min(layers, value("workers"))}`];
  for (const box of page.querySelectorAll("[name=method]")) box.disabled = !(box.value in all);
  for (const shown of page.querySelectorAll("output")) {
    shown.textContent = page.querySelector(`[name=${shown.htmlFor}]`).value;
  }
  const asked = [...page.querySelectorAll("[name=method]:checked:enabled")].map((box) => box.value);
  const found = asked.map((method) => [method, all[method], walk(all[method], costs)]);
  const longest = Math.max(1, ...found.map(([, , spans]) => Math.max(...spans.map(([, end]) => end))));
  const steps = found.map(([method, graph, spans]) => [method, stepOf(graph, spans)]);
  page.querySelector(".times").textContent =
    "A step takes: " + steps.map(([m, s]) => `${NAMES[m]} ${s.toFixed(2)}`).join(" · ");
  const charts = page.querySelector(".charts");
  charts.replaceChildren();
  for (const [method, graph, spans] of found) {
    const head = document.createElement("p");
    head.textContent = `${NAMES[method]}: ${stepOf(graph, spans).toFixed(2)} a step`;
    charts.append(head, chart(method, graph, spans, longest));
  }
}

function control(name, from, to, step, at) {
  const line = document.createElement("label");
  line.innerHTML =
    `<span>${name}</span><input type="range" id="${name}" name="${name}" min="${from}" max="${to}"` +
    ` step="${step}" value="${at}"><output for="${name}"></output>`;
  return line;
}

document.addEventListener("DOMContentLoaded", () => {
  const page = document.getElementById("alkit-schedules");
  if (!page) return;
  const controls = document.createElement("div");
  controls.className = "controls";
  controls.append(
    control("layers", 1, 8, 1, 4), control("workers", 1, 8, 1, 4),
    control("forward", 0.1, 4, 0.1, 1), control("backward", 0.1, 4, 0.1, 2),
    control("update", 0.1, 4, 0.1, 0.3),
  );
  const legend = document.createElement("p");
  legend.className = "legend";
  legend.innerHTML = KINDS.map((kind) => `<span class="${kind}"></span> ${kind}`).join(" ") +
    " · numbers are layers, light and dark alternate with the batch, time runs to the right";
  const methods = document.createElement("p");
  methods.className = "methods";
  methods.innerHTML = Object.entries(NAMES).map(([method, name]) =>
    `<label><input type="checkbox" name="method" value="${method}"` +
    `${SHOWN.includes(method) ? " checked" : ""}> ${name}</label>`).join(" ");
  const times = document.createElement("p"), charts = document.createElement("div");
  times.className = "times";
  times.setAttribute("aria-live", "polite");
  charts.className = "charts";
  page.replaceChildren(controls, methods, times, legend, charts);
  page.addEventListener("input", () => draw(page));
  draw(page);
});
