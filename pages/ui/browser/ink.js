// Colours come from the theme: series by slot, everything else by a named custom property of console.css.

const TONES = ["text", "muted", "faint", "grid", "accent", "warn", "bad", "ok", "quiet", "panel"]

export function ink(node) {
  const css = getComputedStyle(node)
  const palette = css.getPropertyValue("--st-chart-categorical-colors").split(",").map((c) => c.trim()).filter(Boolean)
  const probe = node.ownerDocument.createElement("i")
  node.append(probe)
  const named = Object.fromEntries(TONES.map((tone) => {
    probe.style.color = `var(--pw-${tone})`
    return [tone, getComputedStyle(probe).color]
  }))
  probe.remove()
  return { ...named, font: css.fontFamily, of: (tone) => (typeof tone === "number" ? palette[tone % palette.length] ?? named.accent : named[tone] ?? named.muted) }
}

export function channels(color) {
  const hex = /^#(..)(..)(..)/.exec(color)
  return hex ? hex.slice(1).map((h) => parseInt(h, 16)) : (color.match(/[\d.]+/g) ?? [128, 128, 128]).slice(0, 3).map(Number)
}

export const fade = (color, alpha) => `rgba(${channels(color).join(",")},${alpha})`
