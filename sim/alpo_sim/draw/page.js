"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const [STATE, STATUS, TERM, VOTE, LEADER, LAST, DISK, GUARANTEED, RUNS] = [0, 1, 2, 3, 4, 5, 6, 7, 8];
const at = (id) => document.getElementById(id);
const svg = document.querySelector("#picture svg");
const ids = Object.keys(data.start);

// The views of all servers after every moment; [0] is as it begins.
const views = [data.start];
data.moments.forEach((moment, n) => views.push({ ...(data.jumps[n] || views[n]), [moment.s]: moment.v }));

let now = 0; // so many moments have been
const loud = () => at("quiet").checked;
const shown = (n) => n === 0 || n === data.moments.length || loud() || !data.moments[n - 1].q;

function step(by) {
  let n = now + by;
  while (n > 0 && n < data.moments.length && !shown(n)) n += by;
  if (n >= 0 && n <= data.moments.length) go(n);
}

const make = (name, attributes) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const key in attributes) made.setAttribute(key, attributes[key]);
  return made;
};
const cursor = make("g", { "pointer-events": "none" });
svg.append(cursor);

function go(n) {
  now = n;
  for (const each of svg.querySelectorAll(".hot")) each.classList.remove("hot");
  cursor.replaceChildren();
  const moment = n ? data.moments[n - 1] : null;
  if (moment) {
    const [x, end, right] = moment.x;
    cursor.append(make("path", { d: `M80 ${moment.y}H${right + 8}`, stroke: "#0072B2", "stroke-width": 1.2 }));
    cursor.append(make("rect", {
      x: x - 4, y: moment.y - 5, width: end - x + 8, height: 10, rx: 5, fill: "#0072B2", "fill-opacity": 0.25,
      stroke: "#0072B2", "stroke-width": 2,
    }));
    for (const number of moment.f) for (const each of svg.querySelectorAll(".f" + number)) each.classList.add("hot");
    scrollTo(moment.y);
  }
  tell(moment);
  at("servers").replaceChildren(...ids.map((id) => card(id, moment)));
  const ms = moment ? `${(moment.t / 1000).toLocaleString("en", { minimumFractionDigits: 3 })} ms` : "the beginning";
  at("where").textContent = `${now} of ${data.moments.length} · ${ms}`;
}

function scrollTo(y) {
  const box = at("picture"), view = svg.viewBox.baseVal, here = (y - view.y) * svg.clientWidth / view.width;
  if (here < box.scrollTop + 40 || here > box.scrollTop + box.clientHeight - 40) {
    box.scrollTop = here - box.clientHeight / 3;
  }
}

function element(name, text, className) {
  const made = document.createElement(name);
  if (text) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function tell(moment) {
  const parts = [element("h2", moment ? `Server ${moment.s}` : "As it begins")];
  const list = element("ul");
  for (const words of moment ? moment.w : ["Step on with →."]) list.append(element("li", words));
  parts.push(list);
  if (data.failure && now === data.moments.length) {
    parts.push(element("p", `BROKEN: ${data.failure[0]}: ${data.failure[1]}`, "broken"));
  }
  at("what").replaceChildren(...parts);
}

function card(id, moment) {
  const view = views[now][id], before = (data.jumps[now - 1] || views[Math.max(0, now - 1)])[id];
  const made = element("div", "", `server ${view[STATE]}`);
  if (moment && String(moment.s) === id) made.classList.add("acts");
  const started = view[STATUS] !== "EMPTY" && view[STATUS] !== "STARTING";
  if (started && view[TERM]) made.style.background = data.terms[view[TERM]][0];
  made.append(element("h3", `server ${id}: ${view[STATE]}`));
  const rows = [
    ["term", view[TERM], before[TERM]], ["vote", view[VOTE] || "–", before[VOTE] || "–"],
    ["follows", view[LEADER] || "–", before[LEADER] || "–"],
    ["guaranteed", view[GUARANTEED], before[GUARANTEED]], ["on disk", view[DISK], before[DISK]],
  ];
  if (view[STATUS] && view[STATUS] !== "VOTING") rows.unshift(["status", view[STATUS], before[STATUS]]);
  const line = element("div", "", "facts");
  for (const [name, value, old] of rows) {
    const fact = element("span", `${name} `);
    fact.append(element("b", String(value), value === old ? "" : "changed"));
    line.append(fact);
  }
  made.append(line, log(view));
  return made;
}

function log(view) {
  const made = element("div", "", "log"), last = view[LAST], first = Math.max(1, last - data.tail + 1);
  if (first > 1) made.append(`1–${first - 1} …`);
  for (let id = first; id <= last; id++) {
    const term = termAt(view[RUNS], id), chip = element("span", String(id));
    chip.style.borderColor = (data.terms[term] || data.terms[0])[1];
    chip.style.background = (data.terms[term] || data.terms[0])[0];
    if (id <= view[DISK]) chip.classList.add("disk");
    if (id <= view[GUARANTEED]) chip.classList.add("sure");
    const sure = id <= view[GUARANTEED] ? ", guaranteed" : id <= view[DISK] ? ", on disk" : ", in memory only";
    chip.title = `${id} of term ${term}: ${data.entries[`${id}.${term}`] || "from before"}${sure}`;
    made.append(chip);
  }
  return made;
}

function termAt(runs, id) {
  let term = 0;
  for (const [of, first] of runs) if (first <= id) term = of;
  return term;
}

svg.addEventListener("click", (event) => {
  const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
  let best = -1, least = Infinity;
  data.moments.forEach((moment, n) => {
    const [x, end] = moment.x;
    if (!shown(n + 1)) return;
    const aside = point.x < x ? x - point.x : Math.max(0, point.x - end);
    const far = Math.abs(moment.y - point.y) + aside / 4;
    if (far < least) [best, least] = [n + 1, far];
  });
  if (best >= 0) go(best);
});
document.addEventListener("keydown", (event) => {
  const done = { ArrowRight: () => step(1), ArrowLeft: () => step(-1), Home: () => go(0), End: () => go(data.moments.length) };
  if (done[event.key]) { done[event.key](); event.preventDefault(); }
});
at("first").onclick = () => go(0);
at("back").onclick = () => step(-1);
at("on").onclick = () => step(1);
at("last").onclick = () => go(data.moments.length);
go(0);
