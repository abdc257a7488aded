// Real players in a real browser, steered by `anabranch broker`: HLS and DASH made by ffmpeg, three HTTP servers as two content networks.
//
// A player begins at the cluster that the broker chose (a clone of a pathway, on a separate host).
// Then the other network becomes cheaper, and the player must move there. Then that network dies,
// server and agent, and the player must move back. The servers' logs tell the server of each
// segment. `node run.mjs [PLAYER...]` prints a line for each step, and fails if a player stops.
// Players are hls, dash, shaka, shaka-dash, hls-live and dash-live. The manifests of the last two
// change with each segment. `--shots FOLDER` keeps screenshots.
//
// Needs: ffmpeg, chromium, and `npm ci` here. Read `Stage` first.

import { execFileSync, spawn } from "node:child_process";
import { createServer } from "node:http";
import { createReadStream, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { fileURLToPath } from "node:url";

const HERE = path.dirname(fileURLToPath(import.meta.url));
const ROOT = path.resolve(HERE, "../..");
const SECONDS = 90;
const WITHIN_MS = 15_000;
const TYPES = { ".m3u8": "application/vnd.apple.mpegurl", ".mpd": "application/dash+xml", ".html": "text/html", ".js": "text/javascript" };
const LIBRARIES = { hls: "hls.js/dist/hls.js", dash: "dashjs/dist/modern/umd/dash.all.debug.js", shaka: "shaka-player/dist/shaka-player.compiled.debug.js" };

/** A server of the files below a folder, as a content network's cluster is one; it counts what it sends. */
class Cluster {
  constructor(folder, change = (text) => text) {
    this.sent = [];
    this.folder = folder;
    this.change = change;
    this.sockets = new Set();
    this.server = createServer((request, response) => this.answer(request, response));
    this.server.on("connection", (socket) => {
      this.sockets.add(socket);
      socket.on("close", () => this.sockets.delete(socket));
    });
  }
  async start(address = "127.0.0.1", port = 0) {
    await new Promise((done) => this.server.listen(port, address, done));
    this.address = address;
    this.port = this.server.address().port;
    this.host = this.port === 80 ? address : `${address}:${this.port}`;
    return this;
  }
  /** As a machine that loses its power: no connection is left. */
  die() {
    this.server.close();
    this.sockets.forEach((socket) => socket.destroy());
  }
  answer(request, response) {
    const name = path.normalize(decodeURIComponent(new URL(request.url, "http://x").pathname));
    if (name === "/time") return void response.writeHead(200, { "Access-Control-Allow-Origin": "*" }).end(new Date().toISOString());
    const file = name.startsWith("/modules/") ? path.join(HERE, "node_modules", name.slice(9)) : path.join(this.folder, name);
    if (!existsSync(file) || !statSync(file).isFile()) {
      response.writeHead(404, { "Access-Control-Allow-Origin": "*" }).end();
      return;
    }
    if (/\.(m4s|mp4|ts)$/.test(file)) this.sent.push({ at: Date.now(), name });
    const type = TYPES[path.extname(file)] ?? "application/octet-stream";
    // ffmpeg rewrites this manifest without steering, so each answer gets the element added.
    if (path.basename(file) === "live.mpd") {
      const text = this.change(readFileSync(file, "utf8"));
      response.writeHead(200, { "Access-Control-Allow-Origin": "*", "Content-Type": type, "Cache-Control": "no-store" }).end(text);
      return;
    }
    response.writeHead(200, { "Access-Control-Allow-Origin": "*", "Content-Type": type, "Content-Length": statSync(file).size });
    createReadStream(file).pipe(response);
  }
}

/** Waits until something holds, looking at it ten times a second. */
async function until(what, holds, within = WITHIN_MS) {
  const began = Date.now();
  for (;;) {
    const found = await holds();
    if (found) return Date.now() - began;
    if (Date.now() - began > within) throw new Error(`${what}: not within ${within / 1000} s`);
    await new Promise((done) => setTimeout(done, 100));
  }
}

/** The broker with two networks' agents, and their clusters: `cheap` with a pathway and a clone of it, `near` with a pathway. */
class Stage {
  static async start(binary, folder, isLive) {
    const stage = new Stage();
    Object.assign(stage, { binary, folder, isLive, children: new Map(), media: path.join(folder, "media") });
    await stage.makeMedia();
    // A clone has another host and nothing else: hls.js replaces no port, and dash.js forgets it. So all have HTTP's own, for which one is root.
    stage.cheap = await new Cluster(stage.media).start("127.0.0.2", 80);
    stage.clone = await new Cluster(stage.media).start("127.0.0.3", 80);
    stage.near = await new Cluster(stage.media).start("127.0.0.4", 80);
    stage.run("keys", ["broker", "keys", "--out", `${folder}/keys`, "--networks", "cheap,near", "--operators", "operator"], true);
    writeFileSync(
      `${folder}/contracts.toml`,
      `[[network]]\nname = "cheap"\n[[network.cluster]]\nnumber = 1\nhost = "${stage.clone.address}"\n[[network]]\nname = "near"\n`,
    );
    stage.prices(1, 50);
    writeFileSync(`${folder}/cheap.csv`, "location,isp,cluster,score\nberlin,*,1,20\n");
    writeFileSync(`${folder}/near.csv`, "location,isp,cluster,score\nberlin,*,7,19\n");
    const options = ["--keys", `${folder}/keys`, "--contracts", `${folder}/contracts.toml`, "--store", `${folder}/broker.redb`];
    const serve = ["broker", "serve", ...options, "--listen", "127.0.0.1:0", "--players", "127.0.0.5:80", "--players-url", "http://127.0.0.5", "--every", "1", "--bids-within", "2", "--ttl", "2"];
    const said = await stage.run("broker", serve);
    [stage.broker] = said.match(/(?<=https:\/\/)127\.0\.0\.1:\d+/);
    // Shaka reloads from a whole address alone.
    stage.players = "127.0.0.5";
    for (const name of ["cheap", "near"]) await stage.agent(name);
    const web = ["broker", "status", "--web", "127.0.0.1:0", "--broker", stage.broker, "--keys", `${folder}/keys`];
    [stage.web] = (await stage.run("web", web)).match(/http:\/\/\S+/);
    stage.writeManifests();
    return stage;
  }
  /** What a megabit costs each network; agents read it before the next round. */
  prices(cheap, near) {
    const write = (name, number, cost) =>
      writeFileSync(`${this.folder}/${name}.toml`, `[[cluster]]\nnumber = ${number}\ncost = ${cost.toFixed(1)}\ncapacity = "1 Gbit/s"\n`);
    write("cheap", 1, cheap);
    write("near", 7, near);
  }
  agent(name) {
    const files = ["--clusters", `${this.folder}/${name}.toml`, "--scores", `${this.folder}/${name}.csv`];
    return this.run(name, ["broker", "cdn", "--name", name, "--broker", this.broker, "--keys", `${this.folder}/keys`, ...files]);
  }
  /** Runs the command to its end, or until it says on which addresses it listens or that it has begun. */
  run(name, args, toItsEnd = false) {
    if (toItsEnd) return execFileSync(this.binary, args, { stdio: "pipe" });
    const child = spawn(this.binary, args, { stdio: ["ignore", "ignore", "pipe"] });
    this.children.set(name, child);
    return new Promise((done, failed) => {
      let said = "";
      child.stderr.on("data", (data) => {
        said += data;
        if (said.includes({ broker: "/steering/hls", web: " shows what is" }[name] ?? "agent of network")) done(said);
      });
      child.on("exit", (code) => failed(new Error(`${name} ended with ${code}: ${said}`)));
    });
  }
  kill(name) {
    this.children.get(name)?.removeAllListeners("exit").kill("SIGKILL");
    this.children.delete(name);
  }
  makeMedia() {
    mkdirSync(this.media, { recursive: true });
    const input = ["-f", "lavfi", "-i", `testsrc=size=320x180:rate=25:duration=${SECONDS}`, "-f", "lavfi", "-i", `sine=duration=${SECONDS}`];
    const codecs = ["-c:v", "libx264", "-profile:v", "main", "-pix_fmt", "yuv420p", "-preset", "ultrafast", "-g", "50", "-keyint_min", "50", "-sc_threshold", "0", "-b:v", "300k", "-c:a", "aac", "-b:a", "64k"];
    if (this.isLive) return this.makeLive(input, codecs);
    const make = (...output) => execFileSync("ffmpeg", ["-v", "error", "-y", ...input, ...codecs, ...output], { cwd: this.media });
    make("-f", "hls", "-hls_time", "2", "-hls_playlist_type", "vod", "-hls_segment_type", "fmp4", "media.m3u8");
    make("-f", "dash", "-seg_duration", "2", "-use_template", "1", "-use_timeline", "0", "plain.mpd");
  }
  /** The same as it happens: ten segments are there, the last manifests name them, and each new one has them written anew. */
  async makeLive(input, codecs) {
    const hls = ["-f", "hls", "-hls_time", "2", "-hls_list_size", "10", "-hls_flags", "delete_segments", "-hls_delete_threshold", "5", "-hls_segment_type", "fmp4", "media.m3u8"];
    const dash = ["-f", "dash", "-seg_duration", "2", "-use_template", "1", "-use_timeline", "0", "-window_size", "10", "-extra_window_size", "5", "-utc_timing_url", "/time", "live.mpd"];
    const maps = ["-map", "0:v", "-map", "1:a"];
    const child = spawn("ffmpeg", ["-v", "error", "-y", "-re", ...input, ...maps, ...codecs, ...hls, ...maps, ...codecs, ...dash], { cwd: this.media, stdio: "ignore" });
    this.children.set("ffmpeg", child);
    await until("ffmpeg: three segments", () => {
      const list = path.join(this.media, "media.m3u8");
      return existsSync(list) && existsSync(path.join(this.media, "live.mpd")) && (readFileSync(list, "utf8").match(/EXTINF/g) ?? []).length >= 3;
    });
  }
  writeManifests() {
    const variant = (pathway, host) =>
      `#EXT-X-STREAM-INF:BANDWIDTH=500000,RESOLUTION=320x180,CODECS="avc1.4d400d,mp4a.40.2",PATHWAY-ID="${pathway}"\nhttp://${host}/media.m3u8\n`;
    const steering = (dialect) => `http://${this.players}/steering/${dialect}?location=berlin&isp=x&viewer=5`;
    const hls = `#EXTM3U\n#EXT-X-VERSION:7\n#EXT-X-INDEPENDENT-SEGMENTS\n#EXT-X-CONTENT-STEERING:SERVER-URI="${steering("hls")}",PATHWAY-ID="cheap"\n`;
    writeFileSync(`${this.media}/master.m3u8`, hls + variant("cheap", this.cheap.host) + variant("near", this.near.host));
    const base = (name, host) => `<BaseURL serviceLocation="${name}">http://${host}/</BaseURL>\n`;
    const escaped = steering("dash").replaceAll("&", "&amp;");
    const before = `${base("cheap", this.cheap.host)}${base("near", this.near.host)}<ContentSteering defaultServiceLocation="cheap" queryBeforeStart="true">${escaped}</ContentSteering>\n`;
    this.steered = (text) => text.replace(/(?=<Period)/, before);
    if (!this.isLive) writeFileSync(`${this.media}/manifest.mpd`, this.steered(readFileSync(`${this.media}/plain.mpd`, "utf8")));
    for (const [player, library] of Object.entries(LIBRARIES)) {
      const start = {
        hls: "const hls = new Hls({ maxBufferLength: 6, maxMaxBufferLength: 8 }); hls.loadSource(source); hls.attachMedia(video);",
        dash: "const player = dashjs.MediaPlayer().create(); player.updateSettings({ streaming: { buffer: { bufferTimeDefault: 6, bufferTimeAtTopQuality: 6, bufferTimeAtTopQualityLongForm: 6, initialBufferLevel: 2 } } }); player.initialize(video, source, true);",
        shaka: "shaka.polyfill.installAll(); const player = new shaka.Player(); player.attach(video).then(() => { player.configure({ streaming: { bufferingGoal: 6 } }); return player.load(source); }).catch((error) => { document.title = `failed: ${error.code}`; });",
      }[player];
      writeFileSync(
        `${this.media}/${player}.html`,
        `<!doctype html><title>${player}</title><style>body { font: 16px sans-serif; margin: 24px } video { width: 480px }</style>
<h1>${player}</h1><video muted autoplay></video><p id="where"></p><script src="/modules/${library}"></script><script>
const video = document.querySelector("video"), source = location.hash.slice(1); ${start}
setInterval(() => { video.play().catch(() => {}); }, 1000);</script>`,
      );
    }
  }
  /** How many segments each cluster has sent since then. */
  since(at) {
    const count = (cluster) => cluster.sent.filter((segment) => segment.at >= at).length;
    return { cheap: count(this.cheap), clone: count(this.clone), near: count(this.near) };
  }
  end() {
    for (const name of [...this.children.keys()]) this.kill(name);
    for (const cluster of [this.cheap, this.clone, this.near]) cluster?.die();
  }
}

/** One player through all steps. */
async function play(binary, browser, player, shots) {
  const folder = mkdtempSync(path.join(tmpdir(), "broker-players-"));
  let stage;
  try {
    const [library, ...more] = player.split("-");
    const isLive = more.includes("live");
    stage = await Stage.start(binary, folder, isLive);
    const isDash = library === "dash" || more.includes("dash");
    const manifest = isDash ? (isLive ? "live.mpd" : "manifest.mpd") : "master.m3u8";
    const page = await browser.newPage({ viewport: { width: 640, height: 480 } });
    page.on("pageerror", (error) => console.error(`${player}: ${error.message}`));
    // The page comes from a separate server, so that a network's death takes only its segments.
    const site = await new Cluster(stage.media, stage.steered).start();
    await page.goto(`http://${site.host}/${library}.html#http://${site.host}/${manifest}`);
    const watching = await browser.newPage({ viewport: { width: 1100, height: 720 } });
    await watching.goto(stage.web);
    const time = () => page.evaluate(() => document.querySelector("video").currentTime);
    const shot = async (step, text) => {
      await page.evaluate((words) => (document.querySelector("#where").textContent = words), text);
      if (!shots) return;
      await page.screenshot({ path: path.join(shots, `${player}-${step}.png`) });
      // The broker's own page has looked at it all the time; it knows of a network that is dead once that was silent for a while.
      if (step === "dies") await watching.waitForSelector("#sites li.down", { timeout: 60_000 });
      if (step === "dies") await watching.waitForTimeout(4_000);
      await watching.screenshot({ path: path.join(shots, `page-${step}.png`) });
    };
    const steps = {};
    const step = async (name, change, at) => {
      const began = Date.now();
      await change();
      // Three segments in a row, and none of another since.
      steps[name] = await until(`${player}: ${name}`, () => {
        const all = ["cheap", "clone", "near"].flatMap((of) => stage[of].sent.filter((segment) => segment.at >= began).map((segment) => ({ ...segment, of })));
        const last = all.sort((a, b) => a.at - b.at).slice(-3);
        return last.length === 3 && last.every((segment) => at.includes(segment.of));
      });
      const before = await time();
      await until(`${player}: plays on after ${name}`, async () => (await time()) > before + 1);
      await shot(name, `${name}: segments come from ${at.join(" or ")}; ${JSON.stringify(stage.since(began))} since`);
    };
    await step("begins", () => {}, ["clone"]);
    await step("cheaper", () => stage.prices(50, 1), ["near"]);
    await step("dies", () => {
      stage.kill("near");
      stage.near.die();
    }, ["clone", "cheap"]);
    const first = stage.clone.sent.length > 0;
    console.log(JSON.stringify({ player, ...steps, clone_used: first, played_s: Math.round(await time()) }));
    await page.close();
    await watching.close();
    site.die();
  } finally {
    stage?.end();
    rmSync(folder, { recursive: true, force: true });
  }
}

const args = process.argv.slice(2);
const take = (name) => {
  const at = args.indexOf(name);
  return at < 0 ? undefined : args.splice(at, 2)[1];
};
const binary = path.resolve(take("--binary") ?? path.join(ROOT, "target/release/anabranch"));
const shots = take("--shots");
if (shots) mkdirSync(shots, { recursive: true });
const { chromium } = await import("playwright-core");
const browser = await chromium.launch({
  executablePath: "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--autoplay-policy=no-user-gesture-required"],
});
let failed = 0;
for (const player of args.length ? args : ["hls", "dash", "shaka", "shaka-dash"]) {
  try {
    await play(binary, browser, player, shots);
  } catch (error) {
    failed += 1;
    console.error(`run.mjs: ${error.message}`);
  }
}
await browser.close();
process.exitCode = failed ? 1 : 0;
