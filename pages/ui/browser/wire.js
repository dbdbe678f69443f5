// What pages/ui/charts.py packs: u32 length, JSON header, then float32 rows of `points` values each (NaN is a gap).

export function unpack(bytes) {
  const length = new DataView(bytes.buffer, bytes.byteOffset, 4).getUint32(0, true)
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length)))
  const numbers = new Float32Array(bytes.slice(4 + length).buffer)
  return { ...header, row: (i) => numbers.subarray(i * header.points, (i + 1) * header.points) }
}

let loading

export function plotly(url) {
  loading ??= new Promise((resolve, reject) => {
    const script = document.createElement("script")
    script.src = url
    script.onload = () => resolve(window.Plotly)
    script.onerror = () => {
      loading = undefined // the next refresh tries again
      script.remove()
      reject(new Error(`plotly.js did not load from ${url}`))
    }
    document.head.append(script)
  })
  return loading
}
