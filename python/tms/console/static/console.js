// The console's only script: live parts, local times, keyboard. Every page reads well without it.
"use strict";

const byId = (id) => document.getElementById(id);

// Local time beside UTC.
function localTimes(root) {
  for (const one of root.querySelectorAll("time[data-ms]")) {
    const local = new Date(Number(one.dataset.ms));
    if (Number.isNaN(local.getTime()) || local.getTimezoneOffset() === 0) continue;
    const text = local.toLocaleString(undefined, {
      year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit",
      second: "2-digit", timeZoneName: "short",
    });
    const beside = document.createElement("span");
    beside.className = "local";
    beside.textContent = ` (${text})`;
    one.append(beside);
    delete one.dataset.ms;
  }
}

// Live parts: elements with `data-live`, replaced by what the service renders anew. One connection
// a page, none while the page is hidden.
const live = {
  source: null,
  failures: 0,
  say(text) { byId("live-state").textContent = text; },
  parts() { return [...document.querySelectorAll("[data-live]")].map((one) => one.id); },
  start() {
    const parts = this.parts();
    if (!parts.length || this.source || document.hidden) return;
    const page = location.pathname + location.search;
    const query = new URLSearchParams({ page, parts: parts.join(",") });
    const source = new EventSource(`/console/live?${query}`);
    this.source = source;
    source.addEventListener("open", () => { this.failures = 0; this.say("Live"); });
    source.addEventListener("parts", (event) => this.show(JSON.parse(event.data)));
    source.addEventListener("ended", (event) => {
      this.stop();
      this.say(`Not live any more: ${JSON.parse(event.data)} Load the page again.`);
    });
    source.addEventListener("error", () => this.fail());
  },
  stop() {
    if (this.source) this.source.close();
    this.source = null;
  },
  fail() {
    this.stop();
    this.failures += 1;
    this.say("Not live; trying again");
    setTimeout(() => this.start(), Math.min(30000, 1000 * 2 ** this.failures));
  },
  show(parts) {
    for (const [id, html] of Object.entries(parts)) {
      const part = byId(id);
      if (!part || part.contains(document.activeElement) || hasSelection(part)) continue;
      part.innerHTML = html;
      localTimes(part);
    }
  },
};

// Rows that come, below `data-follow`, the address of their events. The id of an event is where the
// next one begins: the connection goes on from there after a loss, or when the page is shown again.
const followed = {
  source: null,
  failures: 0,
  last: "",
  say(text) { byId("live-state").textContent = text; },
  start() {
    const body = document.querySelector("[data-follow]");
    if (!body || this.source || document.hidden) return;
    const url = new URL(body.dataset.follow, location);
    if (this.last) url.searchParams.set("start", this.last);
    const source = new EventSource(url);
    this.source = source;
    source.addEventListener("open", () => { this.failures = 0; this.say("Following"); });
    source.addEventListener("rows", (event) => this.show(body, event));
    source.addEventListener("ended", (event) => {
      this.stop();
      this.say(`Not following any more: ${JSON.parse(event.data)} Load the page again.`);
    });
    source.addEventListener("error", () => {
      this.stop();
      this.failures += 1;
      this.say("Not following; trying again");
      setTimeout(() => this.start(), Math.min(30000, 1000 * 2 ** this.failures));
    });
  },
  stop() {
    if (this.source && document.hidden) this.say("Paused");
    if (this.source) this.source.close();
    this.source = null;
  },
  show(body, event) {
    const { html, behind } = JSON.parse(event.data);
    const atEnd = innerHeight + scrollY >= document.documentElement.scrollHeight - 40;
    const shown = body.rows.length;
    body.insertAdjacentHTML("beforeend", html);
    for (const row of [...body.rows].slice(shown)) localTimes(row);
    while (body.rows.length > Number(body.dataset.keep)) body.rows[0].remove();
    this.last = event.lastEventId;
    const newer = byId("newer");
    const next = new URL(newer.href);
    next.searchParams.set("start", this.last);
    newer.href = next;
    this.say(behind ? `Following, ${behind} behind` : "Following");
    if (html && atEnd) scrollTo(0, document.documentElement.scrollHeight);
  },
};

function hasSelection(part) {
  const selection = getSelection();
  return !selection.isCollapsed && part.contains(selection.anchorNode);
}

// Keyboard: one key, or `g` and a key. Nothing while somebody types.
let leader = "";
function onKey(event) {
  const typing = event.target.closest("input, textarea, select, [contenteditable]");
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const pressed = leader ? `${leader} ${event.key}` : event.key;
  leader = pressed === "g" ? "g" : "";
  if (leader) return;
  if (pressed === "?") { byId("keys").showModal(); return; }
  if (pressed === "r") { location.reload(); return; }
  if (pressed === "/") {
    const search = document.querySelector("[data-search]");
    if (search) { event.preventDefault(); search.focus(); search.select(); }
    return;
  }
  const target = document.querySelector(`[data-key="${CSS.escape(pressed)}"]`);
  if (target) { event.preventDefault(); target.click(); }
}

document.addEventListener("keydown", onKey);
for (const events of [live, followed]) {
  document.addEventListener("visibilitychange", () => (document.hidden ? events.stop() : events.start()));
  window.addEventListener("pagehide", () => events.stop());
}
for (const button of document.querySelectorAll("[data-keys]")) {
  button.hidden = false;
  button.addEventListener("click", () => byId("keys").showModal());
}
localTimes(document);
live.start();
followed.start();
