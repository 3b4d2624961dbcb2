// Throughput and lag over time. Without this script the page shows the same numbers in tables.
"use strict";
(() => {
  const place = document.querySelector("[data-charts]");
  if (!place || typeof uPlot === "undefined") return;
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let data = null, range = "recent", drawn = [];

  const number = (value) => value == null ? "-" : value >= 100 ? Math.round(value).toLocaleString("en") : value.toPrecision(3);
  const seconds = (value) => {
    if (value == null) return "-";
    for (const [unit, length] of [["d", 86400], ["h", 3600], ["min", 60]])
      if (value >= 2 * length) return (value / length).toPrecision(3) + " " + unit;
    return value.toPrecision(3) + " s";
  };
  const moment = (time) => {  // UTC, as in the tables
    const text = new Date(time * 1e3).toISOString();
    return text.slice(11, 16) === "00:00" ? text.slice(5, 10) : text.slice(11, 16);
  };
  const axis = (more) => ({stroke: color("--dim"), grid: {stroke: color("--line"), width: 1}, ticks: {stroke: color("--line"), width: 1}, ...more});
  const line = (label, name, show) => ({label, stroke: color(name), width: 2, points: {show: true, size: 5}, value: (_, value) => show(value)});

  function chart(name, times, lines, columns, show) {
    const target = place.querySelector(`[data-chart="${name}"]`);
    target.replaceChildren();
    const options = {
      width: Math.max(200, target.clientWidth), height: 200,
      scales: {y: {range: (_, low, high) => [0, high > 0 ? high * 1.1 : 1]}},
      tzDate: (time) => uPlot.tzDate(new Date(time * 1e3), "Etc/UTC"),
      axes: [axis({values: (_, ticks) => ticks.map(moment)}), axis({size: 70, values: (_, ticks) => ticks.map(show)})],
      series: [{label: "UTC", value: "{YYYY}-{MM}-{DD} {HH}:{mm}"}, ...lines.map(([label, stroke]) => line(label, stroke, show))],
    };
    drawn.push(new uPlot(options, [times, ...columns], target));
  }

  function draw() {
    drawn.forEach((one) => one.destroy());
    drawn = [];
    const found = data[range], rows = found.rows.some((value) => value !== null);
    const rate = rows ? "rows/s" : "objects/s";
    place.querySelector("[data-title=rate]").textContent = "Throughput, " + rate;
    chart("rate", found.times, [[rate, "--one"]], [rows ? found.rows : found.objects], number);
    chart("lag", found.times, [["p50", "--one"], ["p99", "--two"]], [found.lag_p50, found.lag_p99], seconds);
    for (const button of place.querySelectorAll("[data-range]"))
      button.setAttribute("aria-pressed", String(button.dataset.range === range));
    place.dataset.drawn = range;
  }

  fetch(place.dataset.charts, {credentials: "same-origin"})
    .then((answer) => answer.ok ? answer.json() : Promise.reject(new Error(String(answer.status))))
    .then((found) => {
      data = found;
      place.querySelector(".choice").hidden = false;
      for (const button of place.querySelectorAll("[data-range]"))
        button.addEventListener("click", () => { range = button.dataset.range; draw(); });
      dark.addEventListener("change", draw);
      addEventListener("resize", () => drawn.forEach((one) => one.setSize({width: Math.max(200, one.root.parentElement.clientWidth), height: 200})));
      draw();
    })
    .catch((error) => { place.querySelector("figcaption").textContent = "The numbers could not be read: " + error.message; });
})();
