// Charts that follow the data, the size of their box and the theme.
import uPlot from "uplot";
import { html, signal, useEffect, useRef } from "./dom.js";
import { count } from "./figures.js";

export const theme = signal(document.documentElement.dataset.theme);

export function setTheme(next) {
  localStorage.setItem("ringdove-theme", next);
  document.documentElement.dataset.theme = next;
  theme.value = next;
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// series: [{label, colour: "--c1", fill}], data: [xs, ys, ...]; format: of the y axis.
export function Chart({ label, series, data, format = count, height = 168, time = true, x, log = false, marks = [] }) {
  const box = useRef();
  const plot = useRef();
  const tip = useRef();
  const dataNow = useRef(data);
  const marksNow = useRef(marks);
  dataNow.current = data;
  marksNow.current = marks;
  const shown = theme.value;
  const shape = JSON.stringify([series, time, log, height]);

  useEffect(() => {
    const axis = (more) => ({
      stroke: colour("--muted"),
      grid: { stroke: colour("--line"), width: 1 },
      ticks: { show: false },
      font: "11px system-ui, sans-serif",
      ...more,
    });
    const options = {
      width: box.current.clientWidth,
      height,
      padding: [10, 10, 0, 0],
      legend: { show: false },
      cursor: { y: false, points: { size: 6 } },
      scales: { x: { time }, y: log ? { distr: 3 } : { range: (_, low, high) => [0, Math.max(high * 1.1, 1)] } },
      axes: [
        axis({ size: 30, gap: 8, space: 70, ...(time ? { values: clock, incrs: SECONDS } : x ? { values: (_, ticks) => ticks.map(x) } : {}) }),
        axis({ size: 58, space: 34, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : format(tick))) }),
      ],
      series: [
        {},
        ...series.map((one) => ({
          label: one.label,
          stroke: colour(one.colour),
          width: 1.75,
          dash: one.dash,
          fill: one.fill ? `${colour(one.colour)}22` : undefined,
          points: { show: !time },
          spanGaps: true,
        })),
      ],
      hooks: { draw: [(made) => drawMarks(made, marksNow.current)], setCursor: [(made) => tellCursor(made, tip.current, series, format, time ? null : x)] },
    };
    plot.current = new uPlot(options, dataNow.current, box.current);
    const observer = new ResizeObserver(() => box.current && plot.current?.setSize({ width: box.current.clientWidth, height }));
    observer.observe(box.current);
    return () => {
      observer.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [shown, shape]);

  useEffect(() => plot.current?.setData(data), [data]);

  const last = series.map((one, i) => `${one.label} ${format(data[i + 1]?.findLast((value) => value !== null) ?? null)}`);
  return html`
    <figure class="chart">
      <figcaption>
        <span class="chart-title">${label}</span>
        <span class="legend">${series.map((one) => html`<span key=${one.label}><i class="dot ${one.colour.slice(2)}"></i>${one.label}</span>`)}</span>
      </figcaption>
      <div class="plot" role="img" aria-label=${`${label}: ${last.join(", ")}`} ref=${box}>
        <div class="tip" ref=${tip} hidden></div>
      </div>
    </figure>`;
}

// Between two labels of the time axis.
const SECONDS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600];

function clock(_, ticks) {
  return ticks.map((tick) => new Date(tick * 1000).toLocaleTimeString("en-GB", { minute: "2-digit", second: "2-digit", hour: "2-digit" }));
}

function drawMarks(plot, marks) {
  const { ctx, bbox } = plot;
  for (const [row, mark] of marks.entries()) {
    if (mark.at === null || mark.at === undefined) continue;
    const across = mark.scale === "y";
    const at = plot.valToPos(mark.at, across ? "y" : "x", true);
    ctx.save();
    ctx.strokeStyle = colour(mark.colour);
    ctx.fillStyle = colour(mark.colour);
    ctx.setLineDash([4 * devicePixelRatio, 4 * devicePixelRatio]);
    ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
    ctx.beginPath();
    if (across) {
      ctx.moveTo(bbox.left, at);
      ctx.lineTo(bbox.left + bbox.width, at);
      ctx.textAlign = "left";
      const above = at > bbox.top + 16 * devicePixelRatio;
      ctx.fillText(mark.label, bbox.left + 6 * devicePixelRatio, at + (above ? -4 : 13) * devicePixelRatio);
    } else {
      ctx.moveTo(at, bbox.top);
      ctx.lineTo(at, bbox.top + bbox.height);
      ctx.textAlign = at > bbox.left + bbox.width / 2 ? "right" : "left";
      ctx.fillText(mark.label, at + (ctx.textAlign === "right" ? -5 : 5) * devicePixelRatio, bbox.top + (11 + 14 * row) * devicePixelRatio);
    }
    ctx.stroke();
    ctx.restore();
  }
}

function tellCursor(plot, tip, series, format, x) {
  const at = plot.cursor.idx;
  if (at === null || at === undefined || plot.cursor.left < 0) {
    tip.hidden = true;
    return;
  }
  const head = x ? x(plot.data[0][at]) : new Date(plot.data[0][at] * 1000).toLocaleTimeString("en-GB");
  tip.textContent = [head, ...series.map((one, i) => `${one.label} ${format(plot.data[i + 1][at])}`)].join(" · ");
  tip.hidden = false;
}

// A line without axes, for a row or a tile.
export function Spark({ values, width = 96, height = 22, colour: name = "c1" }) {
  const known = values.filter((value) => value !== null && value !== undefined);
  if (known.length < 2) return html`<svg class="spark" width=${width} height=${height} aria-hidden="true"></svg>`;
  const most = Math.max(...known) || 1;
  const step = width / (known.length - 1);
  const y = (value) => height - 2 - (value / most) * (height - 4);
  const line = known.map((value, i) => `${i ? "L" : "M"}${(i * step).toFixed(1)} ${y(value).toFixed(1)}`).join("");
  return html`
    <svg class="spark ${name} ${known.some(Boolean) ? "" : "flat"}" width=${width} height=${height} viewBox=${`0 0 ${width} ${height}`} preserveAspectRatio="none" aria-hidden="true">
      <path class="area" d=${`${line}L${width} ${height}L0 ${height}Z`} />
      <path class="line" d=${line} />
    </svg>`;
}
