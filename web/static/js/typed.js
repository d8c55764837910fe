// Keeps what was typed into forms while a person logs in again. The server sets the cookie when it refuses a form because
// its session has ended. Passwords and hidden fields are not kept, and nothing outlives the tab.
import { root } from "./address.js";

const STORE = "astraflow-typed";
const COOKIE = "astraflow_typed";
const NOT_KEPT = ["hidden", "password", "file", "submit", "button", "fieldset"];
const NOTE = "Your session had ended, and nothing was sent. What you had typed is here again: check it, then send it.";

const forms = () => [...document.querySelectorAll("form[method=post]:not([action$='/login'])")];
const pathOf = (form) => new URL(form.getAttribute("action"), location.href).pathname;
const isChoice = (field) => field.type === "checkbox" || field.type === "radio";
const fieldsOf = (form) => [...form.elements].filter((field) => field.name && !NOT_KEPT.includes(field.type));

function isChanged(field) {
  if (isChoice(field)) return field.checked !== field.defaultChecked;
  if (field.options) return [...field.options].some((option) => option.selected !== option.defaultSelected);
  return field.value !== field.defaultValue;
}

function keep() {
  const kept = {};
  for (const form of forms()) {
    const fields = fieldsOf(form).filter(isChanged);
    if (fields.length) kept[pathOf(form)] = fields.map(({ name, value, checked }) => ({ name, value, checked }));
  }
  if (Object.keys(kept).length) sessionStorage.setItem(STORE, JSON.stringify({ page: location.pathname, forms: kept }));
}

const fieldOf = (form, { name, value }) =>
  fieldsOf(form).find((field) => field.name === name && (!isChoice(field) || field.value === value));

function fill(form, typed) {
  for (const { name, value, checked } of typed) {
    const field = fieldOf(form, { name, value });
    if (isChoice(field)) field.checked = checked;
    else field.value = value;
    field.dispatchEvent(new Event("input", { bubbles: true }));
    field.dispatchEvent(new Event("change", { bubbles: true }));
  }
  const note = document.createElement("p");
  note.setAttribute("role", "status");
  note.textContent = NOTE;
  form.prepend(note);
}

function takeKept() {
  const isRefused = document.cookie.split("; ").includes(`${COOKIE}=1`);
  const kept = JSON.parse(sessionStorage.getItem(STORE) ?? "null");
  if (isRefused && kept?.page !== location.pathname) return {}; // the error page, or the login
  sessionStorage.removeItem(STORE);
  document.cookie = `${COOKIE}=; max-age=0; path=${root}/`;
  return isRefused ? kept.forms : {};
}

const kept = takeKept();

// Also after a swap: a form of a dialog appears when the person opens the dialog again.
function restore() {
  for (const form of forms()) {
    const path = pathOf(form);
    if (!kept[path]?.every((typed) => fieldOf(form, typed))) continue; // another form may have the same address
    fill(form, kept[path]);
    delete kept[path];
  }
}

restore();
document.addEventListener("htmx:after:swap", restore);
addEventListener("pagehide", keep);
