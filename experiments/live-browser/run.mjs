// hls.js in Chromium plays a low-latency channel of `anabranch live`: ffmpeg, a source, a reflector
// and an edge, under a controller.
//
// After `--before` seconds of playback the reflector of the tree is killed, and the player plays
// `--after` seconds more. One JSON line has the delay behind the source before and after the kill,
// and the stalls. `--shots FOLDER` keeps screenshots of the player beside the controller's page.
//
// The delay is the clock's time minus EXT-X-PROGRAM-DATE-TIME of the shown picture, which the
// source sets when a segment begins. Needs: ffmpeg, chromium, and `npm ci` here. Read `Stage`
// first.

import { execFileSync, spawn } from "node:child_process";
import { createReadStream, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { createServer as listen } from "node:net";
import { tmpdir } from "node:os";
import path from "node:path";
import { fileURLToPath } from "node:url";

const HERE = path.dirname(fileURLToPath(import.meta.url));
const ROOT = path.resolve(HERE, "../..");
const TOKEN = "0123456789abcdef";
const LIBRARY = path.join(HERE, "node_modules/hls.js/dist/hls.js");
/** Shortest time without progress of the picture that counts as a stall, in milliseconds. */
const STALL_MS = 250;

const PAGE = `<!doctype html><title>viewer</title>
<style>body { font: 16px sans-serif; margin: 24px } video { width: 560px; display: block } #said { font-variant-numeric: tabular-nums }</style>
<h1>A viewer at the edge rome</h1><video muted autoplay playsinline></video><p id="said"></p><script src="/hls.js"></script><script>
const video = document.querySelector("video"), said = document.querySelector("#said");
const hls = new Hls({ lowLatencyMode: true, maxLiveSyncPlaybackRate: 1.5 });
window.log = []; window.errors = []; window.asked = performance.now(); window.shown = null;
hls.on(Hls.Events.ERROR, (_, data) => window.errors.push({ at: Date.now(), what: data.details + " " + (data.response ? data.response.code : "") }));
hls.loadSource(location.hash.slice(1)); hls.attachMedia(video);
let last = -1, moved = performance.now();
window.open = () => { const stall = performance.now() - moved; return stall >= ${STALL_MS} ? stall : 0; };
setInterval(() => {
  const now = performance.now(), at = video.currentTime;
  if (at > last && last >= 0 && window.shown === null) window.shown = now - window.asked;
  if (at !== last) { if (window.shown !== null && now - moved >= ${STALL_MS}) window.log.push({ stall: now - moved, until: Date.now() }); last = at; moved = now; }
  const date = hls.playingDate;
  if (date) { const behind = (Date.now() - date.getTime()) / 1000; window.log.push({ at: Date.now(), behind }); said.textContent = behind.toFixed(1) + " s behind the source"; }
}, 50);
setInterval(() => { if (video.paused) video.play().catch(() => {}); }, 500);
</script>`;

/** Finds free ports of 127.0.0.1. */
async function freePorts(count) {
  const servers = await Promise.all(
    Array.from({ length: count }, () => new Promise((done) => { const server = listen().listen(0, "127.0.0.1", () => done(server)); })),
  );
  const ports = servers.map((server) => server.address().port);
  await Promise.all(servers.map((server) => new Promise((done) => server.close(done))));
  return ports;
}

/** Waits until a condition holds, testing it five times a second. */
async function until(what, holds, within_s = 30) {
  for (const end = Date.now() + 1000 * within_s; Date.now() < end; ) {
    const found = await holds();
    if (found) return found;
    await sleep(0.2);
  }
  throw new Error(`${what}: not within ${within_s} s`);
}

const sleep = (seconds) => new Promise((done) => setTimeout(done, 1000 * seconds));
const median = (values) => values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)] ?? null;
const rounded = (value) => (value === null ? null : Math.round(100 * value) / 100);

/** All programs of the channel: a source, two reflectors, two edges, a controller, its page, and ffmpeg. */
class Stage {
  constructor(binary) {
    Object.assign(this, { binary, children: new Map(), folder: mkdtempSync(path.join(tmpdir(), "live-browser-")) });
  }
  run(name, program, args) {
    const child = spawn(program, args, { cwd: this.folder, stdio: ["ignore", "ignore", "pipe"] });
    this.children.set(name, child);
    child.said = "";
    child.stderr.on("data", (data) => (child.said += data));
    return child;
  }
  live(name, ...args) {
    return this.run(name, this.binary, ["live", ...args]);
  }
  async start() {
    const names = ["london", "paris", "berlin", "rome", "oslo"];
    const [controller, page, ...ports] = await freePorts(2 + 2 * names.length);
    const [media, control] = [ports.slice(0, 5), ports.slice(5)];
    this.controller = `127.0.0.1:${controller}`;
    const tiers = ["source", "reflector", "reflector", "edge", "edge"];
    const node = (name, at) =>
      `[[node]]\nname = "${name}"\ntier = "${tiers[at]}"\nmedia = "http://127.0.0.1:${media[at]}"\n` + (at < 3 ? `control = "127.0.0.1:${control[at]}"\n` : "");
    const link = (from, to, cost) => `[[link]]\nfrom = "${from}"\nto = "${to}"\ncapacity = "100Mbit/s"\ncost = ${cost}\n`;
    const links = [["london", "paris", 10], ["london", "berlin", 20], ["paris", "rome", 10], ["berlin", "rome", 10], ["paris", "oslo", 10], ["berlin", "oslo", 10]];
    const group = '[[group]]\nname = "here"\nedges = ["rome"]\n[[channel]]\nname = "news"\nrenditions = { main = "2Mbit/s" }\n';
    writeFileSync(`${this.folder}/live.toml`, names.map(node).join("") + links.map((one) => link(...one)).join("") + group);
    writeFileSync(`${this.folder}/tokens`, `news ${TOKEN}\n`);
    execFileSync(this.binary, ["live", "keys", "--network", "live.toml", "--operators", "operator"], { cwd: this.folder, stdio: "pipe" });
    this.live("controller", "controller", "--listen", this.controller, "--every", "5s");
    const under = ["--controller", this.controller];
    this.live("london", "source", "--token-file", "tokens", ...under, "--name", "london", "--listen", `127.0.0.1:${media[0]}`, "--control", `127.0.0.1:${control[0]}`);
    for (const at of [1, 2, 3, 4]) {
      const own = at < 3 ? ["--control", `127.0.0.1:${control[at]}`] : [];
      this.live(names[at], "node", ...under, "--name", names[at], "--listen", `127.0.0.1:${media[at]}`, ...own);
    }
    // The page's address has a token, which the command prints.
    const status = this.live("page", "status", ...under, "--web", `127.0.0.1:${page}`);
    [this.web] = await until("the controller's page", () => status.said.match(/http:\/\/\S+/));
    this.edge = `http://127.0.0.1:${media[3]}`;
    await until("the nodes report to the controller", () => this.status()?.nodes?.filter((node) => node.is_up).length === names.length);
    const input = ["-re", "-f", "lavfi", "-i", "testsrc=size=640x360:rate=25", "-re", "-f", "lavfi", "-i", "sine=frequency=440"];
    const codecs = ["-c:v", "libx264", "-preset", "ultrafast", "-tune", "zerolatency", "-g", "50", "-pix_fmt", "yuv420p", "-c:a", "aac"];
    const pieces = ["-f", "mp4", "-movflags", "empty_moov+default_base_moof", "-frag_duration", "100000", "-flush_packets", "1"];
    const put = ["-method", "PUT", "-headers", `Authorization: Bearer ${TOKEN}`, `http://127.0.0.1:${media[0]}/news/main`];
    this.run("ffmpeg", "ffmpeg", ["-loglevel", "warning", ...input, ...codecs, ...pieces, ...put]);
    await sleep(8);
  }
  /** The controller's status, or `null` while it does not answer. */
  status() {
    try {
      return JSON.parse(execFileSync(this.binary, ["-q", "live", "status", "--json", "--controller", this.controller], { cwd: this.folder, stdio: ["ignore", "pipe", "pipe"] }));
    } catch {
      return null;
    }
  }
  /** The reflector from which the edge `rome` takes the channel. */
  reflector() {
    return this.status()?.streams?.find((stream) => stream.node === "rome")?.parent;
  }
  kill(name) {
    this.children.get(name)?.kill("SIGKILL");
  }
  end() {
    for (const child of this.children.values()) child.kill("SIGKILL");
    rmSync(this.folder, { recursive: true, force: true });
  }
}

/** Serves the player's page and its library. */
async function serve() {
  const server = createServer((request, response) => {
    const isLibrary = request.url === "/hls.js";
    response.writeHead(200, { "Content-Type": isLibrary ? "text/javascript" : "text/html" });
    if (isLibrary) createReadStream(LIBRARY).pipe(response);
    else response.end(PAGE);
  });
  await new Promise((done) => server.listen(0, "127.0.0.1", done));
  return server;
}

async function measure(binary, { before, after, shots }) {
  const stage = new Stage(binary);
  const { chromium } = await import("playwright-core");
  const flags = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--autoplay-policy=no-user-gesture-required"];
  // The player's page must not be throttled while the controller's page is in front.
  const awake = ["--disable-background-timer-throttling", "--disable-renderer-backgrounding", "--disable-backgrounding-occluded-windows"];
  const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: [...flags, ...awake] });
  const server = await serve();
  try {
    await stage.start();
    const viewer = await browser.newPage({ viewport: { width: 640, height: 480 } });
    await viewer.goto(`http://127.0.0.1:${server.address().port}/#${stage.edge}/news/index.m3u8`);
    await until("the first picture", () => viewer.evaluate(() => window.shown !== null));
    const watching = shots && (await browser.newPage({ viewport: { width: 1100, height: 720 } }));
    await watching?.goto(stage.web);
    await viewer.bringToFront();
    await sleep(before);
    const shot = async (when) => {
      const pictures = [await viewer.screenshot(), await watching.screenshot()];
      const images = pictures.map((png) => `<img src="data:image/png;base64,${png.toString("base64")}">`);
      const both = await browser.newPage({ viewport: { width: 1500, height: 655 } });
      const style = "body { margin: 0; display: flex; align-items: flex-start; background: #fff } img:first-child { width: 500px } img:last-child { width: 1000px }";
      await both.setContent(`<style>${style}</style>${images.join("")}`);
      await both.screenshot({ path: path.join(shots, `live-${when}.png`) });
      await both.close();
      await viewer.bringToFront();
    };
    if (shots) await shot("before");
    const victim = await until("the tree of the channel", () => stage.reflector());
    const killed_at = Date.now();
    stage.kill(victim);
    await sleep(after);
    if (shots) await shot("after");
    const seen = () => ({ log: window.log, errors: window.errors, shown: window.shown, open: window.open(), now: Date.now() });
    const { log, errors, shown, open, now } = await viewer.evaluate(seen);
    // A stall that goes on is one, too.
    if (open > 0) log.push({ stall: open, until: now });
    const behind = (from, to) => log.filter((one) => one.at > from && one.at <= to).map((one) => one.behind);
    const stalls = (from, to) => log.filter((one) => one.until > from && one.until <= to).map((one) => one.stall / 1000);
    const end = Date.now();
    const of = (values) => Math.max(0, ...values);
    const package_of = JSON.parse(readFileSync(path.join(HERE, "node_modules/hls.js/package.json"), "utf8"));
    return {
      player: `hls.js ${package_of.version}`, browser: `Chromium ${browser.version()}`, killed: victim,
      first_picture_s: rounded(shown / 1000),
      behind_before_s: rounded(median(behind(killed_at - 5000, killed_at))),
      behind_most_s: rounded(of(behind(killed_at, end))),
      behind_after_s: rounded(median(behind(end - 5000, end))),
      stalls_before: stalls(killed_at - 1000 * before + 3000, killed_at).length,
      stalls_after: stalls(killed_at, end).length,
      stalled_after_s: rounded(stalls(killed_at, end).reduce((sum, one) => sum + one, 0)),
      plays_on: open === 0,
      errors: errors.map((one) => `${one.what} at ${rounded((one.at - killed_at) / 1000)} s`).join("; "),
    };
  } catch (error) {
    for (const [name, child] of stage.children) if (child.said) console.error(`${name}: ${child.said.trim().split("\n").slice(-3).join(" / ")}`);
    throw error;
  } finally {
    await browser.close();
    server.close();
    stage.end();
  }
}

const args = process.argv.slice(2);
const take = (name, usual) => {
  const at = args.indexOf(name);
  return at < 0 ? usual : args.splice(at, 2)[1];
};
const binary = path.resolve(take("--binary", path.join(ROOT, "target/release/anabranch")));
const options = { before: Number(take("--before", 15)), after: Number(take("--after", 20)), shots: take("--shots") };
if (args.length) {
  console.error(`run.mjs: ${args[0]}: unknown: give --binary, --before, --after or --shots`);
  process.exit(2);
}
if (options.shots) mkdirSync(options.shots, { recursive: true });
try {
  console.log(JSON.stringify(await measure(binary, options)));
} catch (error) {
  console.error(`run.mjs: ${error.message}`);
  process.exitCode = 1;
}
