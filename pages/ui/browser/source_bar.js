// Where the numbers come from and how old they are; the range; the cursor of a replay. The age counts on by itself:
// a wall display must not keep saying "3 s old" when the server is gone. Python side: pages/ui/source_bar.py.

import { age, button, clock, instant, make } from "./words.js"

const bars = new WeakMap()

class SourceBar {
  constructor(parent) {
    this.root = make("div", "pw-source", parent)
    const line = make("div", "pw-source-line", this.root)
    const said = make("div", "pw-said", line)
    said.setAttribute("role", "status")
    this.mode = make("span", "pw-mode", said)
    this.facts = make("span", "pw-facts", said)
    this.tools = make("div", "pw-tools", line)
    this.ranges = make("div", "pw-ranges", this.tools)
    this.ranges.setAttribute("role", "group")
    this.ranges.setAttribute("aria-label", "Time range")
    this.custom = make("details", "pw-fold pw-custom", this.tools)
    this.customWord = make("summary", "", this.custom, "Range")
    this.form()
    this.hold = button("pw-button", this.tools, "Pause", "Hold this picture", () => this.act(this.data.mode === "live" || this.data.mode === "down" || this.data.mode === "never" ? { kind: "pause" } : { kind: "live" }))
    this.close = button("pw-button", this.tools, "", "Leave this recording", () => this.act({ kind: "close" }))
    this.replay = make("div", "pw-replay", this.root)
    this.player()
    this.timer = setInterval(() => this.tick(), 1000)
  }

  form() {
    const body = make("form", "pw-fold-body pw-form", this.custom)
    const field = (word) => {
      const label = make("label", "", body, `${word} (UTC)`)
      const input = make("input", "", label)
      input.type = "datetime-local"
      input.step = "1"
      input.required = true
      return input
    }
    this.from = field("From")
    this.to = field("To")
    const go = make("button", "pw-button", body, "Show")
    go.type = "submit"
    body.addEventListener("submit", (event) => {
      event.preventDefault()
      this.custom.open = false
      this.act({ kind: "between", from_ms: Date.parse(`${this.from.value}Z`), to_ms: Date.parse(`${this.to.value}Z`) })
    })
    this.custom.addEventListener("toggle", () => {
      if (!this.custom.open) return
      this.from.value = new Date(this.data.from_ms).toISOString().slice(0, 19)
      this.to.value = new Date(this.data.to_ms).toISOString().slice(0, 19)
    })
  }

  player() {
    const step = (by, glyph, word) => button("pw-button pw-step", this.replay, glyph, word, () => this.act({ kind: "step", by }))
    button("pw-button pw-step", this.replay, "|◂", "To the mark before", () => this.jump(-1))
    step(-1, "◂", "One scrape back")
    this.playing = button("pw-button pw-play", this.replay, "Play", "Play or stop", () => this.act({ kind: this.data.replay.playing ? "stop" : "play" }))
    step(1, "▸", "One scrape on")
    button("pw-button pw-step", this.replay, "▸|", "To the next mark", () => this.jump(1))
    this.speed = make("select", "pw-select", this.replay)
    this.speed.setAttribute("aria-label", "Speed")
    this.speed.addEventListener("change", () => this.act({ kind: "speed", speed: Number(this.speed.value) }))
    this.track = make("div", "pw-track", this.replay)
    this.marks = make("div", "pw-track-marks", this.track)
    this.slider = make("input", "", this.track)
    this.slider.type = "range"
    this.slider.setAttribute("aria-label", "Cursor")
    this.slider.addEventListener("input", () => { this.dragging = true; this.shown.textContent = clock(Number(this.slider.value)) })
    this.slider.addEventListener("change", () => { this.dragging = false; this.act({ kind: "seek", at_ms: Number(this.slider.value) }) })
    this.shown = make("output", "pw-cursor-time", this.replay)
  }

  jump(direction) {
    const { at_ms, marks, start_ms, end_ms } = this.data.replay
    const places = [start_ms, ...marks.map((m) => m.at_ms), end_ms].sort((a, b) => a - b)
    const next = direction > 0 ? places.find((ms) => ms > at_ms) : places.reverse().find((ms) => ms < at_ms)
    if (next !== undefined) this.act({ kind: "seek", at_ms: next })
  }

  act(value) { this.send("act", { ...value, turn: performance.now() }) }

  show({ data, setTriggerValue }) {
    this.send = setTriggerValue
    this.data = data
    this.arrived = performance.now()
    const facts = data.facts.join("\n")
    if (facts !== this.shownFacts) {
      this.shownFacts = facts
      this.facts.replaceChildren(...data.facts.map((fact) => make("span", "pw-fact", null, fact)))
    }
    this.choose(data)
    this.replay.hidden = !data.replay
    if (data.replay) this.cursor(data.replay)
    this.tick()
  }

  choose(data) {
    const names = data.ranges.join()
    if (names !== this.shownRanges) {
      this.shownRanges = names
      this.ranges.replaceChildren(...data.ranges.map((name) => button("pw-range", null, name, `Last ${name}`, () => this.act({ kind: "range", range: name }))))
    }
    for (const node of this.ranges.children) node.setAttribute("aria-pressed", String(node.textContent === data.range))
    this.customWord.textContent = data.range ? "Range" : `${clock(data.from_ms)} - ${clock(data.to_ms)}`
    this.custom.classList.toggle("pw-chosen", !data.range)
    this.hold.hidden = data.mode === "replay"
    this.close.hidden = !data.close
    this.close.textContent = data.close
    const speeds = data.speeds.join()
    if (speeds !== this.shownSpeeds) {
      this.shownSpeeds = speeds
      this.speed.replaceChildren(...data.speeds.map((speed) => { const option = make("option", "", null, `x${speed}`); option.value = speed; return option }))
    }
    this.hold.textContent = data.mode === "paused" ? "Back to live" : "Pause"
  }

  cursor({ start_ms, end_ms, at_ms, scrape_ms, playing, speed, marks }) {
    this.slider.min = start_ms
    this.slider.max = end_ms
    this.slider.step = scrape_ms
    if (!this.dragging) {
      this.slider.value = at_ms
      this.shown.textContent = `${clock(at_ms)} of ${clock(start_ms)}-${clock(end_ms)}`
    }
    this.slider.setAttribute("aria-valuetext", `${clock(at_ms)} UTC`)
    this.playing.textContent = playing ? "Stop" : "Play"
    this.speed.value = speed
    const known = JSON.stringify(marks)
    if (known !== this.shownMarks) {
      this.shownMarks = known
      this.marks.replaceChildren(...marks.map((mark) => {
        const node = button("pw-track-mark", null, "", `${mark.label}, ${clock(mark.at_ms)}`, () => this.act({ kind: "seek", at_ms: mark.at_ms }))
        node.dataset.tone = mark.tone
        node.style.left = `${(100 * (mark.at_ms - start_ms)) / Math.max(1, end_ms - start_ms)}%`
        node.style.width = `${Math.max(0, (100 * ((mark.to_ms ?? mark.at_ms) - mark.at_ms)) / Math.max(1, end_ms - start_ms))}%`
        return node
      }))
    }
    if (playing) { // the address follows the cursor without filling the history
      const address = new URL(location.href)
      address.searchParams.set("at", instant(at_ms))
      history.replaceState(history.state, "", address)
    }
  }

  tick() {
    const { data } = this
    const waited = (performance.now() - this.arrived) / 1000
    const silent = waited > data.silent_after_s && (["live", "starting", "down", "never"].includes(data.mode) || data.replay?.playing)
    this.root.dataset.mode = silent ? "down" : data.mode
    const retry = `Next try in ${Math.max(0, Math.ceil(data.retry_s - waited))} s.`
    const text = {
      live: () => `Live · ${age(data.age_s + waited)} old`,
      starting: () => "Live · waiting for the first samples",
      paused: () => `Paused at ${data.clock} UTC, ${age(data.age_s + waited)} ago`,
      replay: () => `Replay of ${data.title} at ${data.clock} UTC`,
      down: () => `Source down for ${age(data.down_s + waited)}: ${data.cause}. Showing the picture of ${data.clock} UTC, ${age(data.age_s + waited)} old. ${retry}`,
      never: () => `Source down: ${data.cause}. No picture yet. ${retry}`,
      broken: () => data.cause,
    }
    const line = silent ? `pagewatch has not answered for ${age(waited)}. ${data.clock ? `Showing the picture of ${data.clock} UTC.` : "No picture yet."}` : text[data.mode]()
    if (this.mode.textContent !== line) this.mode.textContent = line
  }
}

export default function render(component) {
  const parent = component.parentElement
  if (!bars.has(parent)) bars.set(parent, new SourceBar(parent))
  const bar = bars.get(parent)
  bar.show(component)
  return () => { clearInterval(bar.timer); bar.root.remove(); bars.delete(parent) }
}
