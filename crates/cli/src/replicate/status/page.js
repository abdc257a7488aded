// Asks every second how the transfers stand and shows it. Text from the controller is only ever set as text.
"use strict";

const KEPT = 1800; // rates that are kept of a transfer: half an hour
const FAR = 5; // a bound so many times the fastest rate is not drawn
const rates = new Map(); // by transfer: [seconds, bit/s]
let chosen = null; // what the user clicked; the newest otherwise
let drawn = ""; // which plan the picture shows

function stateOf(d) {
  if (d.verdict) return [d.verdict.verdict, d.verdict.reason];
  if (d.away) return ["away", d.away];
  return [d.postponed ? "after the others" : "", ""];
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
  const bound = t.bound_bps ?? 0, fastest = Math.max(...kept.map((k) => k[1]));
  // A bound far above, as of a transfer that is held to a rate, would press the line to the ground: then it is said, not drawn.
  const isDrawn = bound > 0 && (fastest === 0 || bound <= FAR * fastest);
  const most = Math.max(isDrawn ? bound : 0, fastest) * 1.05;
  at("graph").hidden = kept.length < 2 || !(most > 0);
  const where = isDrawn ? "dashed:" : "far above this picture:";
  at("scale").textContent = bound ? `${where} ${rate(bound)}, the most that any plan could reach on these links` : "";
  if (at("graph").hidden) return;
  const shape = shapesOf(picture);
  const left = 90, right = 690, top = 10, bottom = 150;
  const began = kept[0][0], span = Math.max(kept[kept.length - 1][0] - began, 1);
  const x = (s) => (left + ((right - left) * (s - began)) / span).toFixed(1);
  const y = (bps) => (bottom - ((bottom - top) * bps) / most).toFixed(1);
  const byRate = step(most, 4), bySecond = step(span, 6);
  for (let bps = 0; bps <= most; bps += byRate) {
    shape("line", { class: "grid", x1: left, x2: right, y1: y(bps), y2: y(bps) });
    shape("text", { x: left - 8, y: Number(y(bps)) + 4, "text-anchor": "end" }, rate(bps));
  }
  for (let s = 0; s <= span; s += bySecond) {
    shape("text", { x: x(began + s), y: bottom + 20, "text-anchor": "middle" }, s === 0 ? clock(began * 1000) : `+${Number(s.toFixed(1))} s`);
  }
  if (isDrawn) shape("line", { class: "bound", x1: left, x2: right, y1: y(bound), y2: y(bound) });
  shape("polyline", { points: kept.map(([s, bps]) => `${x(s)},${y(bps)}`).join(" ") });
}

// When it began, how long it has taken and how fast it was in the mean.
function whenOf(t) {
  if (!t.began_unix_ms) return "";
  const end = t.ended_unix_ms ?? Date.now();
  const seconds = Math.max((end - t.began_unix_ms) / 1000, 0.001);
  const least = Math.min(...t.destinations.map((d) => d.verified_bytes));
  const said = [`began ${clock(t.began_unix_ms)}`];
  said.push(t.outcome ? `took ${time(seconds)}` : `${time(seconds)} so far`);
  if (least > 0) said.push(`mean rate at the slowest destination ${rate((least * 8) / seconds)}`);
  return said.join(" \u00b7 ");
}

function show(t) {
  at("none").hidden = Boolean(t);
  at("shown").hidden = !t;
  if (!t) return;
  at("title").textContent = `${t.source_path} from ${t.source}`;
  at("when").textContent = whenOf(t);
  const facts = [t.outcome ?? t.phase];
  if (t.length_bytes !== null) facts.push(size(t.length_bytes));
  if (t.scheme) facts.push(`scheme ${t.scheme}, planned ${rate(t.planned_bps)} of at most ${rate(t.bound_bps)}`);
  if (t.attempts > 1) facts.push(count(t.attempts, "attempt"));
  if (t.congestion_controls.length) facts.push(`congestion control ${t.congestion_controls.join(", ")}`);
  if (t.suspects.length) facts.push(`avoided for changing data: ${t.suspects.join(", ")}`);
  if (t.last_trouble && !t.outcome) facts.push(t.last_trouble);
  at("state").textContent = facts.join(" \u00b7 ");
  at("destinations").replaceChildren(...t.destinations.map((d) => {
    const row = element("tr");
    const length = t.length_bytes ?? 0;
    const bar = element("progress");
    bar.max = Math.max(length, 1);
    bar.value = length === 0 && d.verdict ? 1 : d.verified_bytes;
    const holder = element("td", undefined, "bar");
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
  // A restarted controller has no plan of earlier attempts.
  const which = t.attempts > 1 ? "The plan of the attempt with the most destinations" : "The plan";
  at("planned").textContent = t.scheme ? which : "The network";
  const plan = `plan/${t.id}?attempt=${t.attempts}&scheme=${t.scheme ?? ""}`;
  if (plan !== drawn) {
    drawn = plan;
    at("plan-dark").srcset = `${plan}&dark=true`;
    at("plan").src = plan;
  }
}

function list(transfers, shown) {
  const rows = [...transfers].reverse().map((t) => {
    const row = element("li");
    const button = element("button", `${t.id}: ${t.source_path}`);
    const done = t.destinations.filter((d) => d.verdict?.verdict === "done").length;
    const when = t.began_unix_ms ? `${clock(t.began_unix_ms)}, ` : "";
    button.append(element("small", `${when}${t.outcome ?? t.phase}, ${done} of ${t.destinations.length} done`));
    button.setAttribute("aria-current", String(t === shown));
    button.addEventListener("click", () => { chosen = t.id; refresh(); });
    row.append(button);
    return row;
  });
  at("transfers").replaceChildren(...rows);
}

const refresh = repeat(async () => {
  const [network, transfers] = await Promise.all([ask("topology"), ask("transfers")]);
  const up = network.sites.filter((s) => s.up).length;
  const name = network.name === "topology" ? "" : `${network.name}: `; // what a file without a name is called
  at("network").textContent = `${name}${up} of ${count(network.sites.length, "site")} up, ${count(transfers.length, "transfer")}`;
  at("sites").replaceChildren(...network.sites.map((s) => element("li", s.name, s.up ? "up" : "down")));
  transfers.forEach(note);
  const shown = transfers.find((t) => t.id === chosen) ?? transfers[transfers.length - 1];
  list(transfers, shown);
  show(shown);
});
