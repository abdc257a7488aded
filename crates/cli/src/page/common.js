// Common parts of all pages: quantities as the terminal writes them, and repeated requests. Text
// from outside is only set as text.
"use strict";

const EVERY_MS = 1000;
const at = (id) => document.getElementById(id);

function element(name, text, className) {
  const node = document.createElement(name);
  if (text !== undefined) node.textContent = text;
  if (className) node.className = className;
  return node;
}

function scaled(value, units, base) {
  let i = 0;
  while (value >= base && i + 1 < units.length) { value /= base; i += 1; }
  const digits = i === 0 ? 0 : value >= 100 ? 0 : 1;
  return `${Number(value.toFixed(digits))} ${units[i]}`;
}
const rate = (bps) => scaled(bps, ["bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"], 1000);
const size = (bytes) => scaled(bytes, ["B", "KiB", "MiB", "GiB", "TiB"], 1024);
const count = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;

function time(seconds) {
  if (seconds < 90) return seconds < 10 ? `${seconds.toFixed(1)} s` : `${Math.round(seconds)} s`;
  return seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

function clock(unixMs) {
  const then = new Date(unixMs), today = new Date();
  const hours = then.toLocaleTimeString().replace(" ", "\u00a0");
  return then.toDateString() === today.toDateString() ? hours : `${then.toLocaleDateString()} ${hours}`;
}

// Appends a shape to a picture.
const shapesOf = (picture) => (name, attributes, text) => {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  picture.append(node);
};

// The least of 1, 2, 2.5 and 5 times a power of ten that divides `most` into at most `parts`.
function step(most, parts) {
  const power = 10 ** Math.floor(Math.log10(most / parts));
  return [1, 2, 2.5, 5, 10].map((n) => n * power).find((s) => most / s <= parts);
}

async function ask(path) {
  let reply;
  try {
    reply = await fetch(path);
  } catch {
    throw new Error("the command that serves this page has ended: start it again, and open what it prints");
  }
  if (!reply.ok) throw new Error((await reply.text()).trim());
  return reply.json();
}

// One sentence with the fault and the time of the last answer.
function trouble(error, last) {
  const since = last === null ? "No answer" : `No answer since ${clock(last)}`;
  return `${since}, asking again every second: ${error.message}`;
}

// Calls `refresh` every second. If it throws, one line shows the error and the rest is marked old.
function repeat(refresh) {
  let last = null;
  const once = async () => {
    const line = at("trouble");
    try {
      await refresh();
      last = Date.now();
      line.hidden = true;
    } catch (error) {
      line.textContent = trouble(error, last);
      line.hidden = false;
    }
    document.querySelector("main").classList.toggle("stale", !line.hidden);
  };
  const forever = async () => {
    await once();
    setTimeout(forever, EVERY_MS);
  };
  forever();
  return once;
}
