// Runs before Streamlit's own code: says where the server is, so that a deep link does not look for it below its own path first.
window.__streamlit = { BACKEND_BASE_URL: new URL(document.currentScript.dataset.base || "/", location.origin).href }

// Streamlit writes a block of HTML anew when anything in it changes: a reason that somebody opened stays open until they close it.
const opened = new Set()
document.addEventListener("toggle", ({ target }) => {
  const key = target.dataset?.fold
  if (key && target.isConnected) target.open ? opened.add(key) : opened.delete(key)
}, true)
new MutationObserver((changes) => {
  if (!opened.size || !changes.some(({ addedNodes }) => addedNodes.length)) return
  for (const fold of document.querySelectorAll("details[data-fold]:not([open])")) if (opened.has(fold.dataset.fold)) fold.open = true
}).observe(document.documentElement, { childList: true, subtree: true })
