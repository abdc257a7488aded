// Asks for all that is shown, once a second, and shows it. Text from outside becomes text nodes, never markup.
"use strict";

const LINES = 4; // networks that have a line of their own; the others have one together
const ROUNDS = 12; // rounds in the table; the picture has all

function row(texts, numbers, more = []) {
  const tr = element("tr");
  tr.append(...texts.map((text) => element("td", text)), ...numbers.map((number) => element("td", number, "number")), ...more);
  return tr;
}
const number = (n) => n.toLocaleString("en");
const percent = (share, digits = 0) => `${(100 * share).toFixed(digits)} %`;
const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);

// The networks that have had the most clients, each with its clients in these rounds; the others as one.
function lines(rounds) {
  const all = new Map();
  for (const round of rounds) {
    for (const [name, sessions] of Object.entries(round.sessions)) all.set(name, (all.get(name) ?? 0) + sessions);
  }
  const names = [...all.keys()].sort((a, b) => all.get(b) - all.get(a) || a.localeCompare(b));
  const of = (some) => rounds.map((round) => sum(some.map((name) => round.sessions[name] ?? 0)));
  const first = names.slice(0, names.length > LINES + 1 ? LINES : LINES + 1), rest = names.slice(first.length);
  const colours = colour(first, rest.length ? LINES : LINES + 1);
  const own = first.map((name) => ({ name, colour: colours.get(name), values: of([name]) }));
  return rest.length ? [...own, { name: count(rest.length, "other"), colour: LINES, values: of(rest) }] : own;
}

const taken = new Map(); // colour by network, for as long as the page is open

// A colour below `limit` for each of these networks: its colour of before, or else the first free one.
function colour(names, limit) {
  const had = names.filter((name) => taken.get(name) < limit);
  const colours = new Map(had.map((name) => [name, taken.get(name)]));
  for (const name of [...names].sort()) {
    const used = new Set(colours.values());
    if (!colours.has(name)) colours.set(name, [...Array(limit).keys()].find((i) => !used.has(i)));
  }
  for (const [name, own] of taken) if ([...colours.values()].includes(own)) taken.delete(name);
  for (const [name, own] of colours) taken.set(name, own);
  return colours;
}

function showPicture(rounds) {
  const picture = at("rates");
  picture.replaceChildren();
  at("graph").hidden = rounds.length < 2;
  if (at("graph").hidden) return;
  const shape = shapesOf(picture);
  const left = 70, right = 660, top = 10, bottom = 150;
  const drawn = lines(rounds);
  const most = 1.05 * Math.max(1, ...drawn.flatMap((line) => line.values));
  const began = rounds[0].ended_unix_ms, span = Math.max(rounds.at(-1).ended_unix_ms - began, 1);
  const x = (round) => (left + ((right - left) * (round.ended_unix_ms - began)) / span).toFixed(1);
  const y = (clients) => bottom - ((bottom - top) * clients) / most;
  const by = Math.max(1, step(most, 4));
  for (let clients = 0; clients <= most; clients += by) {
    shape("line", { class: "grid", x1: left, x2: right, y1: y(clients).toFixed(1), y2: y(clients).toFixed(1) });
    shape("text", { x: left - 8, y: y(clients) + 4, "text-anchor": "end" }, number(clients));
  }
  shape("text", { x: left, y: bottom + 20, "text-anchor": "start" }, clock(began));
  shape("text", { x: right, y: bottom + 20, "text-anchor": "end" }, clock(rounds.at(-1).ended_unix_ms));
  // Names beside the lines' ends, one below the other where those are near.
  let free = top;
  const ends = drawn.map((line) => ({ ...line, end: y(line.values.at(-1)) })).sort((a, b) => a.end - b.end);
  for (const { name, values, colour, end } of ends) {
    // A round's decision holds until the next round.
    const points = rounds.flatMap((round, n) => (n ? [`${x(round)},${y(values[n - 1]).toFixed(1)}`] : []).concat(`${x(round)},${y(values[n]).toFixed(1)}`));
    shape("polyline", { class: `c${colour}`, points: points.join(" ") });
    const below = Math.max(end + 4, free);
    shape("line", { class: `c${colour} key`, x1: right + 8, x2: right + 22, y1: below - 4, y2: below - 4 });
    shape("text", { x: right + 28, y: below }, name.length > 16 ? `${name.slice(0, 15)}\u2026` : name);
    free = below + 14;
  }
}

function show({ networks, rounds, places, places_left_out, answers_per_s }) {
  const accepted = rounds.filter((round) => round.void === null);
  at("sites").replaceChildren(...networks.map(({ name, up }) => element("li", name, up ? "up" : "down")));
  at("none").hidden = accepted.length > 0 || places.length > 0;
  showPicture(accepted);
  at("networks").replaceChildren(...networks.map((n) => row([n.name], [
    number(n.sessions), rate(n.rate_bps), number(n.playing), percent(n.reputation), percent(n.capacity_trust), n.score_bias.toFixed(2), number(n.missed),
  ])));
  at("places").replaceChildren(...places.map((place) => {
    const all = sum(place.ways.map((way) => way.sessions));
    const ways = place.ways.map((way) => `${way.network} ${way.cluster} (${percent(way.sessions / all)})`);
    const tr = row([place.location, place.isp], [number(all + place.unplaced)]);
    tr.append(element("td", ways.join(", ")), element("td", number(place.unplaced), place.unplaced ? "number bad" : "number"));
    return tr;
  }));
  at("more").hidden = places_left_out === 0;
  at("more").textContent = `and ${count(places_left_out, "place")} more, with fewer clients`;
  at("rounds").replaceChildren(...rounds.slice(-ROUNDS).reverse().map((round) => {
    const texts = [round.number ? `#${round.number}` : "", clock(round.ended_unix_ms)];
    if (round.void === null) {
      const took = round.took_s === null ? "another\u2019s" : `${number(Math.round(1000 * round.took_s))} ms`;
      return row(texts, [number(sum(Object.values(round.sessions))), number(round.moved), number(round.unplaced), percent(round.gap_share, 3), took]);
    }
    const why = element("td", `${round.void}: the decision before stands`, "bad");
    why.colSpan = 5;
    return row(texts, [], [why]);
  }));
  const up = networks.filter((network) => network.up).length;
  const said = [`${up} of ${count(networks.length, "network")}`, count(sum(networks.map((n) => n.sessions)), "client"), `${number(answers_per_s)} answers/s`];
  at("summary").textContent = said.join(", ");
}

repeat(async () => show(await ask("state")));
