// Downloads a chart as an image with its title, its legend and the page's background.
const MARGIN = 16;
const LINE = 20;

export function download(figure, u) {
  const source = u.ctx.canvas;
  const ratio = source.width / u.width;
  const entries = [...figure.querySelectorAll(".legend li:not([hidden])")];
  const image = document.createElement("canvas");
  [image.width, image.height] = [source.width + 2 * MARGIN * ratio, source.height + (2 * MARGIN + 3 * LINE) * ratio];
  const context = image.getContext("2d");
  const style = getComputedStyle(figure);
  context.scale(ratio, ratio);
  context.fillStyle = getComputedStyle(figure.closest(".card") ?? document.body).backgroundColor;
  context.fillRect(0, 0, image.width, image.height);
  context.fillStyle = style.color;
  context.textBaseline = "top";
  context.font = `600 14px ${style.fontFamily}`;
  context.fillText(textOf(figure, ".chart-insight, .multiple-title"), MARGIN, MARGIN);
  context.font = `12px ${style.fontFamily}`;
  context.fillText(textOf(figure, ".chart-label"), MARGIN, MARGIN + LINE);
  let x = MARGIN;
  for (const entry of entries) {
    const swatch = getComputedStyle(entry.querySelector(".swatch") ?? entry);
    const isArea = entry.querySelector("[data-band]");
    context.strokeStyle = isArea ? swatch.backgroundColor : swatch.color;
    context.lineWidth = isArea ? 10 : 2;
    context.setLineDash(swatch.getPropertyValue("--dash").split(" ").filter(Boolean).map(Number));
    context.stroke(new Path2D(`M${x} ${MARGIN + 2 * LINE + 6}h14`));
    const text = entry.innerText.replace(/\s+/g, " ").trim();
    context.fillText(text, x + 18, MARGIN + 2 * LINE);
    x += 18 + context.measureText(text).width + MARGIN;
  }
  context.drawImage(source, MARGIN, MARGIN + 3 * LINE, source.width / ratio, source.height / ratio);
  image.toBlob((blob) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = `${JSON.parse(figure.dataset.options).name}.png`;
    link.click();
    URL.revokeObjectURL(link.href);
  });
}

const textOf = (figure, selector) => figure.querySelector(selector)?.textContent.trim() ?? "";
