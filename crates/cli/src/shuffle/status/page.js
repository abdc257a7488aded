// Asks for all that is shown, once a second, and shows it. Text from outside becomes text nodes, never markup.
"use strict";

const find = (id) => document.getElementById(id);

function scaled(value, unit) {
  let prefix = 0;
  while (value >= 1000 && prefix < 3) {
    value /= 1000;
    prefix += 1;
  }
  return `${value.toFixed(prefix && value < 100 ? 1 : 0)} ${["", "k", "M", "G"][prefix]}${unit}`;
}

function row(texts, numbers) {
  const cell = (content, className) => {
    const td = document.createElement("td");
    td.textContent = content;
    td.className = className;
    return td;
  };
  const tr = document.createElement("tr");
  tr.append(...texts.map((text) => cell(text, "")), ...numbers.map((number) => cell(number, "number")));
  return tr;
}

function show({ hosts, under_way, history }) {
  find("sites").replaceChildren(...hosts.map((host) => {
    const li = document.createElement("li");
    li.className = host.up ? "up" : "down";
    const behind = (host.uplinks ?? []).map(({ name, rate_bps }) => `, behind ${name} ${scaled(rate_bps, "bit/s")}`);
    li.textContent = `${host.name} (${scaled(host.link_rate_bps, "bit/s")}${behind.join("")})`;
    return li;
  }));
  const flows = under_way.transfers.flatMap((transfer) => transfer.flows.map((flow) => row([
    transfer.name, flow.host, `${flow.local} \u2192 ${flow.remote}`,
  ], [
    scaled(flow.remaining_bytes, "B"), flow.rate_bps === null ? "idle" : scaled(flow.rate_bps, "bit/s"),
  ])));
  find("flows").replaceChildren(...flows);
  const more = under_way.flows_left_out ? `, ${under_way.flows_left_out} flows more` : "";
  find("summary").textContent = `${under_way.transfers.length} transfers, ${flows.length} flows${more}`;
  find("ended").replaceChildren(...history.map((ended) => row([ended.name], [
    ended.flows, scaled(ended.bytes, "B"),
    `${((ended.ended_unix_ms - ended.began_unix_ms) / 1000).toFixed(1)} s`,
  ])));
}

async function refresh() {
  const trouble = find("trouble");
  try {
    const reply = await fetch("/state");
    if (!reply.ok) throw new Error(await reply.text());
    show(await reply.json());
    trouble.hidden = true;
  } catch (error) {
    trouble.textContent = error.message;
    trouble.hidden = false;
  }
  setTimeout(refresh, 1000);
}

refresh();
