// Launch form: checks the current values after each change. The preview says "Checking" until their answer has come;
// answers to older values are dropped. Fields and text of the recipe follow each other.
const TYPING_MS = 250;
const CHOICE_MS = 20;
const RETRY_MS = 3000;

export function launch(form) {
  const edited = form.elements.edited;
  let version = 0;
  let timer = null;
  let request = null;
  let sent = values(form);

  form.addEventListener("input", (event) => changed(event.target, TYPING_MS));
  form.addEventListener("change", (event) => changed(event.target, CHOICE_MS));
  form.addEventListener("scroll", (event) => event.target.id === "recipe-text" && follow(event.target), true);

  function changed(field, delay) {
    if (field.name === "reason" || field.name === "edited") return;
    if (field.name === "text") edited.value = "text";
    else if (field.name.startsWith("set.")) edited.value = "form";
    if (field.name === "text") number(field);
    if (values(form) === sent) return;
    say("checking", "Checking…");
    plan(delay);
  }

  function plan(delay) {
    version += 1;
    request?.abort();
    clearTimeout(timer);
    timer = setTimeout(check, delay);
  }

  async function check() {
    const own = version;
    sent = values(form);
    request = new AbortController();
    try {
      const body = new URLSearchParams(new FormData(form));
      const answer = await fetch(form.dataset.from, { method: "POST", body, signal: request.signal });
      if (!answer.ok && answer.status !== 403) throw new Error(`the server answered ${answer.status}`);
      const html = await answer.text();
      if (own === version) show(html);
    } catch (problem) {
      if (own !== version) return;
      say("unchecked", `Not checked: ${problem.message}. Trying again…`);
      plan(RETRY_MS);
    }
  }

  function say(state, text) {
    const preview = form.querySelector("#preview");
    preview.dataset.state = state;
    preview.querySelector("#preview-title").textContent = text;
  }

  function show(html) {
    const template = document.createElement("template");
    template.innerHTML = html; // rendered and escaped by our own server
    const preview = template.content.querySelector("#preview");
    if (!preview) throw new Error("the answer has no preview");
    replace(form.querySelector("#preview"), preview);
    window.htmx.process(preview);
    const fields = template.content.querySelector("#launch-fields");
    if (fields) replace(form.querySelector("#launch-fields"), fields);
    else mark(preview);
    edit(template.content);
    sent = values(form);
  }

  // Shows each problem at its field.
  function mark(preview) {
    const problems = new Map();
    for (const item of preview.querySelectorAll("[data-field]")) {
      const key = item.dataset.field;
      problems.set(key, [...(problems.get(key) ?? []), item.querySelector("bdi").textContent]);
    }
    for (const setting of form.querySelectorAll(".setting[data-field]")) {
      const messages = problems.get(setting.dataset.field) ?? [];
      setting.toggleAttribute("data-tone", messages.length > 0);
      if (messages.length) setting.dataset.tone = "bad";
      setting.querySelector(".field-problem").textContent = messages.join("; ");
      for (const field of setting.querySelectorAll("input, select")) field.ariaInvalid = messages.length ? "true" : null;
      if (messages.length) setting.closest("details")?.setAttribute("open", "");
    }
  }

  // Takes over the text unless the user edits it, and marks its lines with problems.
  function edit(answer) {
    const text = form.elements.text;
    if (edited.value !== "text") text.value = answer.querySelector("#recipe-text").value;
    form.querySelector("#editor-problems").replaceWith(answer.querySelector("#editor-problems"));
    form.querySelector("#editor-lines").replaceWith(answer.querySelector("#editor-lines"));
    text.ariaInvalid = form.querySelector("#editor-problems li") ? "true" : null;
    follow(text);
  }

  // Numbers the lines while the text is not checked yet.
  function number(text) {
    const lines = form.querySelector("#editor-lines");
    const count = text.value.split("\n").length;
    while (lines.children.length > count) lines.lastElementChild.remove();
    for (let next = lines.children.length + 1; next <= count; next += 1)
      lines.append(Object.assign(document.createElement("span"), { textContent: next }));
  }

  function follow(text) {
    form.querySelector("#editor-lines").scrollTop = text.scrollTop;
  }
}

function values(form) {
  const data = new URLSearchParams(new FormData(form));
  for (const name of ["fields", "edited", "reason", "form_token"]) data.delete(name);
  return data.toString();
}

// Replaces a part of the form; its focused field and open parts stay as they are.
function replace(old, fresh) {
  for (const details of old.querySelectorAll("details")) {
    const same = details.id && fresh.querySelector(`#${details.id}`);
    if (same && details.open) same.open = true;
  }
  const focused = old.contains(document.activeElement) ? document.activeElement : null;
  old.replaceWith(fresh);
  if (!focused?.id) return;
  const same = document.getElementById(focused.id);
  same?.focus({ preventScroll: true });
  if (same?.matches("input") && focused.selectionStart !== null) same.setSelectionRange(focused.selectionStart, focused.selectionEnd);
}
