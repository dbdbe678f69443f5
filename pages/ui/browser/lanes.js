// One row per thing that can hold (a cause, a check, a state), time to the right, the cursor across all. Python side: pages/ui/lanes.py.
// Time is UTC, or counts from a common zero when two recordings lie side by side.

import { button, clock, make, offset, offsetTicks } from "./words.js"

const charts = new WeakMap()
const FIRST = 14 // a large fleet has a lane per replica: the rest waits behind a button

class Lanes {
  constructor(parent) {
    this.root = make("section", "pw-panel pw-lanes", parent)
    const head = make("header", "pw-panel-head", this.root)
    this.title = make("h3", "", head)
    this.unit = make("span", "pw-unit", head)
    this.body = make("div", "pw-lane-body", this.root)
    this.axis = make("div", "pw-lane-axis", this.root)
    this.more = button("pw-button pw-lane-more", this.root, "", "", () => { this.all = !this.all; this.draw() })
    this.sized = new ResizeObserver(() => { if (this.axis.clientWidth !== this.ticked) this.ticks() })
    this.sized.observe(this.axis)
  }

  show({ data, setTriggerValue }) {
    this.send = setTriggerValue
    const { at_ms, ...rest } = data
    const known = JSON.stringify(rest)
    this.data = data
    if (known !== this.shown) { // a cursor that moves builds no lane anew
      this.shown = known
      this.draw()
    }
    this.cursor()
  }

  get part() {
    const { start_ms, end_ms } = this.data
    return (ms) => (100 * (Math.min(end_ms, Math.max(start_ms, ms)) - start_ms)) / Math.max(1, end_ms - start_ms)
  }

  pick(at_ms) { this.send("picked", { at_ms: Math.round(at_ms), turn: performance.now() }) }

  draw() {
    const { data } = this
    this.title.textContent = data.title
    this.unit.textContent = data.unit_label
    const lanes = this.all ? data.lanes : data.lanes.slice(0, Math.max(FIRST, data.least))
    const nodes = []
    for (const lane of lanes) {
      if (lane.group && lane.group !== nodes.group) nodes.push(make("div", "pw-lane-group", null, (nodes.group = lane.group)))
      nodes.push(this.lane(lane))
    }
    this.body.replaceChildren(...nodes)
    const hidden = data.lanes.length - lanes.length
    this.more.hidden = !hidden && !this.all
    this.more.textContent = this.all ? "Fewer lanes" : `${hidden} more lanes`
    this.ticks()
    this.cursor()
  }

  lane(lane) {
    const { start_ms, end_ms } = this.data
    const row = make("div", "pw-lane")
    make("span", "pw-lane-name", row, lane.name).title = lane.name
    const strip = make("div", "pw-lane-strip", row)
    strip.addEventListener("click", (event) => {
      if (event.target.closest(".pw-span")) return
      const box = strip.getBoundingClientRect()
      this.pick(start_ms + ((event.clientX - box.left) / box.width) * (end_ms - start_ms))
    })
    for (const span of lane.spans) {
      if (span.since_ms !== null && span.since_ms < span.from_ms) {
        const lead = make("i", "pw-lead", strip)
        lead.dataset.tone = span.tone
        this.place(lead, span.since_ms, span.from_ms)
      }
      const wide = this.part(span.to_ms) - this.part(span.from_ms) > 7
      const node = button("pw-span", strip, wide ? span.text ?? "" : "", span.label, () => this.pick(span.from_ms))
      node.dataset.tone = span.tone
      this.place(node, span.from_ms, span.to_ms)
    }
    make("i", "pw-lane-cursor", strip)
    return row
  }

  place(node, from_ms, to_ms) {
    node.style.left = `min(${this.part(from_ms)}%, calc(100% - 4px))`
    node.style.width = `max(4px, ${this.part(to_ms) - this.part(from_ms)}%)`
  }

  cursor() {
    const { at_ms, start_ms, end_ms } = this.data
    for (const node of this.body.querySelectorAll(".pw-lane-cursor")) {
      node.hidden = at_ms === null || at_ms < start_ms || at_ms > end_ms
      node.style.left = `${this.part(at_ms)}%`
    }
  }

  ticks() {
    const { start_ms, end_ms, relative } = this.data
    this.ticked = this.axis.clientWidth
    const most = Math.max(2, Math.min(6, Math.floor((this.ticked || 600) / 80)))
    const even = Array.from({ length: most + 1 }, (_, i) => start_ms + (i / most) * (end_ms - start_ms))
    this.axis.replaceChildren(...(relative ? offsetTicks(start_ms, end_ms, most) : even).map((ms) => {
      const node = make("span", "", null, relative ? offset(ms) : clock(ms))
      const part = this.part(ms)
      node.style.left = `${part}%`
      node.style.transform = `translateX(${part < 4 ? 0 : part > 96 ? -100 : -50}%)`
      return node
    }))
  }
}

export default function render(component) {
  const parent = component.parentElement
  if (!charts.has(parent)) charts.set(parent, new Lanes(parent))
  charts.get(parent).show(component)
  return () => { const lanes = charts.get(parent); lanes?.sized.disconnect(); lanes?.root.remove(); charts.delete(parent) }
}
