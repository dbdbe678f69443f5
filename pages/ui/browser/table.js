// A table whose first cell is a real link; a plain click anywhere in the row opens it inside the session. Python side: pages/ui/table.py.

import { ink } from "./ink.js"
import { link, make } from "./words.js"

const tables = new WeakMap()

class Table {
  constructor(parent) {
    this.frame = make("div", "pw-table", parent)
    this.table = make("table", "", this.frame)
    this.opened = new Set() // rows whose notes are open, so that a refresh does not close them
  }

  show({ data, setTriggerValue }) {
    const open = (href) => setTriggerValue("opened", href)
    const key = JSON.stringify(data)
    if (key === this.shown) return
    this.shown = key
    const { of } = ink(this.frame)
    const focused = this.table.contains(document.activeElement) ? document.activeElement.dataset.at : undefined
    const head = make("tr", "", make("thead"))
    for (const column of data.columns) {
      const cell = make("th", "", head, column.text)
      cell.scope = "col"
      if (column.align) cell.dataset.align = column.align
      if (column.hint) cell.title = column.hint
      if (column.width) cell.style.width = column.width
    }
    const body = make("tbody")
    data.rows.forEach((row, r) => body.append(this.row(row, r, data.columns, of, open)))
    this.table.replaceChildren(head.parentElement, body)
    this.table.classList.toggle("pw-fixed", data.columns.some((column) => column.width))
    this.frame.classList.toggle("pw-dim", Boolean(data.dim))
    if (focused) this.table.querySelector(`[data-at="${focused}"]`)?.focus()
  }

  row(spec, r, columns, of, open) {
    const row = make("tr")
    const first = make("th", "", row)
    first.scope = "row"
    if (spec.slot !== undefined) make("i", "pw-swatch", first).style.background = spec.slot === null ? "var(--pw-quiet)" : of(spec.slot)
    const name = spec.href ? link("", first, spec.name, spec.href, open) : make("span", "", first, spec.name)
    name.dataset.at = `${r}.0`
    name.title = spec.name
    spec.cells.forEach((cell, c) => row.append(this.cell(cell, columns[c + 1], spec.name, `${r}.${c + 1}`)))
    if (spec.href) {
      row.classList.add("pw-opens")
      row.addEventListener("click", (event) => { if (!event.defaultPrevented && !event.target.closest("details, a") && !String(getSelection())) open(spec.href) })
    }
    return row
  }

  cell({ text, tone, icon, note, doubt }, column, name, at) {
    const node = make("td")
    node.dataset.label = column.text
    if (column.align) node.dataset.align = column.align
    if (tone) node.dataset.tone = tone
    if (icon) make("i", `pw-icon pw-icon-${icon}`, node).setAttribute("aria-hidden", "true")
    make("span", "", node, text)
    if (note) {
      const why = make("details", doubt ? "pw-why pw-doubtful" : "pw-why", node)
      const word = make("summary", "", why, doubt ? "!" : "i")
      word.setAttribute("aria-label", `Why: ${note}`)
      word.dataset.at = at
      make("div", "pw-fold-body", why, note)
      const id = `${name}\n${column.text}`
      why.open = this.opened.has(id)
      why.addEventListener("toggle", () => (why.open ? this.opened.add(id) : this.opened.delete(id)))
    }
    return node
  }
}

export default function render(component) {
  const parent = component.parentElement
  if (!tables.has(parent)) tables.set(parent, new Table(parent))
  tables.get(parent).show(component)
  return () => { tables.get(parent)?.frame.remove(); tables.delete(parent) }
}
