// Asks for all that is shown, once a second, and shows it. Text from outside becomes text nodes, never markup.
"use strict";

const OVER_S = 3; // over how long a flow's rate is taken
let seen = new Map(); // by flow: [seconds, remaining bytes] of the last polls

function row(texts, numbers) {
  const tr = element("tr");
  tr.append(...texts.map((text) => element("td", text)), ...numbers.map((number) => element("td", number, "number")));
  return tr;
}

// How fast what remains of a flow has become less; nothing before the second look, or where its program announced more.
function moves(key, remaining, now, next) {
  const kept = (seen.get(key) ?? []).filter(([when]) => now - when <= OVER_S);
  const [when, before] = kept[0] ?? [now, remaining];
  next.set(key, [...kept, [now, remaining]]);
  return now > when && before >= remaining ? ((before - remaining) * 8) / (now - when) : null;
}

function show({ hosts, under_way, history }) {
  at("sites").replaceChildren(...hosts.map((host) => {
    const behind = (host.uplinks ?? []).map(({ name, rate_bps }) => `, behind ${name} ${rate(rate_bps)}`);
    return element("li", `${host.name} (${rate(host.link_rate_bps)}${behind.join("")})`, host.up ? "up" : "down");
  }));
  const now = Date.now() / 1000, next = new Map();
  const flows = under_way.coflows.flatMap((coflow) => coflow.flows.map((flow) => {
    const moved = moves(`${flow.host} ${flow.local} ${flow.remote}`, flow.remaining_bytes, now, next);
    return row([
      coflow.name, clock(coflow.since_unix_ms), flow.host, `${flow.local} \u2192 ${flow.remote}`,
    ], [
      size(flow.remaining_bytes), flow.rate_bps === null ? "none: idle" : rate(flow.rate_bps), moved === null ? "" : rate(moved),
    ]);
  }));
  seen = next;
  at("flows").replaceChildren(...flows);
  at("none").hidden = flows.length > 0;
  at("never").hidden = history.length > 0;
  const said = [count(under_way.coflows.length, "coflow"), count(flows.length, "flow")];
  if (under_way.flows_left_out) said.push(`${count(under_way.flows_left_out, "more flow")} not shown`);
  if (under_way.allocator) said.push(`scheduler ${under_way.allocator}`);
  at("summary").textContent = said.join(", ");
  at("ended").replaceChildren(...history.map((ended) => {
    const seconds = Math.max((ended.ended_unix_ms - ended.began_unix_ms) / 1000, 0.001);
    return row([ended.name, clock(ended.began_unix_ms)], [
      ended.flows, size(ended.moved_bytes), time(seconds), rate((ended.moved_bytes * 8) / seconds),
    ]);
  }));
}

repeat(async () => show(await ask("state")));
