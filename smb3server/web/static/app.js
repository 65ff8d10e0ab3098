// The page: logging on, the live stream, and what each section shows.

import { Chart } from "./chart.js";
import { bits, bytes, element, rate, since, table } from "./tables.js";

const $ = (id) => document.getElementById(id);
const chart = new Chart($("chart"));
const SECTIONS = ["overview", "channels", "sessions", "files", "interfaces", "log"];
const THEMES = ["", "light", "dark"];
let me = null;
let stream = null;
let report = null;
let lastLine = 0;

// ---- requests

async function get(path) {
  const response = await fetch(path);
  if (response.status === 401) showLogin("");
  if (!response.ok) throw new Error(await response.text());
  return response.json();
}

async function post(path, body = {}) {
  const headers = { "Content-Type": "application/json" };
  if (me) headers["X-CSRF-Token"] = me.csrf;
  const response = await fetch(path, { method: "POST", headers, body: JSON.stringify(body) });
  const text = await response.text();
  let answer = {};
  try { answer = JSON.parse(text); } catch { answer = { error: text }; }
  if (response.status === 401) showLogin("");
  if (!response.ok) throw new Error(answer.error || `The server answered ${response.status}.`);
  return answer;
}

// Null if the server does not answer.
async function whoIsThere() {
  try { return await get("/api/me"); } catch { return null; }
}

function say(text, failed = false) {
  const message = $("message");
  message.textContent = text;
  message.className = failed ? "failed" : "";
  message.hidden = !text;
}

// ---- logging on and off

function showLogin(text) {
  stream?.close();
  stream = null;
  me = null;
  $("app").hidden = true;
  $("login").hidden = false;
  $("login-error").textContent = text;
  $("login").elements.user.focus();
}

function enter(answer) {
  me = answer;
  $("user").textContent = me.user;
  $("reload").hidden = !me.actions.includes("reload");
  $("login").hidden = true;
  $("login").reset();
  $("app").hidden = false;
  lastLine = 0;
  $("log-lines").replaceChildren();
  follow();
  showSection();
}

$("login").addEventListener("submit", async (event) => {
  event.preventDefault();
  const form = event.target;
  const button = form.querySelector("button");
  button.disabled = true;
  $("login-error").textContent = "";
  try {
    enter(await post("/api/login", { user: form.elements.user.value, password: form.elements.password.value }));
  } catch (error) {
    $("login-error").textContent = error.message;
    form.elements.password.select();
  } finally {
    button.disabled = false;
  }
});

$("logout").addEventListener("click", async () => {
  await post("/api/logout").catch(() => {});
  showLogin("");
});

$("reload").addEventListener("click", () => act("reload", {}, "Read the configuration again?", "The configuration was read again."));

async function act(name, request, question, done) {
  if (!window.confirm(question)) return;
  try {
    const answer = await post(`/api/do/${name}`, request);
    say(answer.summary ? `${done} ${answer.summary}` : done);
    if (!$("files").hidden) showFiles();
  } catch (error) {
    say(error.message, true);
  }
}

$("theme").addEventListener("click", () => {
  const next = THEMES[(THEMES.indexOf(localStorage.getItem("theme") || "") + 1) % THEMES.length];
  localStorage.setItem("theme", next);
  applyTheme();
});

function applyTheme() {
  const theme = localStorage.getItem("theme") || "";
  document.documentElement.dataset.theme = theme;
  $("theme").textContent = `Theme: ${theme || "auto"}`;
  chart.draw();
}

// ---- live data

function follow() {
  stream?.close();
  stream = new EventSource("/api/stream");
  stream.onmessage = (event) => {
    report = JSON.parse(event.data);
    pill("live", "Live");
    show();
  };
  stream.onerror = () => {
    pill("lost", "No connection");
    // The browser tries again by itself, unless it was refused: then the login has ended, or the server is busy.
    if (stream.readyState === EventSource.CLOSED) {
      whoIsThere().then((answer) => {
        if (answer && !answer.user) showLogin("You have been logged off.");
        else setTimeout(() => me && follow(), 5000);
      });
    }
  };
}

function pill(kind, text) {
  $("connection").className = `pill ${kind}`;
  if ($("connection").textContent !== text) $("connection").textContent = text;
}

// One entry in place of 0.0.0.0 and [::] of the same port.
function shortAddresses(addresses) {
  const short = (text) => {
    const [, kind, host, port] = text.match(/^(\S+) (.*):(\d+)$/) || [];
    const other = { "0.0.0.0": "[::]", "[::]": "0.0.0.0" }[host];
    return other && addresses.includes(`${kind} ${other}:${port}`) ? `${kind} *:${port}` : text;
  };
  return [...new Set(addresses.map(short))];
}

function show() {
  const { server } = report;
  document.title = `${server.name} – smb3server`;
  $("name").textContent = server.name;
  $("subtitle").textContent = `smb3server ${server.version} · up ${since(server.now - server.since)} · ${shortAddresses(server.addresses).join(", ")}`;
  // The first report has nothing to compare with.
  if (server.rates_seconds) chart.add(server.now, server.rates);
  if (!$("overview").hidden) showOverview();
  if (!$("channels").hidden) showChannels();
  if (!$("sessions").hidden) showSessions();
  if (!$("interfaces").hidden) showInterfaces();
}

// ---- RDMA: green, grey or red

// Codes of docs/rdma-used.md. Everything else is an obstacle with a remedy.
const GREEN = ["used"];
const GREY = ["used-on-another-channel", "no-transfers", "not-negotiated", "not-logged-on", "rdma-off"];

function colour(channel) {
  if (GREEN.includes(channel.rdma.code)) return "good";
  return GREY.includes(channel.rdma.code) ? "idle" : "bad";
}

const WORDS = { good: "RDMA", idle: "Nothing to do", bad: "Not by RDMA" };

function badge(channel) {
  const kind = colour(channel);
  return element("span", { class: `badge ${kind}` }, WORDS[kind]);
}

function code(text) {
  // Remedies mark commands with backquotes.
  const parts = text.split("`");
  return element("span", {}, ...parts.map((part, index) => (index % 2 ? element("code", {}, part) : part)));
}

function whose(channel) {
  const users = report.sessions.filter((session) => channel.sessions.includes(session.session)).map((session) => session.user || "anonymous");
  return [...new Set(users)].join(", ") || "nobody yet";
}

function showVerdict() {
  const kinds = report.channels.map(colour);
  const count = (kind) => kinds.filter((found) => found === kind).length;
  const moved = report.channels.reduce((sum, channel) => sum + channel.rdma_read_bytes + channel.rdma_write_bytes, 0);
  let kind = "idle", title, text;
  if (!report.channels.length) [title, text] = ["No client is connected", "The page shows how their data travels as soon as there is one."];
  else if (report.server.rdma === "off") [title, text] = ["RDMA is off", "The server was started without SMB Direct: start it with --rdma."];
  else if (count("good")) {
    [kind, title] = count("bad") ? ["mixed", `Data travels by RDMA on ${count("good")} of ${kinds.length} connections`] : ["good", "Data travels by RDMA"];
    text = `${bytes(moved)} by RDMA since these clients connected.${count("bad") ? " The RDMA page says why not all of it, and what to do." : ""}`;
  } else if (count("bad")) [kind, title, text] = ["bad", "No data travels by RDMA", "The RDMA page says why, for each connection, and what to do."];
  else [title, text] = ["RDMA is ready", "No data has been large enough for it yet."];
  $("verdict").className = `verdict ${kind}`;
  $("verdict").replaceChildren(element("div", {}, element("strong", {}, title), element("p", {}, text)), element("a", { href: "#channels" }, "See each connection"));
}

function showChannels() {
  const choices = report.server.rdma_choices.map((choice) => element("li", { class: choice.served ? "good" : "bad" },
    element("strong", {}, `${choice.fabric} on ${choice.host || "all addresses"}`), choice.served ? ` is served, port ${choice.ports.join(", ")} (` : " is not served (", code(choice.reason), ")", choice.remedy ? element("em", {}, " ", code(choice.remedy)) : null));
  $("fabrics").replaceChildren(choices.length ? element("ul", { class: "fabrics" }, ...choices) : element("p", { class: "empty" }, "SMB Direct is off: start the server with --rdma."));
  const order = { bad: 0, good: 1, idle: 2 };
  const channels = [...report.channels].sort((a, b) => order[colour(a)] - order[colour(b)] || a.channel - b.channel);
  const cards = channels.map((channel) => {
    const byRdma = channel.rdma_read_bytes + channel.rdma_write_bytes;
    const inline = channel.inline_bytes_received + channel.inline_bytes_sent;
    const part = byRdma + inline ? Math.round((100 * byRdma) / (byRdma + inline)) : 0;
    const meter = element("meter", { min: 0, max: 100, value: part, "aria-label": `${part} % of the bytes by RDMA` });
    const protection = channel.encryption ? `encrypted, ${channel.cipher}` : channel.signing_required ? `signed, ${channel.signing}` : channel.rdma_protection || "clear";
    return element("article", { class: `channel ${colour(channel)}` },
      element("h3", {}, badge(channel), ` ${channel.peer} `, element("small", {}, `${channel.fabric} · SMB ${channel.dialect} · ${whose(channel)}`)),
      element("p", { class: "why" }, code(channel.rdma.text)),
      channel.rdma.remedy && colour(channel) !== "good" ? element("p", { class: "remedy" }, element("strong", {}, "Remedy: "), code(channel.rdma.remedy)) : null,
      element("div", { class: "share" }, meter, element("span", {}, `${bytes(byRdma)} by RDMA, ${bytes(inline)} in messages`)),
      element("dl", {},
        ...[["To the client", rate(channel.rates.read)], ["From the client", rate(channel.rates.written)], ["Requests", `${Math.round(channel.rates.requests)}/s`],
          ["Protection", protection], ...(channel.compression ? [["Compression", `${channel.compression.algorithm || "patterns"}: ${bytes(channel.compression.received + channel.compression.sent)} as ${bytes(channel.compression.received_compressed + channel.compression.sent_compressed)}`]] : []),
          ["RDMA transforms", channel.rdma_transforms.join(", ") || "none"], ["SMB credits", channel.smb_credits],
          ["Retransmissions", channel.retransmissions ?? 0], ["Since", since(report.server.now - channel.since)]].map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value)))));
  });
  if (report.channels_total > channels.length) cards.push(element("p", { class: "empty" }, `${report.channels_total} connections; the busiest ${channels.length} are shown.`));
  $("channel-list").replaceChildren(...(cards.length ? cards : [element("p", { class: "empty" }, "No client is connected.")]));
}

// ---- the other sections

function showCluster() {
  const { cluster } = report;
  $("cluster").hidden = !cluster;
  if (!cluster) return;
  const wrong = !cluster.member || cluster.etcd.problems.some((problem) => problem.is_error) || cluster.services.some((service) => !service.node);
  const where = (service) => service.owned ? `served here, ${service.opens} opens` : service.node ? `at ${service.node}` : cluster.member ? "served nowhere" : "not served here";
  $("cluster").className = `verdict ${wrong ? "bad" : cluster.etcd.problems.length ? "mixed" : "good"}`;
  $("cluster").replaceChildren(element("div", {},
    element("strong", {}, cluster.member ? `Node ${cluster.node} of cluster ${cluster.name}` : `Node ${cluster.node} is not a member of cluster ${cluster.name}`),
    element("p", {}, cluster.services.map((service) => `${service.name}: ${where(service)}`).join(" · ")),
    ...cluster.etcd.problems.map((problem) => element("p", {}, problem.text))));
}

function showOverview() {
  showVerdict();
  showCluster();
  const { server } = report;
  const limit = server.limits;
  const tiles = [["Read", rate(server.rates.read)], ["Written", rate(server.rates.written)], ["By RDMA", rate(server.rates.rdma)], ["Requests", `${Math.round(server.rates.requests)}/s`],
    ["Sessions", report.sessions_total], ["Connections", `${report.channels_total}`], ["Open files", limit.opens[0]], ["Locks", server.lock_count]];
  $("tiles").replaceChildren(...tiles.map(([name, value]) => element("div", { class: "tile" }, element("strong", {}, value), element("span", {}, name))));
  table($("shares"), [
    ["Share", (row) => row.share], ["Folder", (row) => element("code", {}, row.path), "path"], ["Users connected", (row) => row.connects, "number"], ["Open files", (row) => row.open_count, "number"],
    ["Read", (row) => rate(row.rates.read), "number"], ["Written", (row) => rate(row.rates.written), "number"], ["In all", (row) => bytes(row.bytes_read + row.bytes_written), "number"],
    ["", (row) => [row.read_only && "read-only", row.encrypted && "encrypted", row.continuous_availability && "continuously available"].filter(Boolean).join(", ")],
  ], report.shares.filter((row) => row.type === "disk"), "There are no shares.");
  table($("users"), [
    ["User", (row) => row.user], ["Sessions", (row) => row.sessions, "number"], ["Open files", (row) => row.open_count, "number"],
    ["Read", (row) => rate(row.rates.read), "number"], ["Written", (row) => rate(row.rates.written), "number"], ["In all", (row) => bytes(row.bytes_read + row.bytes_written), "number"],
  ], report.users, "Nobody has logged on.");
}

function showSessions() {
  const may = me.actions.includes("session-close");
  const fabrics = Object.fromEntries(report.channels.map((channel) => [channel.channel, channel.fabric]));
  table($("session-list"), [
    ["User", (row) => row.user || "anonymous"], ["Client", (row) => row.client], ["Shares", (row) => row.shares.filter((name) => name !== "IPC$").join(", ")],
    ["Connections", (row) => row.channels.map((number) => fabrics[number] ?? "tcp").join(", ")], ["Protection", (row) => (row.encrypted ? "encrypted" : row.signing_required ? "signed" : row.rdma_protection.join(", ") || "clear")],
    ["Open files", (row) => row.open_count, "number"], ["Read", (row) => rate(row.rates.read), "number"], ["Written", (row) => rate(row.rates.written), "number"], ["Since", (row) => since(report.server.now - row.since), "number"],
    ...(may ? [["", (row) => element("button", { type: "button", class: "danger", "data-key": row.session, "aria-label": `End the session of ${row.user} from ${row.client}`,
      onclick: () => act("session-close", { ids: [row.session] }, `End the session of ${row.user} from ${row.client}? Open files are closed; what the client has not written is lost.`, "The session has ended.") }, "End")]] : []),
  ], report.sessions, "Nobody is logged on.");
}

async function showFiles() {
  const found = await get("/api/files").catch((error) => { say(error.message, true); return null; });
  if (!found) return;
  const may = me.actions.includes("file-close");
  const caching = (row) => (row.caching ? `${row.caching.kind} ${row.caching.state}${row.caching.breaking ? " (breaking)" : ""}` : "");
  const columns = [
    ["User", (row) => row.user], ["Share", (row) => row.share], ["Path", (row) => row.path || "/", "path"], ["May", (row) => row.rights.join(", ") || "attributes"],
    ["Denies", (row) => row.denies.join(", ")], ["Caching", caching], ["Locks", (row) => row.locks || "", "number"], ["Kept", (row) => row.durable],
    ["Read", (row) => bytes(row.bytes_read), "number"], ["Written", (row) => bytes(row.bytes_written), "number"],
  ];
  const close = ["", (row) => element("button", { type: "button", class: "danger", "data-key": row.id, "aria-label": `Close ${row.path}`,
    onclick: () => act("file-close", { ids: [row.id] }, `Close ${row.path || row.share} of ${row.user}? What the client has not written is lost.`, "The file was closed.") }, "Close")];
  const opens = found.sessions.flatMap((session) => session.opens.map((entry) => ({ ...entry, user: session.user })));
  table($("open-list"), may ? [...columns, close] : columns, opens, "No file is open.");
  table($("lock-list"), [
    ["User", (row) => row.user], ["Share", (row) => row.share], ["Path", (row) => row.path, "path"], ["From", (row) => row.offset, "number"], ["Length", (row) => row.length, "number"],
    ["Kind", (row) => (row.exclusive ? "exclusive" : "shared")], ["", (row) => (row.waiting ? "waiting" : "held")],
  ], found.locks, "There are no locks.");
  table($("away-list"), may ? [...columns, close] : columns, found.away, "None.");
}

function showInterfaces() {
  const yes = (value) => (value ? element("span", { class: "badge good" }, "yes") : element("span", { class: "badge idle" }, "no"));
  table($("interface-list"), [
    ["Interface", (row) => row.interface], ["Address", (row) => element("code", {}, row.address)], ["Speed", (row) => (row.loopback ? "" : bits(row.speed)), "number"], ["Link", (row) => yes(row.link)],
    ["RDMA", (row) => yes(row.rdma)], ["TCP", (row) => yes(row.tcp)], ["RSS", (row) => yes(row.rss)], ["Clients are told of it", (row) => yes(row.told)],
  ], report.interfaces, "There are no interfaces.");
}

async function showLog() {
  const { lines } = await get(`/api/log?after=${lastLine}`).catch(() => ({ lines: [] }));
  const place = $("log-lines");
  for (const line of lines) {
    // Two requests may have been under way.
    if (line.number <= lastLine) continue;
    lastLine = line.number;
    place.append(element("p", { class: line.level }, element("time", {}, new Date(line.time * 1000).toLocaleTimeString()), element("b", {}, line.level), element("span", { title: line.source }, line.text)));
  }
  while (place.childElementCount > 1000) place.firstElementChild.remove();
  if ($("log-follow").checked && lines.length) place.scrollTop = place.scrollHeight;
}

// ---- sections

function showSection() {
  const wanted = SECTIONS.includes(location.hash.slice(1)) ? location.hash.slice(1) : "overview";
  for (const name of SECTIONS) $(name).hidden = name !== wanted;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${wanted}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  say("");
  if (report) show();
  tick();
}

function tick() {
  if (!me || document.hidden) return;
  if (!$("files").hidden) showFiles();
  if (!$("log").hidden) showLog();
}

window.addEventListener("hashchange", () => { showSection(); window.scrollTo(0, 0); });
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => chart.draw());
setInterval(tick, 2000);
applyTheme();
whoIsThere().then((answer) => {
  if (answer?.user) enter(answer);
  else showLogin(answer ? "" : "The server does not answer.");
});
