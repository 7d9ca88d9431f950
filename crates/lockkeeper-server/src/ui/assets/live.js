// Keeps a page fresh: the stream sends the parts that changed, as finished HTML; times are counted here in between.
"use strict";
const main = document.querySelector("[data-stream]");
const pause = document.getElementById("pause");
const status = document.querySelector("[role=status]");
let source, paused = false, retry;

// The same as `span` of the pages.
function span(ms) {
  const s = Math.max(0, Math.floor(ms / 1000)), two = (n) => String(n).padStart(2, "0");
  if (s < 60) return `${s}s`;
  if (s < 3600) return `${Math.floor(s / 60)}m ${two(s % 60)}s`;
  if (s < 86400) return `${Math.floor(s / 3600)}h ${two(Math.floor((s % 3600) / 60))}m`;
  return `${Math.floor(s / 86400)}d ${two(Math.floor((s % 86400) / 3600))}h`;
}

function count() {
  const now = performance.now();
  for (const el of document.querySelectorAll("[data-left], [data-age]")) {
    el.since ??= now;
    const gone = now - el.since, { left, age } = el.dataset;
    if (!paused) el.textContent = span(left === undefined ? Number(age) + gone : Number(left) - gone);
  }
}

// Replaces a part, and leaves the focus on the same link. Text that is being selected is left alone until later.
function swap(part, html) {
  const selected = getSelection();
  if (paused || (!selected.isCollapsed && part.contains(selected.anchorNode))) return;
  const focused = part.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  part.innerHTML = html;
  if (focused !== null) [...part.querySelectorAll("a")].find((a) => a.getAttribute("href") === focused)?.focus();
  count();
}

function connect() {
  clearTimeout(retry);
  source?.close();
  source = new EventSource(main.dataset.stream);
  for (const part of document.querySelectorAll("[data-live]"))
    source.addEventListener(part.id, (event) => swap(part, event.data));
  source.onopen = () => document.body.classList.remove("old");
  source.onerror = () => {
    if (!document.body.classList.contains("old") && status)
      status.textContent = "Not fresh: the gateway does not answer. Trying again; load the page to log in again.";
    document.body.classList.add("old");
    // A browser tries again by itself, unless it was refused.
    if (source.readyState === EventSource.CLOSED) retry = setTimeout(connect, 2000);
  };
}

// A page that is not looked at needs nothing.
function looked() {
  if (document.hidden) { clearTimeout(retry); source?.close(); } else connect();
}

// The key of `lockkeeper ui` has been used, and need not stay in the address.
if (new URLSearchParams(location.search).has("key")) history.replaceState(null, "", "/");

if (main) {
  if (pause) {
    pause.hidden = false;
    pause.addEventListener("click", () => {
      paused = !paused;
      pause.setAttribute("aria-pressed", String(paused));
    });
  }
  setInterval(count, 1000);
  document.addEventListener("visibilitychange", looked);
  looked();
}
