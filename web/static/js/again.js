// Regions of the page that read themselves again: none while the page is paused or nobody sees it, none twice alike,
// and what they show stays when there is no answer.
const tags = new WeakMap(); // what each region shows, as web/reading/again.py names it
let isHeld = false;

// One switch for everything that changes by itself.
export function holdReading(value) {
  isHeld = value;
}

export function isReading() {
  return !isHeld && !document.hidden;
}

document.addEventListener("htmx:before:request", (event) => {
  const { ctx } = event.detail;
  if (!isByItself(ctx)) return;
  if (!isReading()) {
    event.preventDefault();
    return;
  }
  const tag = tags.get(ctx.sourceElement);
  if (tag) ctx.request.headers["If-None-Match"] = tag;
});

document.addEventListener("htmx:before:response", (event) => {
  const { ctx } = event.detail;
  if (!isByItself(ctx)) return;
  const { raw } = ctx.response;
  if (raw.status >= 400) {
    event.preventDefault();
    raw.body?.cancel();
  } else if (raw.headers.has("etag")) tags.set(ctx.sourceElement, raw.headers.get("etag"));
});

// Nobody pressed anything: a clock or the live feed asked.
function isByItself(ctx) {
  const name = ctx.sourceEvent?.type ?? "";
  return name === "every" || name === "live-frame" || name.startsWith("changed-");
}
