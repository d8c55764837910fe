// Button that copies the text of another element.
export function copy(button) {
  const name = button.textContent;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(document.getElementById(button.dataset.of).textContent);
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = name), 2000);
  });
}
