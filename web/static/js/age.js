// Age of the data by the browser's clock, which continues to count when no updates arrive.
import { duration } from "./formats.js";

const STALE_AFTER_S = 5;
const STEP_MS = 200;
const PULSE_MS = 900;
const RING = [{ transform: "scale(1)", opacity: 0.7 }, { transform: "scale(2.6)", opacity: 0 }];
const calm = matchMedia("(prefers-reduced-motion: reduce)");

let badge = null;
let base = null; // age of the data at the last message, in seconds; null before any report
let receivedAt = Date.now();
let feed = "connecting";
let problem = "";
let cut = ""; // "web" or "login" while the page has no connection
let triedAt = null; // time of the next connection attempt, in milliseconds; null during an attempt
let isPaused = false;

export function age(element) {
  badge = element;
  base = element.dataset.age === "" ? null : Number(element.dataset.age);
  feed = element.dataset.feed;
  problem = element.dataset.problem;
  triedAt = moment(element.dataset.next === "" ? null : Number(element.dataset.next));
  setInterval(show, STEP_MS);
  show();
}

// seconds: age of the data at this message; null before any report. next: seconds until dataflow is dialled again.
export function dataReceived(seconds, feedState, feedProblem, next) {
  const isFresh = seconds !== null && feedState === "live" && seconds < 1;
  [base, receivedAt, feed, problem, cut, triedAt] = [seconds, Date.now(), feedState, feedProblem, "", moment(next)];
  if (isFresh) pulse();
  show();
}

// next: seconds until the next connection attempt; null without one.
export function connectionLost(cause, next) {
  [cut, triedAt] = [cause, moment(next)];
  show();
}

export function setPaused(value) {
  isPaused = value;
  show();
}

function show() {
  if (!badge) return;
  const seconds = base === null ? null : base + (Date.now() - receivedAt) / 1000;
  const isStale = seconds !== null && seconds >= STALE_AFTER_S;
  const state = isPaused ? "paused" : seconds === null ? "none" : isStale ? "stale" : "live";
  if (badge.dataset.state !== state) badge.dataset.state = state;
  const words = {
    paused: seconds === null ? "paused" : `paused, ${duration(seconds)} old`,
    none: "no data yet",
    stale: `stale for ${whole(seconds ?? 0)}`,
    live: `live · ${duration(Math.max(0.1, seconds ?? 0))}`,
  };
  setText(badge.querySelector(".age-text"), words[state]);
  document.documentElement.toggleAttribute("data-stale", isStale && !isPaused);
  showBanner(isStale && !isPaused, seconds);
  const waiting = document.querySelector('[data-part="problem"]');
  if (waiting) waiting.textContent = cut ? explanation() : problem || "Connecting…";
}

function showBanner(isShown, seconds) {
  const banner = document.getElementById("banner");
  const isNeeded = isShown || cut === "login";
  if (banner.hidden === isNeeded) banner.hidden = !isNeeded;
  if (!isNeeded) return;
  banner.querySelector(".banner-title").textContent =
    cut === "login" ? "You are logged out." : `These numbers are ${whole(seconds)} old.`;
  setText(banner.querySelector(".banner-text"), explanation());
  setText(banner.querySelector(".banner-problem"), cut ? "" : problem);
}

function explanation() {
  if (cut === "login") return "Log in again with a new link: the web process prints one at its start.";
  if (cut === "web") return `The web process does not answer; ${next()}. The run is not affected.`;
  if (feed === "live") return "Dataflow is connected but sends no report. This page updates when it does.";
  return `Dataflow does not answer; ${next()}.`;
}

function moment(seconds) {
  return seconds === null ? null : Date.now() + 1000 * seconds;
}

function next() {
  const left = triedAt === null ? 0 : (triedAt - Date.now()) / 1000;
  return left > 0 ? `next try in ${Math.ceil(left)}\u202fs` : "trying now";
}

function whole(seconds) {
  return seconds < 10 ? `${Math.floor(seconds)}\u202fs` : duration(seconds);
}

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// Animates only properties that the compositor handles: repainting a ring would cost more than the rest of the page.
function pulse() {
  if (calm.matches || document.hidden) return;
  const dot = badge?.querySelector(".age-dot");
  dot?.animate(RING, { duration: PULSE_MS, easing: "ease-out", pseudoElement: "::after" });
}
