// Runs before Streamlit's own code: says where the server is, so that a deep link does not look for it below its own path first.
window.__streamlit = { BACKEND_BASE_URL: new URL(document.currentScript.dataset.base || "/", location.origin).href }
