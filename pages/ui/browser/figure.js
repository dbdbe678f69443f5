// From a packed panel to what Plotly draws. No labels here: they would be markup to Plotly and are drawn by live_chart.js.

import { channels, fade } from "./ink.js"
import { offset, offsetTicks } from "./words.js"

export const MARGIN = { l: 48, r: 10, t: 18, b: 22 } // the strip above holds the labels of marks

const ROWS = { line: 1, band: 2, quantile: 3 }

export function figure(spec, paint, width) {
  const heat = spec.series.find((s) => s.kind === "heat")
  return { traces: heat ? heatTraces(spec, heat, paint) : lineTraces(spec, paint), layout: layout(spec, heat, paint, width) }
}

const times = ({ start_ms, step_ms, points }) => Float64Array.from({ length: points }, (_, i) => start_ms + i * step_ms)

function lineTraces(spec, paint) {
  const x = times(spec)
  const line = (y, extra) => ({ type: "scatter", mode: "lines", x, y, hoverinfo: "skip", showlegend: false, connectgaps: false, ...extra })
  return spec.series.flatMap((s) => {
    const color = paint.of(s.tone)
    if (s.kind === "line") return [line(spec.row(s.row), { line: { color, width: s.width, dash: s.dash ? "dot" : "solid" } }), ...alone(spec.row(s.row), x, color, line)]
    const edge = { line: { width: 0, shape: s.kind === "quantile" ? "hv" : "linear" } }
    const [low, high] = bounded(spec.row(s.row), spec.row(s.row + 1))
    const band = pieces(low, high).flatMap(([a, b]) => [
      line(low.subarray(a, b), { ...edge, x: x.subarray(a, b) }),
      line(high.subarray(a, b), { ...edge, x: x.subarray(a, b), fill: "tonexty", fillcolor: fade(color, s.alpha) }),
    ])
    return s.kind === "quantile" ? [...band, line(spec.row(s.row + 2), { line: { color, width: s.width } })] : band
  })
}

// A single sample between two gaps has no line: a dot says that it is there.
function alone(y, x, color, line) {
  const lonely = []
  for (let i = 0; i < y.length; i++) if (!Number.isNaN(y[i]) && !(i > 0 && !Number.isNaN(y[i - 1])) && !(i < y.length - 1 && !Number.isNaN(y[i + 1]))) lonely.push(i)
  if (!lonely.length || lonely.length > 60) return []
  return [line(lonely.map((i) => y[i]), { x: lonely.map((i) => x[i]), mode: "markers", marker: { color, size: 4 } })]
}

// The last bucket has no upper bound: draw it one and a half times its lower one, so that the band leaves the estimate visibly open.
function bounded(low, high) {
  return [low.map((v) => (Number.isFinite(v) ? v : Number.isNaN(v) ? NaN : 0)), high.map((v, i) => (Number.isFinite(v) ? v : Number.isNaN(v) ? NaN : low[i] * 1.5))]
}

// A filled band must not bridge a gap.
function pieces(low, high) {
  const found = []
  let from = -1
  for (let i = 0; i <= low.length; i++) {
    const there = i < low.length && !Number.isNaN(low[i]) && !Number.isNaN(high[i])
    if (there && from < 0) from = i
    if (!there && from >= 0) { found.push([from, i]); from = -1 }
  }
  return found.length <= 24 ? found : [[0, low.length]]
}

function heatTraces(spec, heat, paint) {
  const z = heat.buckets.map((_, b) => spec.row(heat.row + b))
  const [r, g, b] = channels(paint.accent)
  const shade = (a) => `rgba(${r},${g},${b},${a})`
  return [{
    type: "heatmap", x: times(spec), y: heat.buckets.map((_, i) => i), z: z.map((row) => row.map((v) => (v > 0 ? Math.sqrt(v) : NaN))),
    colorscale: [[0, shade(0.08)], [0.25, shade(0.35)], [0.6, shade(0.7)], [1, shade(1)]], showscale: false, hoverinfo: "skip", zsmooth: false, xgap: 0, ygap: 1,
  }]
}

function layout(spec, heat, paint, width) {
  const axis = { color: paint.muted, gridcolor: paint.grid, linecolor: paint.grid, zeroline: false, tickfont: { size: 11 }, ticks: "", automargin: false }
  return {
    width: width || undefined, height: spec.height, margin: { ...MARGIN, l: spec.margin_left ?? MARGIN.l }, showlegend: false, hovermode: false,
    dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { family: paint.font, size: 11, color: paint.muted },
    uirevision: spec.axis.join(),
    xaxis: spec.zeros.length ? offsets(spec, axis, width) : { ...axis, type: "date", range: [...spec.axis], showgrid: false, nticks: 6, tickformat: "%H:%M", tickformatstops: [{ dtickrange: [null, 59000], value: "%H:%M:%S" }, { dtickrange: [86400000, null], value: "%d %b" }] },
    yaxis: heat ? heatAxis(heat, axis) : { ...axis, fixedrange: true, nticks: 5, ...scale(spec) },
    shapes: [...marks(spec, paint), ...limits(spec, heat, paint), ...future(spec, paint), ...cursor(spec, paint)],
    annotations: [],
  }
}

function offsets(spec, axis, width) {
  const [from, to] = spec.axis
  const tickvals = offsetTicks(from, to, Math.max(2, Math.min(7, Math.floor((width || 400) / 75))))
  return { ...axis, type: "linear", range: [from, to], showgrid: false, tickvals, ticktext: tickvals.map(offset) }
}

function heatAxis(heat, axis) {
  const every = Math.max(1, Math.ceil(heat.buckets.length / 8))
  const shown = heat.buckets.map((_, i) => i).filter((i) => i % every === 0 || i === heat.buckets.length - 1)
  return { ...axis, fixedrange: true, tickvals: shown.map((i) => i + 0.5), ticktext: shown.map((i) => heat.edges[i]), range: [-0.5, heat.buckets.length - 0.5], showgrid: false }
}

function marks(spec, paint) {
  const [from, to] = spec.axis
  return spec.marks.flatMap((m) => {
    const color = paint.of(m.tone)
    const edge = m.from_ms < from ? [] : [{ type: "line", xref: "x", yref: "paper", x0: m.from_ms, x1: m.from_ms, y0: 0, y1: 1, line: { color: fade(color, 0.75), width: 1, dash: m.line ? "dot" : "solid" } }]
    if (m.line) return edge
    return [{ type: "rect", layer: "below", xref: "x", yref: "paper", x0: Math.max(from, m.from_ms), x1: Math.min(to, m.to_ms ?? spec.start_ms + (spec.points - 1) * spec.step_ms), y0: 0, y1: 1, fillcolor: fade(color, 0.07), line: { width: 0 } }, ...edge]
  })
}

function limits(spec, heat, paint) {
  return spec.limits.map((l) => {
    const y = heat ? heat.limit_row : l.value
    return { type: "line", xref: "paper", yref: "y", x0: 0, x1: 1, y0: y, y1: y, line: { color: fade(paint.text, 0.55), width: 1, dash: "dash" } }
  })
}

// The cursor stands inside what is drawn: what comes after it is pale.
function cursor(spec, paint) {
  const { cursor_ms, axis: [from, to] } = spec
  if (cursor_ms === null || cursor_ms < from || cursor_ms > to) return []
  const place = { xref: "x", yref: "paper", y0: 0, y1: 1, x0: cursor_ms }
  return [
    { type: "rect", layer: "above", ...place, x1: to, fillcolor: fade(paint.panel, 0.55), line: { width: 0 } },
    { type: "line", ...place, x1: cursor_ms, line: { color: fade(paint.text, 0.8), width: 1.5 } },
  ]
}

// In a replay the part that lies behind the cursor's edge has not happened yet.
function future(spec, paint) {
  const end = spec.start_ms + (spec.points - 1) * spec.step_ms
  if (spec.axis[1] - end < spec.step_ms * 2) return []
  return [{ type: "line", xref: "x", yref: "paper", x0: end, x1: end, y0: 0, y1: 1, line: { color: fade(paint.text, 0.6), width: 1 } }]
}

// From zero, with a little air above the highest value; a fixed scale where the quantity has one.
function scale(spec) {
  let top = spec.y_max
  if (top === null) {
    top = 0
    for (const s of spec.series) for (let r = s.row; r < s.row + (ROWS[s.kind] ?? 0); r++) for (const v of spec.row(r)) if (v > top && v < Infinity) top = v
    for (const l of spec.limits) if (l.value > top) top = l.value
    top = top > 0 ? top * 1.12 : 1
  }
  let bottom = 0
  for (const s of spec.series) if (s.kind === "line") for (const v of spec.row(s.row)) if (v < bottom) bottom = v
  const range = [bottom * 1.1, top]
  if (spec.unit === "ratio") return { range: [range[0], top * 1.02], tickformat: top < 0.05 ? ".1%" : ".0%" }
  if (spec.unit === "s") return top < 1 ? { range, tickformat: "~s", ticksuffix: "s" } : { range, ticksuffix: " s" }
  return { range, tickformat: top >= 1000 ? "~s" : top < 0.01 ? "~e" : undefined }
}
