// Token view: shows number, log-probability and version of the token at the pointer, or at the cursor of a focused turn.
export function tokens(list) {
  const output = document.querySelector("[data-part=token-reading]");
  let shown = null;
  const show = (token) => {
    if (!token || token === shown) return;
    shown?.removeAttribute("data-current");
    shown = token;
    shown.setAttribute("data-current", "");
    output.textContent = reading(token);
  };
  list.addEventListener("pointerover", (event) => show(event.target.closest(".tokens > i")));
  list.addEventListener("click", (event) => show(event.target.closest(".tokens > i")));
  list.addEventListener("focusin", (event) => {
    if (event.target.matches(".tokens") && shown?.parentElement !== event.target) show(event.target.firstElementChild);
  });
  list.addEventListener("keydown", (event) => {
    if (!event.target.matches(".tokens") || event.ctrlKey || event.altKey || event.metaKey) return;
    const next = target(event.key, event.target, shown?.parentElement === event.target ? shown : null);
    if (!next) return;
    show(next);
    next.scrollIntoView({ block: "nearest" });
    event.preventDefault();
  });
}

function target(key, turn, current) {
  const ends = { Home: turn.firstElementChild, End: turn.lastElementChild };
  const beside = { ArrowRight: current?.nextElementSibling, ArrowLeft: current?.previousElementSibling };
  return ends[key] ?? beside[key] ?? null;
}

function reading(token) {
  const turn = token.parentElement;
  const place = [...turn.children].indexOf(token);
  const logprob = JSON.parse(turn.dataset.logprobs)[place];
  const text = `Token ${place + 1} of ${turn.children.length}, \u201c${token.textContent}\u201d, ${turn.dataset.version}`;
  if (logprob === null) return `${text}: no log-probability`;
  return `${text}: log-probability ${logprob.toFixed(3)}, probability ${(100 * Math.exp(logprob)).toPrecision(3)}%`;
}
