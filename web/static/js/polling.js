// Polling regions: suspended while the page is paused or hidden, skipped if unchanged (ETag), and kept when a request
// fails.
const tags = new WeakMap(); // ETag of each region, see web/requests/responses.py
let isSuspended = false;

// Pauses or resumes all polling.
export function pausePolling(value) {
  isSuspended = value;
}

export function isPolling() {
  return !isSuspended && !document.hidden;
}

document.addEventListener("htmx:before:request", (event) => {
  const { ctx } = event.detail;
  if (!isPollingRequest(ctx)) return;
  if (!isPolling()) {
    event.preventDefault();
    return;
  }
  const tag = tags.get(ctx.sourceElement);
  if (tag) ctx.request.headers["If-None-Match"] = tag;
});

document.addEventListener("htmx:before:response", (event) => {
  const { ctx } = event.detail;
  if (!isPollingRequest(ctx)) return;
  const { raw } = ctx.response;
  if (raw.status >= 400) {
    event.preventDefault();
    raw.body?.cancel();
  } else if (raw.headers.has("etag")) tags.set(ctx.sourceElement, raw.headers.get("etag"));
});

// Distinguishes requests of a timer or the live feed from requests of the user.
function isPollingRequest(ctx) {
  const name = ctx.sourceEvent?.type ?? "";
  return name === "every" || name === "live-frame" || name.startsWith("changed-");
}
