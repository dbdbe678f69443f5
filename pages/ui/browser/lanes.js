// One row per thing that can hold (a cause, a check, a state), time to the right, the cursor across all. Python side: pages/ui/lanes.py.

import { button, clock, make } from "./words.js"

const charts = new WeakMap()

class Lanes {
  constructor(parent) {
    this.root = make("section", "pw-panel pw-lanes", parent)
    const head = make("header", "pw-panel-head", this.root)
    this.title = make("h3", "", head)
    this.unit = make("span", "pw-unit", head)
    this.body = make("div", "pw-lane-body", this.root)
    this.axis = make("div", "pw-lane-axis", this.root)
  }

  show({ data, setTriggerValue }) {
    const { start_ms, end_ms } = data
    const part = (ms) => `${(100 * (Math.min(end_ms, Math.max(start_ms, ms)) - start_ms)) / Math.max(1, end_ms - start_ms)}%`
    const key = JSON.stringify(data)
    if (key === this.shown) return
    this.shown = key
    const pick = (at_ms) => setTriggerValue("picked", { at_ms })
    this.title.textContent = data.title
    this.unit.textContent = data.unit_label
    this.body.replaceChildren(...data.lanes.map((lane) => {
      const row = make("div", "pw-lane")
      make("span", "pw-lane-name", row, lane.name).title = lane.name
      const strip = make("div", "pw-lane-strip", row)
      strip.addEventListener("click", (event) => {
        if (event.target !== strip) return
        const box = strip.getBoundingClientRect()
        pick(Math.round(start_ms + ((event.clientX - box.left) / box.width) * (end_ms - start_ms)))
      })
      for (const span of lane.spans) {
        const words = `${span.label}, ${clock(span.from_ms)} to ${clock(span.to_ms)}`
        const node = button("pw-span", strip, span.to_ms - span.from_ms > (end_ms - start_ms) * 0.07 ? span.text ?? "" : "", words, () => pick(span.from_ms))
        node.dataset.tone = span.tone
        node.style.left = `min(${part(span.from_ms)}, calc(100% - 4px))`
        node.style.width = `max(4px, calc(${part(span.to_ms)} - ${part(span.from_ms)}))`
      }
      const cursor = make("i", "pw-lane-cursor", strip)
      cursor.style.left = part(data.at_ms)
      cursor.hidden = data.at_ms === null
      return row
    }))
    const ticks = 5
    this.axis.replaceChildren(...Array.from({ length: ticks + 1 }, (_, i) => make("span", "", null, clock(start_ms + (i / ticks) * (end_ms - start_ms)))))
  }
}

export default function render(component) {
  const parent = component.parentElement
  if (!charts.has(parent)) charts.set(parent, new Lanes(parent))
  charts.get(parent).show(component)
  return () => { charts.get(parent)?.root.remove(); charts.delete(parent) }
}
