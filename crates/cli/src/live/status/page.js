// Asks for nodes, links, streams and events once a second, and draws them. Text from outside becomes text nodes, never markup.
"use strict";

const TIERS = ["source", "reflector", "edge"];
const EVENTS = 30; // events in the table
const ROUNDS = 10; // rounds in the table
const GAP = 46; // distance of two nodes of one tier in the picture
let chosen = null; // stream whose tree alone is drawn
let last = null;

const streamOf = (stream) => `${stream.channel}/${stream.rendition}`;
const linkOf = (from, to) => `${from} \u2192 ${to}`;

function row(texts, numbers) {
  const tr = element("tr");
  tr.append(...texts.map((text) => element("td", text)), ...numbers.map((number) => element("td", number, "number")));
  return tr;
}

function drawTree(nodes, links, streams) {
  const picture = at("tree");
  picture.replaceChildren();
  const shape = shapesOf(picture);
  const tiers = TIERS.map((tier) => nodes.filter((node) => node.tier === tier));
  const height = GAP * Math.max(1, ...tiers.map((tier) => tier.length)) + 10;
  picture.setAttribute("viewBox", `0 0 900 ${height}`);
  const places = new Map();
  tiers.forEach((tier, column) => tier.forEach((node, i) => {
    places.set(node.name, { x: 90 + 360 * column, y: (height * (i + 0.5)) / tier.length, node });
  }));
  const carried = new Map();
  for (const stream of streams) {
    const key = linkOf(stream.parent, stream.node);
    carried.set(key, (carried.get(key) ?? 0) + stream.bitrate_bps);
  }
  for (const link of links) {
    const [from, to] = [places.get(link.from), places.get(link.to)];
    if (!from || !to) continue;
    const used = carried.get(linkOf(link.from, link.to)) ?? 0;
    const state = link.believed_bps === 0 ? "failed" : used > 0 ? "used" : "idle";
    const share = link.believed_bps > 0 ? Math.min(used / link.believed_bps, 1) : 0;
    shape("line", { class: `link ${state}`, x1: from.x + 62, y1: from.y, x2: to.x - 62, y2: to.y, "stroke-width": used > 0 ? (1.5 + 5 * share).toFixed(1) : 1 });
  }
  for (const { x, y, node } of places.values()) {
    const state = !node.is_up ? "away" : node.is_draining ? "draining" : "up";
    shape("rect", { class: `node ${state}`, x: x - 60, y: y - 17, width: 120, height: 34, rx: 7 });
    const name = node.name.length > 15 ? `${node.name.slice(0, 14)}\u2026` : node.name;
    shape("text", { x, y: y - 2, "text-anchor": "middle" }, name);
    const told = state === "up" ? (node.tier === "edge" ? count(node.viewers, "viewer") : count(node.streams, "stream")) : state;
    shape("text", { class: "small", x, y: y + 12, "text-anchor": "middle" }, told);
  }
}

function showStreams(streams) {
  const all = new Map();
  for (const stream of streams) all.set(streamOf(stream), (all.get(streamOf(stream)) ?? 0) + 1);
  if (chosen !== null && !all.has(chosen)) chosen = null;
  const button = (name, told, value) => {
    const item = element("li");
    const press = element("button", name);
    press.append(element("small", told));
    press.setAttribute("aria-current", String(chosen === value));
    press.addEventListener("click", () => { chosen = value; show(last); });
    item.append(press);
    return item;
  };
  const names = [...all.keys()].sort();
  at("streams").replaceChildren(
    button("all streams", count(names.length, "stream"), null),
    ...names.slice(0, 200).map((name) => button(name, count(all.get(name), "link"), name)),
  );
}

function show(state) {
  last = state;
  const { nodes, links, streams, rounds, events } = state;
  at("sites").replaceChildren(...nodes.map((node) => element("li", node.name, node.is_up ? "up" : "down")));
  showStreams(streams);
  at("shown").textContent = chosen === null ? "All streams" : `Tree of ${chosen}`;
  const drawn = chosen === null ? streams : streams.filter((stream) => streamOf(stream) === chosen);
  drawTree(nodes, links, drawn);
  const on = (link) => streams.filter((stream) => stream.parent === link.from && stream.node === link.to).length;
  at("links").replaceChildren(...links.map((link) => row([linkOf(link.from, link.to)], [
    String(on(link)), rate(link.used_bps), link.believed_bps > 0 ? rate(link.believed_bps) : "failed",
    link.believed_bps > 0 ? `${Math.round((100 * link.used_bps) / link.believed_bps)} %` : "\u2013", String(link.cost),
  ])));
  at("events").replaceChildren(...events.slice(-EVENTS).reverse().map((event) => row([clock(event.unix_ms), event.node ?? "", event.text], [])));
  at("rounds").replaceChildren(...rounds.slice(-ROUNDS).reverse().map((round) => row([String(round.number), clock(round.unix_ms)], [
    String(round.requests), String(round.requests_served), `${(100 * round.gap_share).toFixed(2)} %`, String(round.kept_trees), `${Math.round(1000 * round.took_s)} ms`,
  ])));
  const up = nodes.filter((node) => node.is_up).length;
  const viewers = nodes.reduce((sum, node) => sum + (node.tier === "edge" ? node.viewers : 0), 0);
  at("summary").textContent = `${up} of ${count(nodes.length, "node")}, ${count(viewers, "viewer")}`;
}

repeat(async () => show(await ask("state")));
