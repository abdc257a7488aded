// Asks every second how the transfers stand and shows it. Text from the controller is only ever set as text.
"use strict";

const EVERY_MS = 1000;
const KEPT = 600; // rates that are kept of a transfer
const at = (id) => document.getElementById(id);
const rates = new Map(); // by transfer: [seconds, bit/s]
let chosen = null; // what the user clicked; the newest otherwise
let drawn = ""; // which plan the picture shows

function element(name, text, className) {
  const node = document.createElement(name);
  if (text !== undefined) node.textContent = text;
  if (className) node.className = className;
  return node;
}

function scaled(value, units, base) {
  let i = 0;
  while (value >= base && i + 1 < units.length) { value /= base; i += 1; }
  return `${value >= 100 || i === 0 ? value.toFixed(0) : value.toFixed(1)} ${units[i]}`;
}
const rate = (bps) => scaled(bps, ["bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"], 1000);
const size = (bytes) => scaled(bytes, ["B", "KiB", "MiB", "GiB", "TiB"], 1024);
function time(seconds) {
  if (seconds < 90) return `${Math.ceil(seconds)} s`;
  return seconds < 5400 ? `${Math.ceil(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

async function ask(path) {
  const reply = await fetch(path);
  if (!reply.ok) throw new Error(await reply.text());
  return reply.json();
}

function stateOf(d) {
  if (d.verdict) return [d.verdict.verdict, d.verdict.reason];
  if (d.away) return ["away", d.away];
  return [d.postponed ? "left for later" : "", ""];
}

function note(t) {
  const open = t.destinations.filter((d) => !d.verdict);
  if (t.outcome || open.length === 0) return;
  const kept = rates.get(t.id) ?? [];
  kept.push([Date.now() / 1000, Math.min(...open.map((d) => d.rate_bps))]);
  rates.set(t.id, kept.slice(-KEPT));
}

function showRates(t) {
  const kept = rates.get(t.id) ?? [];
  const picture = at("rates");
  picture.replaceChildren();
  const bound = t.bound_bps ?? 0;
  const most = Math.max(bound, ...kept.map((k) => k[1])) * 1.1;
  at("graph").hidden = kept.length < 2 || most === 0;
  at("scale").textContent = bound ? `dashed: ${rate(bound)}, which no plan can exceed` : "";
  if (at("graph").hidden) return;
  const shape = (name, attributes) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    picture.append(node);
  };
  const first = kept[0][0], span = kept[kept.length - 1][0] - first;
  const y = (bps) => (120 - (120 * bps) / most).toFixed(1);
  if (bound) shape("line", { x1: 0, x2: 600, y1: y(bound), y2: y(bound) });
  const points = kept.map(([s, bps]) => `${((600 * (s - first)) / span).toFixed(1)},${y(bps)}`);
  shape("polyline", { points: points.join(" ") });
}

function show(t) {
  at("none").hidden = Boolean(t);
  at("shown").hidden = !t;
  if (!t) return;
  at("title").textContent = `${t.source_path} from ${t.source}`;
  const facts = [t.outcome ?? t.phase];
  if (t.length_bytes !== null) facts.push(size(t.length_bytes));
  if (t.scheme) facts.push(`${t.scheme} at ${rate(t.planned_bps)} planned, bound ${rate(t.bound_bps)}`);
  if (t.attempts > 1) facts.push(`attempt ${t.attempts}`);
  if (t.congestion_controls.length) facts.push(t.congestion_controls.join(", "));
  if (t.suspects.length) facts.push(`avoided for changing data: ${t.suspects.join(", ")}`);
  if (t.last_trouble && !t.outcome) facts.push(t.last_trouble);
  at("state").textContent = facts.join(" · ");
  at("destinations").replaceChildren(...t.destinations.map((d) => {
    const row = element("tr");
    const length = t.length_bytes ?? 0;
    const bar = element("progress");
    bar.max = Math.max(length, 1);
    bar.value = length === 0 && d.verdict ? 1 : d.verified_bytes;
    const holder = element("td");
    holder.append(bar);
    const left = d.rate_bps > 0 && !d.verdict ? time(((length - d.verified_bytes) * 8) / d.rate_bps) : "";
    const [word, reason] = stateOf(d);
    const state = element("td", reason ? `${word}: ${reason}` : word, word && word !== "done" ? "bad" : "");
    row.append(
      element("td", d.site),
      element("td", size(d.verified_bytes), "number"),
      holder,
      element("td", d.verdict ? "" : rate(d.rate_bps), "number"),
      element("td", left, "number"),
      state,
    );
    return row;
  }));
  showRates(t);
  const plan = `/plan/${t.id}?attempt=${t.attempts}&scheme=${t.scheme ?? ""}`;
  if (plan !== drawn) {
    drawn = plan;
    at("plan").src = plan;
  }
}

function list(transfers, shown) {
  const rows = [...transfers].reverse().map((t) => {
    const row = element("li");
    const button = element("button", `${t.id}: ${t.source_path}`);
    const done = t.destinations.filter((d) => d.verdict?.verdict === "done").length;
    button.append(element("small", `${t.outcome ?? t.phase}, ${done} of ${t.destinations.length} done`));
    button.setAttribute("aria-current", String(t === shown));
    button.addEventListener("click", () => { chosen = t.id; refresh(); });
    row.append(button);
    return row;
  });
  at("transfers").replaceChildren(...rows);
}

async function refresh() {
  try {
    const [network, transfers] = await Promise.all([ask("/topology"), ask("/transfers")]);
    at("trouble").hidden = true;
    const up = network.sites.filter((s) => s.up).length;
    at("network").textContent = `${network.name}: ${up} of ${network.sites.length} sites up`;
    at("sites").replaceChildren(...network.sites.map((s) => element("li", s.name, s.up ? "up" : "down")));
    transfers.forEach(note);
    const shown = transfers.find((t) => t.id === chosen) ?? transfers[transfers.length - 1];
    list(transfers, shown);
    show(shown);
  } catch (error) {
    at("trouble").textContent = error.message;
    at("trouble").hidden = false;
  }
}

async function forever() {
  await refresh();
  setTimeout(forever, EVERY_MS);
}
forever();
