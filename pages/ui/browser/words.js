// Numbers, times and elements. Whatever comes from outside enters the page through textContent only.

const three = (value) => {
  if (value === 0) return "0"
  const places = Math.min(4, Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value)))))
  return String(Number(value.toFixed(places)))
}

export function digits(value) {
  const size = Math.abs(value)
  if (size >= 999500) return `${three(value / 1e6)}M`
  if (size >= 999.5) return `${three(value / 1e3)}k`
  return three(value)
}

// One decimal below ten and near a hundred, none between; what is not zero never reads as zero.
function hundredths(value) {
  if (value > 0 && value < 0.05) return "< 0.1"
  if (value > 99 && value < 100) return Math.min(value, 99.9).toFixed(1)
  return Math.abs(value) < 9.95 ? String(Number(value.toFixed(1))) : value.toFixed(0)
}

export function format(value, unit) {
  if (value === null || Number.isNaN(value)) return "no data"
  if (!Number.isFinite(value)) return value > 0 ? "no bound" : "-"
  if (unit === "s") return Math.abs(value) > 0 && Math.abs(value) < 0.9995 ? `${digits(value * 1000)} ms` : `${digits(value)} s`
  if (unit === "ratio") return `${hundredths(value * 100)} %`
  return unit ? `${digits(value)} ${unit}` : digits(value)
}

// "250-500 ms", "> 10 s", "up to 1 ms"
export function between(low, high, unit) {
  if (Number.isNaN(low) && Number.isNaN(high)) return "no data"
  if (!Number.isFinite(high)) return `> ${format(low, unit)}`
  if (!Number.isFinite(low) || low === 0) return `up to ${format(high, unit)}`
  const [a, aUnit] = format(low, unit).split(/ (.*)/)
  const [b, bUnit] = format(high, unit).split(/ (.*)/)
  return aUnit === bUnit ? `${a}-${b} ${b === undefined ? "" : bUnit ?? ""}`.trim() : `${a} ${aUnit ?? ""}-${b} ${bUnit ?? ""}`
}

const pad = (n) => String(n).padStart(2, "0")

export function clock(ms, seconds = true) {
  const at = new Date(ms)
  return `${pad(at.getUTCHours())}:${pad(at.getUTCMinutes())}${seconds ? `:${pad(at.getUTCSeconds())}` : ""}`
}

// Time that counts from a common zero: "0", "+30 s", "-1 min 30 s".
export function offset(ms) {
  const total = Math.round(Math.abs(ms) / 1000)
  if (total === 0) return "0"
  const [minutes, seconds] = [Math.floor(total / 60), total % 60]
  return `${ms < 0 ? "-" : "+"}${[minutes && `${minutes} min`, seconds && `${seconds} s`].filter(Boolean).join(" ")}`
}

const TICKS = [5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400].map((s) => s * 1000)

// Round offsets in a range, zero among them, at most so many.
export function offsetTicks(from, to, most) {
  const step = TICKS.find((ms) => (to - from) / ms <= most) ?? TICKS.at(-1)
  const first = Math.ceil(from / step)
  return Array.from({ length: Math.max(0, Math.floor(to / step) - first + 1) }, (_, i) => (first + i) * step)
}

export function instant(ms) {
  return new Date(ms).toISOString().replace(".000Z", "Z")
}

export function age(seconds) {
  if (seconds < 120) return `${Math.max(0, Math.floor(seconds))} s`
  return seconds < 7200 ? `${Math.floor(seconds / 60)} min` : `${Math.floor(seconds / 3600)} h`
}

export function make(tag, className, parent, text) {
  const node = document.createElement(tag)
  if (className) node.className = className
  if (text !== undefined) node.textContent = text
  parent?.append(node)
  return node
}

export function button(className, parent, text, label, act) {
  const node = make("button", className, parent, text)
  node.type = "button"
  if (label) { node.setAttribute("aria-label", label); node.title = label }
  node.addEventListener("click", act)
  return node
}

// A link that stays inside the session on a plain click and is a real address for everything else.
export function link(className, parent, text, href, open) {
  const node = make("a", className, parent, text)
  node.href = href
  node.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey || event.button) return
    event.preventDefault()
    event.stopPropagation()
    open(href)
  })
  return node
}
