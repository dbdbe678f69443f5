// The list of steps of a walk: j and k (or the arrows) move, Enter opens; a click does both. Python side: pages/ui/steps.py.

import { make } from "./words.js"

const lists = new WeakMap()
const ICONS = { yes: "✓", no: "✗", inconclusive: "?", error: "!", needs_answer: "…" }
const WORDS = { yes: "yes", no: "no", inconclusive: "inconclusive", error: "query failed", needs_answer: "needs your answer" }

class Steps {
  constructor(parent) {
    this.root = make("ol", "pw-steps", parent)
    this.onKey = (event) => this.key(event)
    document.addEventListener("keydown", this.onKey)
  }

  show({ data, setTriggerValue }) {
    this.send = setTriggerValue
    this.open = data.open
    const focused = this.root.contains(document.activeElement) ? document.activeElement.dataset.id : undefined
    this.root.replaceChildren(...data.steps.map((step, i) => {
      const item = make("li", "")
      const head = make("button", "pw-step-head", item)
      head.type = "button"
      head.dataset.id = step.id
      head.dataset.finding = step.finding
      head.classList.toggle("pw-off-path", !step.on_path)
      head.setAttribute("aria-expanded", String(step.id === data.open))
      make("span", "pw-step-number", head, String(i + 1))
      make("span", "pw-step-finding", head, ICONS[step.finding]).setAttribute("aria-hidden", "true")
      make("span", "pw-step-question", head, step.question)
      make("span", "pw-step-word", head, step.on_path ? WORDS[step.finding] : `${WORDS[step.finding]} · not on the path`)
      if (step.says) make("span", "pw-step-says", head, step.says)
      head.addEventListener("click", () => this.send("opened", step.id))
      return item
    }))
    if (focused) this.heads.find((head) => head.dataset.id === focused)?.focus()
  }

  get heads() { return [...this.root.querySelectorAll(".pw-step-head")] }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select, [contenteditable]")) return
    const by = { j: 1, k: -1, ArrowDown: 1, ArrowUp: -1 }[event.key]
    if (!by || (event.key.startsWith("Arrow") && !this.root.contains(event.target))) return
    const heads = this.heads
    const at = heads.indexOf(document.activeElement)
    const from = at >= 0 ? at : heads.findIndex((head) => head.dataset.id === this.open)
    const next = heads[Math.min(heads.length - 1, Math.max(0, at < 0 && from < 0 ? 0 : from + by))]
    event.preventDefault()
    next?.focus()
    next?.scrollIntoView({ block: "nearest" })
  }
}

export default function render(component) {
  const parent = component.parentElement
  if (!lists.has(parent)) lists.set(parent, new Steps(parent))
  const list = lists.get(parent)
  list.show(component)
  return () => { document.removeEventListener("keydown", list.onKey); list.root.remove(); lists.delete(parent) }
}
