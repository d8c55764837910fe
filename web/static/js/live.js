// WebSocket of the page: receives frames, patches the named elements, reconnects, and resumes after the last frame.
import { changeAddress, dispatch, root } from "./address.js";
import { pausePolling } from "./polling.js";
import { dataReceived, connectionLost, setPaused } from "./age.js";
import { patchLiveTexts } from "./live_text.js";
import { refill } from "./focus.js";
import { addAnnotations, addPoints, shownSequence, tableOf } from "./tables.js";

const FIRST_DELAY_MS = 300;
const MAX_DELAY_MS = 5000;
const RELOAD_MS = 250;
const CLOSED_FOR_LOGIN = 4401;

let frame; // dataset with the run, sequence and build that the page shows
let socket = null;
let timer = null;
let delay = FIRST_DELAY_MS;
let sequence = 0;
let isPaused = false;

export function live(element) {
  frame = element.dataset;
  sequence = shownSequence(Number(frame.sequence));
  connect();
  addEventListener("online", connectNow);
  document.addEventListener("visibilitychange", () => !document.hidden && connectNow());
}

export function pause(button) {
  button.addEventListener("click", () => {
    isPaused = !isPaused;
    button.setAttribute("aria-pressed", String(isPaused));
    button.querySelector("span").textContent = isPaused ? "Resume" : "Pause";
    setPaused(isPaused);
    pausePolling(isPaused);
    storeWindowInAddress(Number(button.dataset.rangeS), button.dataset.range);
    if (isPaused) socket?.close();
    else connectNow();
  });
}

// Stores the shown time range in the address while the page is paused.
function storeWindowInAddress(rangeS, range) {
  const times = tableOf("points")?.columns.at ?? [];
  if (!rangeS || !times.length) return;
  const end = Math.floor(times.at(-1) * 1000) / 1000;
  changeAddress(isPaused ? { from: end - rangeS, to: end, range: null } : { from: null, to: null, range });
}

function connect() {
  clearTimeout(timer);
  timer = null;
  const rows = document.querySelector("[data-rows]"); // a table whose texts the feed sends as well
  const scheme = location.protocol === "https:" ? "wss" : "ws";
  const shown = rows ? `&rows=${encodeURIComponent(rows.dataset.rows)}` : "";
  const own = new WebSocket(`${scheme}://${location.host}${root}/live?after=${sequence}&run=${encodeURIComponent(frame.run)}${shown}`);
  socket = own;
  own.onmessage = (event) => receive(JSON.parse(event.data));
  own.onclose = (event) => {
    if (socket !== own) return;
    socket = null;
    if (isPaused) return;
    if (event.code === CLOSED_FOR_LOGIN) connectionLost("login", null);
    else connectionLost("web", connectLater() / 1000);
  };
}

// Schedules the next connection attempt. Returns the delay in milliseconds.
function connectLater() {
  const rest = delay * (0.7 + 0.6 * Math.random());
  timer = setTimeout(connect, rest);
  delay = Math.min(delay * 1.7, MAX_DELAY_MS);
  return rest;
}

function connectNow() {
  if (socket || isPaused) return;
  delay = FIRST_DELAY_MS;
  connect();
}

// Handles a message of web/live/frames.py.
function receive(message) {
  delay = FIRST_DELAY_MS;
  if (message.kind === "rows") {
    patchLiveTexts(message.live_texts);
    dispatch("live-rows", message.members);
    return;
  }
  const isOther = message.run !== undefined && message.run !== frame.run;
  const isOutdated = message.build !== undefined && message.build !== frame.build;
  const wentBack = message.seq !== undefined && message.seq < sequence;
  if (isOther || isOutdated || wentBack) {
    reload();
    return;
  }
  dataReceived(message.age, message.feed ?? "live", message.problem ?? "", message.next ?? null);
  if (message.seq === undefined) return;
  sequence = message.seq;
  patchLiveTexts(message.live_texts);
  patchRegions(message.html);
  addAnnotations(message.annotations);
  addPoints(message.points);
  for (const name of message.changed) dispatch(`changed-${name}`);
  dispatch("live-frame");
}

function reload() {
  isPaused = true;
  socket?.close();
  setTimeout(() => location.reload(), RELOAD_MS);
}

function patchRegions(regions) {
  for (const [name, html] of Object.entries(regions)) {
    for (const element of document.querySelectorAll(`[data-region="${CSS.escape(name)}"]`)) {
      const template = document.createElement("template");
      template.innerHTML = html; // rendered and escaped by our own server
      refill(element, template.content);
    }
    dispatch("live-region");
  }
}
