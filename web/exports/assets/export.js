// Draws the charts of an exported file with uPlot, which is inlined before: zoom, a common cursor and a legend.
(() => {
  const { charts } = JSON.parse(document.getElementById("data").textContent);
  const style = () => getComputedStyle(document.documentElement);
  const colour = (name) => {
    const probe = document.body.appendChild(document.createElement("i"));
    probe.style.color = style().getPropertyValue(name);
    const value = getComputedStyle(probe).color;
    probe.remove();
    return value;
  };
  const short = (value) => (value === null || value === undefined ? "–" : Math.abs(value) >= 1e5 || (value && Math.abs(value) < 1e-3) ? value.toExponential(2) : String(Number(value.toPrecision(4))));
  const clock = (seconds) => (seconds < 120 ? `${Math.round(seconds)} s` : seconds < 7200 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`);
  const drawn = new Map();
  const figures = document.querySelectorAll("[data-chart]");
  const HEIGHT = 190;
  const PRINTED_WIDTH = 300; // of two charts beside each other on A4 or Letter
  let isPrinted = false;

  function draw(figure) {
    const chart = charts[Number(figure.dataset.chart)];
    const host = figure.querySelector(".plot");
    const xText = chart.by === "step" ? String : clock;
    const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    const options = {
      width: isPrinted ? PRINTED_WIDTH : host.clientWidth,
      height: HEIGHT,
      cursor: { sync: { key: chart.by }, y: false },
      scales: { x: { time: false } },
      axes: [{ ...axis, size: 30, values: (_, ticks) => ticks.map(xText) }, { ...axis, size: 58, values: (_, ticks) => ticks.map(short) }],
      series: [
        { label: chart.by === "step" ? "step" : "time", value: (_, x) => (x === null ? "–" : xText(x)) },
        { label: chart.label, stroke: colour("--accent"), width: 1.75, spanGaps: true, value: (_, value) => short(value), points: { show: chart.x.length < 40 } },
      ],
    };
    drawn.get(figure)?.destroy();
    host.replaceChildren();
    drawn.set(figure, new uPlot(options, [chart.x, chart.y], host));
  }

  const seen = new IntersectionObserver((entries) => entries.forEach(({ isIntersecting, target }) => isIntersecting && !drawn.has(target) && draw(target)), { rootMargin: "200px" });
  const sized = new ResizeObserver(() => isPrinted || drawn.forEach((plot, figure) => plot.setSize({ width: figure.querySelector(".plot").clientWidth, height: HEIGHT })));
  document.documentElement.classList.add("has-scripts");
  figures.forEach((figure) => seen.observe(figure));
  sized.observe(document.querySelector(".charts"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => [...drawn.keys()].forEach(draw));
  const print = (value) => {
    isPrinted = value;
    document.documentElement.classList.toggle("printing", value);
    figures.forEach(draw);
  };
  addEventListener("beforeprint", () => print(true));
  addEventListener("afterprint", () => print(false));
})();
