// A time chart that keeps its node: a refresh is one Plotly.react on what is already there. Python side: pages/ui/charts.py.
// Plotly draws lines, bands and heat maps; cursor, readout, marks and messages are ours, so that they are text, links and keyboard.

import { figure, MARGIN } from "./figure.js"
import { ink } from "./ink.js"
import { plotly, unpack } from "./wire.js"
import { between, button, clock, format, link, make, offset } from "./words.js"

const charts = new WeakMap() // parentElement -> Chart
const LABEL = 17 // px: what the label of a limit takes above its line
const groups = new Map() // name -> Set of charts with one time cursor

class Chart {
  constructor(parent) {
    this.root = make("section", "pw-panel", parent)
    const head = make("header", "pw-panel-head", this.root)
    this.title = make("h3", "", head)
    this.unit = make("span", "pw-unit", head)
    this.doubt = this.fold(head, "pw-doubt", "! not trusted")
    this.query = this.fold(head, "pw-fold", "PromQL")
    this.table = this.fold(head, "pw-fold", "Data")
    this.table.root.addEventListener("toggle", () => this.tabulate())
    this.runbook = link("pw-more", head, "Runbook", "", (href) => this.open(href))
    this.legend = make("div", "pw-legend", this.root)
    this.frame = make("div", "pw-plot", this.root)
    this.frame.tabIndex = 0
    this.frame.setAttribute("role", "group")
    this.plot = make("div", "pw-plotly", this.frame)
    this.labels = make("div", "pw-marks", this.frame)
    this.cursor = make("div", "pw-cursor", this.frame)
    this.tip = make("div", "pw-tip", this.frame)
    this.notice = make("div", "pw-notice", this.frame)
    this.chips = new Map()
    this.frame.addEventListener("pointermove", (e) => this.point(e))
    this.frame.addEventListener("pointerleave", () => this.share(null))
    this.frame.addEventListener("pointerdown", (e) => { this.pressed = e.clientX })
    this.frame.addEventListener("click", (e) => this.pick(e))
    this.frame.addEventListener("keydown", (e) => this.key(e))
    this.frame.addEventListener("blur", () => this.share(null))
    this.sized = new ResizeObserver(() => this.fit())
    this.sized.observe(this.frame)
  }

  // A word that opens a box: works by touch and by keyboard, unlike a tooltip.
  fold(parent, className, word) {
    const root = make("details", className, parent)
    make("summary", "", root, word)
    const body = make("div", "pw-fold-body", root)
    root.addEventListener("keydown", (e) => { if (e.key === "Escape") root.open = false })
    return { root, body, show: (there) => { root.hidden = !there } }
  }

  async show({ data, setTriggerValue }) {
    const spec = (this.spec = unpack(data))
    this.send = setTriggerValue
    this.frame.style.height = `${spec.height}px` // the final height before plotly.js is there: nothing jumps
    this.join(spec.group)
    this.title.textContent = spec.title
    this.unit.textContent = spec.unit_label
    this.unit.title = spec.unit_label
    this.doubt.show(spec.taints.length)
    this.doubt.body.replaceChildren(...spec.taints.map((why) => make("p", "", null, why)))
    this.query.show(spec.promql.length)
    this.queries(spec.promql)
    this.table.show(spec.series.length)
    this.runbook.hidden = !spec.runbook
    this.runbook.href = spec.runbook ?? ""
    this.root.classList.toggle("pw-dim", Boolean(spec.dim))
    this.notice.textContent = spec.notice ?? ""
    this.Plotly = await plotly(spec.plotly_url).catch((error) => { this.notice.textContent = `${error.message}. Reload the page.` })
    if (!this.Plotly || spec !== this.spec || this.gone) return // a newer picture arrived while plotly.js was loading
    this.draw()
  }

  async draw() {
    const { spec } = this
    this.paint = ink(this.root)
    this.readout(this.resting)
    const { traces, layout } = figure(spec, this.paint, this.frame.clientWidth)
    await this.Plotly.react(this.plot, traces, layout, { displayModeBar: false, doubleClick: false, showTips: false })
    if (!this.ready) this.plot.on("plotly_relayout", (change) => this.zoomed(change))
    this.ready = true
    this.mark()
    if (this.table.root.open) this.tabulate()
  }

  queries(texts) {
    const shown = texts.join("\n\n")
    if (this.shownQueries === shown) return
    this.shownQueries = shown
    this.query.body.replaceChildren(...texts.flatMap((text) => [make("pre", "", null, text), button("pw-copy", null, "Copy", "Copy this PromQL", async (e) => {
      await navigator.clipboard?.writeText(text)
      e.target.textContent = "Copied"
      setTimeout(() => { e.target.textContent = "Copy" }, 1500)
    })]))
  }

  // Plotly rejects a resize of a plot that is being hidden: only ever set a width, and only when there is one.
  fit() {
    const width = this.frame.clientWidth
    if (!this.ready || this.gone || width === 0 || width === this.plot.layout.width) return
    this.Plotly.relayout(this.plot, { width })
    this.mark()
  }

  get width() { return this.frame.clientWidth - this.margin.l - MARGIN.r }
  get margin() { return { ...MARGIN, l: this.spec.margin_left ?? MARGIN.l } }
  x(ms) { const [from, to] = this.spec.axis; return this.margin.l + ((ms - from) / (to - from)) * this.width }

  // Labels of marks stand above the plot, newest first, right of their mark, else left of it, else they are left out: the mark itself stays.
  mark() {
    const { spec } = this
    const taken = []
    const nodes = []
    for (const mark of [...spec.marks].sort((a, b) => b.from_ms - a.from_ms)) {
      const node = mark.href ? link("pw-mark", null, mark.label, mark.href, (href) => this.open(href)) : make("span", "pw-mark", null, mark.label)
      node.dataset.tone = mark.tone
      this.labels.append(node)
      const at = this.x(Math.max(mark.from_ms, spec.axis[0]))
      const length = node.offsetWidth + 6
      const place = [at + 2, at - length - 2].find((left) => left >= this.margin.l - 2 && left + length <= this.frame.clientWidth && taken.every(([a, b]) => left + length <= a || left >= b))
      if (place === undefined) { node.remove(); continue }
      taken.push([place, place + length])
      node.style.transform = `translateX(${place}px)`
      nodes.push(node)
    }
    this.labels.replaceChildren(...nodes, ...this.limits())
  }

  // Labels of limits stand on their line; under it where they would reach into the labels of marks, and beside a neighbour at the same height.
  limits() {
    const [bottom, top] = this.plot.layout.yaxis.range
    const inner = this.spec.height - MARGIN.t - MARGIN.b
    const taken = []
    return this.spec.limits.map((limit) => {
      const value = this.spec.series.find((s) => s.kind === "heat")?.limit_row ?? limit.value
      const node = make("span", "pw-limit", null, limit.label)
      this.labels.append(node)
      const width = node.offsetWidth
      node.remove()
      const line = MARGIN.t + inner * (1 - (value - bottom) / (top - bottom))
      const y = line - LABEL < MARGIN.t ? line + LABEL : line
      const x = Math.max(this.margin.l + 3, ...taken.filter((other) => Math.abs(other.y - y) < LABEL).map((other) => other.end + 8))
      taken.push({ y, end: x + width })
      node.style.transform = `translate(${x}px, ${y}px)`
      return node
    })
  }

  open(href) { this.send("opened", href) }

  timeAt(event) {
    const part = (event.clientX - this.frame.getBoundingClientRect().left - this.margin.l) / this.width
    if (!this.ready || part < 0 || part > 1) return null
    const [from, to] = this.spec.axis
    return from + part * (to - from)
  }

  index(time) {
    const { start_ms, step_ms, points } = this.spec
    return Math.min(points - 1, Math.max(0, Math.round((time - start_ms) / step_ms)))
  }

  // Where nobody points: the cursor of the page where it stands inside the picture, else the newest value.
  get resting() { return this.spec.cursor_ms === null ? this.spec.points - 1 : this.index(this.spec.cursor_ms) }

  stamp(ms) { return this.spec.zeros.length ? offset(ms) : `${clock(ms)} UTC` }

  zerosAt(i) { return this.spec.zeros.map(([name, zero]) => make("div", "", null, `${name} ${clock(zero + this.timeOf(i))} UTC`)) }

  timeOf(i) { return this.spec.start_ms + i * this.spec.step_ms }

  point(event) {
    this.share(event.target.closest(".pw-mark") ? null : this.timeAt(event), this)
  }

  key(event) {
    if (!this.ready || event.target !== this.frame) return
    const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -1e9, End: 1e9 }
    if (event.key in steps) {
      event.preventDefault()
      const from = this.at ?? (this.spec.cursor_ms === null ? this.spec.points - (steps[event.key] < 0 ? 0 : 1) : this.resting)
      this.share(this.timeOf(Math.min(this.spec.points - 1, Math.max(0, from + steps[event.key]))), this)
    } else if (event.key === "Enter" && this.at !== null && this.at !== undefined) {
      this.send("picked", { at_ms: this.timeOf(this.at) })
    } else if (event.key === "Escape") this.share(null)
  }

  share(time, owner) {
    for (const other of groups.get(this.spec?.group) ?? [this]) other.hover(time, other === owner)
  }

  hover(time, tipped) {
    const { spec } = this
    if (!this.ready || !spec) return
    this.at = time === null ? null : this.index(time)
    const there = time !== null
    this.cursor.style.display = there ? "block" : "none"
    this.tip.style.display = there && tipped ? "block" : "none"
    this.readout(there ? this.at : this.resting)
    if (!there) return
    const x = this.x(this.timeOf(this.at))
    this.cursor.style.transform = `translateX(${x}px)`
    if (!tipped) return
    this.tip.replaceChildren(make("b", "", null, this.stamp(this.timeOf(this.at))), ...this.zerosAt(this.at), ...this.rowsAt(this.at))
    const left = x + 14 + this.tip.offsetWidth > this.frame.clientWidth ? x - 14 - this.tip.offsetWidth : x + 14
    this.tip.style.transform = `translate(${Math.max(0, left)}px, 6px)`
  }

  value(series, i) {
    const { row, unit } = this.spec
    if (series.kind === "line") return format(row(series.row)[i], unit)
    return between(row(series.row)[i], row(series.row + 1)[i], unit)
  }

  get told() { return this.spec.series.filter((s) => s.legend) }

  rowsAt(i) {
    const heat = this.spec.series.find((s) => s.kind === "heat")
    if (heat) return this.heatAt(heat, i)
    return this.told.map((s) => {
      const line = make("div", "")
      this.swatch(make("i", "pw-swatch", line), s)
      make("span", "", line, s.name)
      make("em", "", line, this.value(s, i))
      return line
    })
  }

  heatAt(heat, i) {
    return heat.buckets.map((name, b) => [name, this.spec.row(heat.row + b)[i]]).reverse().filter(([, rate]) => rate > 0).slice(0, 12).map(([name, rate]) => {
      const line = make("div", "")
      make("span", "", line, name)
      make("em", "", line, format(rate, heat.rate_unit))
      return line
    })
  }

  swatch(node, series) {
    node.style.background = this.paint.of(series.tone)
    node.style.height = `${Math.max(2, series.width ?? 2)}px`
  }

  readout(i) {
    const names = this.told.map((s) => s.name).join("\n")
    if (names !== this.shownNames) {
      this.shownNames = names
      this.chips.clear()
      this.legend.replaceChildren(...this.told.map((s) => {
        const chip = make("span", "pw-chip")
        const swatch = make("i", "pw-swatch", chip)
        make("span", "", chip, s.name)
        this.chips.set(s.name, { swatch, value: make("em", "", chip) })
        return chip
      }))
      if (this.spec.aside) make("span", "pw-aside", this.legend, this.spec.aside)
    }
    for (const s of this.told) {
      const chip = this.chips.get(s.name)
      this.swatch(chip.swatch, s)
      const text = this.value(s, i)
      if (chip.value.textContent !== text) chip.value.textContent = text
    }
    const last = this.told.map((s) => `${s.name} ${this.value(s, this.resting)}`).join(", ")
    this.frame.setAttribute("aria-label", `${this.spec.title}, ${this.spec.notice ?? (last || "no series")}. Arrow keys move through time, Enter opens the instant.`)
  }

  // The chart as a table: for those who cannot see it, and for copying.
  tabulate() {
    if (!this.table.root.open) return
    const { spec } = this
    const table = make("table", "")
    const head = make("tr", "", make("thead", "", table))
    make("th", "", head, spec.zeros.length ? "from zero" : "UTC")
    const shown = spec.series.filter((s) => s.legend && s.kind !== "heat")
    for (const s of shown) make("th", "", head, s.name)
    const body = make("tbody", "", table)
    const every = Math.max(1, Math.ceil(spec.points / 60))
    for (let i = spec.points - 1; i >= 0; i -= every) {
      const row = make("tr", "", body)
      make("th", "", row, spec.zeros.length ? offset(this.timeOf(i)) : clock(this.timeOf(i)))
      for (const s of shown) make("td", "", row, this.value(s, i))
    }
    this.table.body.replaceChildren(table)
  }

  pick(event) {
    const time = this.timeAt(event)
    if (time === null || event.target.closest(".pw-mark") || Math.abs(event.clientX - this.pressed) > 4) return // the end of a drag is no pick
    this.send("picked", { at_ms: this.timeOf(this.index(time)) })
  }

  zoomed(change) {
    if (change["xaxis.range[0]"] === undefined) return
    const ms = (v) => Math.round(this.spec.zeros.length ? Number(v) : typeof v === "number" ? v : Date.parse(`${String(v).replace(" ", "T")}Z`))
    this.send("zoomed", { from_ms: ms(change["xaxis.range[0]"]), to_ms: ms(change["xaxis.range[1]"]) })
  }

  join(name) {
    if (this.group === name) return
    groups.get(this.group)?.delete(this)
    this.group = name
    if (!groups.has(name)) groups.set(name, new Set())
    groups.get(name).add(this)
  }

  remove() {
    this.gone = true
    groups.get(this.group)?.delete(this)
    this.sized.disconnect()
    if (this.ready) this.Plotly.purge(this.plot)
    this.root.remove()
  }
}

const drawn = new Set()
// The system switched between light and dark: the same data in other ink.
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => setTimeout(() => drawn.forEach((chart) => chart.ready && !chart.gone && chart.draw()), 150))

export default function render(component) {
  const parent = component.parentElement
  if (!charts.has(parent)) { charts.set(parent, new Chart(parent)); drawn.add(charts.get(parent)) }
  const chart = charts.get(parent)
  chart.show(component)
  return () => { charts.delete(parent); drawn.delete(chart); chart.remove() }
}

