"use strict";
// The page says everything without this: here are zoom and the words below a chart, for those who cannot hover.
(() => {
  document.documentElement.classList.add("js");
  const say = (place, target) => {
    const group = target.closest && target.closest("g, [title]");
    if (!group || !place) return;
    const title = group.querySelector && group.querySelector("title");
    place.textContent = title ? title.textContent : group.getAttribute("title");
  };
  for (const flame of document.querySelectorAll(".flame")) {
    const place = flame.parentElement.querySelector(".readout");
    for (const kind of ["pointermove", "click"]) flame.addEventListener(kind, (event) => say(place, event.target));
  }
  const chart = document.getElementById("timeline");
  if (!chart) return;
  const whole = Number(chart.dataset.span);
  const start = Number(chart.dataset.start);
  const ticks = document.querySelectorAll("#axis span");
  let left = 0, span = whole, held = null;
  const show = (x, width) => {
    span = Math.min(whole, Math.max(width, whole / 5000));
    left = Math.min(Math.max(0, x), whole - span);
    chart.setAttribute("viewBox", `${left} 0 ${span} 100`);
    const digits = span > 8000 ? 1 : span > 800 ? 2 : 4;
    ticks.forEach((tick, i) => {
      const at = (start + (left + (span * i) / (ticks.length - 1)) / 1000).toFixed(digits);
      tick.textContent = `${Number(at) === 0 ? 0 : at} s`;
    });
  };
  const zoom = (by, at) => show(left + span * at * (1 - by), span * by);
  const acts = {
    in: () => zoom(0.5, 0.5), out: () => zoom(2, 0.5), all: () => show(0, whole),
    left: () => show(left - span / 4, span), right: () => show(left + span / 4, span),
  };
  const tools = document.getElementById("tools");
  tools.hidden = false;
  tools.addEventListener("click", (event) => {
    const act = acts[event.target.dataset.zoom];
    if (act) act();
  });
  chart.classList.add("zoomable");
  const share = (event) => {
    const box = chart.getBoundingClientRect();
    return (event.clientX - box.left) / box.width;
  };
  chart.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.shiftKey && !event.altKey) return; // a page scrolls
    event.preventDefault();
    zoom(event.deltaY + event.deltaX > 0 ? 1.25 : 0.8, share(event));
  }, { passive: false });
  chart.addEventListener("dblclick", (event) => zoom(0.4, share(event)));
  chart.addEventListener("pointerdown", (event) => { held = { at: share(event), left }; });
  chart.addEventListener("pointermove", (event) => {
    say(document.getElementById("readout"), event.target);
    if (held && event.buttons) show(held.left + (held.at - share(event)) * span, span);
  });
  chart.addEventListener("click", (event) => say(document.getElementById("readout"), event.target));
  window.addEventListener("pointerup", () => { held = null; });
})();
