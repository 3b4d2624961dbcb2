// Throughput and lag over time. Without this script the page shows the same numbers in tables.
"use strict";
(() => {
  const place = document.querySelector("[data-charts]");
  if (!place || typeof uPlot === "undefined") return;
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const HEIGHT = 180;
  let data = null, range = "recent", drawn = [];

  const number = (value) => value == null ? "-" : value >= 100 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(3)));
  const seconds = (value) => {
    if (value == null) return "-";
    for (const [unit, length] of [["d", 86400], ["h", 3600], ["min", 60]])
      if (value >= 2 * length) return Number((value / length).toPrecision(3)) + " " + unit;
    return Number(value.toPrecision(3)) + " s";
  };
  const moment = (time) => {  // UTC, as in the tables
    const text = new Date(time * 1e3).toISOString();
    return text.slice(11, 16) === "00:00" ? text.slice(5, 10) : text.slice(11, 16);
  };
  const axis = (more) => ({stroke: color("--dim"), ticks: {show: false}, ...more});
  const line = (label, name, show, steps) =>
    ({label, stroke: color(name), width: 2, points: {show: steps < 30, size: 4}, value: (_, value) => show(value)});

  // where no moment is pointed at, the legend has the newest one that is known
  function rest(plot) {
    let last = plot.data[0].length - 1;
    while (last > 0 && plot.data.slice(1).every((column) => column[last] == null)) last -= 1;
    plot.setLegend({idx: last});
  }

  function chart(name, times, lines, columns, show) {
    const target = place.querySelector(`[data-chart="${name}"]`);
    target.replaceChildren();
    if (columns.every((column) => column.every((value) => value == null))) {
      target.append("Nothing is known of this time.");
      return;
    }
    const options = {
      width: Math.max(200, target.clientWidth), height: HEIGHT,
      cursor: {y: false, drag: {x: false, y: false}},
      scales: {y: {range: (_, low, high) => [0, high > 0 ? high * 1.1 : 1]}},
      tzDate: (time) => uPlot.tzDate(new Date(time * 1e3), "Etc/UTC"),
      axes: [
        axis({grid: {show: false}, space: 90, size: 30, values: (_, ticks) => ticks.map(moment)}),
        axis({grid: {stroke: color("--line"), width: 1}, space: 30, size: 64, values: (_, ticks) => ticks.map(show)}),
      ],
      series: [{label: "At (UTC)", value: "{YYYY}-{MM}-{DD} {HH}:{mm}"}, ...lines.map(([label, stroke]) => line(label, stroke, show, times.length))],
    };
    const plot = new uPlot(options, [times, ...columns], target);
    setTimeout(() => rest(plot));  // once it is drawn
    plot.over.addEventListener("mouseleave", () => setTimeout(() => rest(plot), 50));
    drawn.push(plot);
  }

  function draw() {
    drawn.forEach((one) => one.destroy());
    drawn = [];
    const found = data[range], rows = found.rows.some((value) => value !== null);
    const rate = rows ? "rows a second" : "objects a second";
    const step = range === "recent" ? "in steps of five minutes" : "in hours";
    place.querySelector("[data-title=rate]").textContent = `Throughput, ${rate}, ${step}`;
    chart("rate", found.times, [[rate, "--one"]], [rows ? found.rows : found.objects], number);
    chart("lag", found.times, [["half within", "--one"], ["99 of 100 within", "--two"]], [found.lag_p50, found.lag_p99], seconds);
    for (const button of place.querySelectorAll("[data-range]"))
      button.setAttribute("aria-pressed", String(button.dataset.range === range));
    place.dataset.drawn = range;
  }

  const read = () => fetch(place.dataset.charts, {credentials: "same-origin"})
    .then((answer) => answer.ok ? answer.json() : Promise.reject(new Error(String(answer.status))))
    .then((found) => { data = found; draw(); });

  read()
    .then(() => {
      place.querySelector(".choice").hidden = false;
      for (const button of place.querySelectorAll("[data-range]"))
        button.addEventListener("click", () => { range = button.dataset.range; draw(); });
      dark.addEventListener("change", draw);
      addEventListener("resize", () => drawn.forEach((one) => one.setSize({width: Math.max(200, one.root.parentElement.clientWidth), height: HEIGHT})));
      document.addEventListener("renewed", () => read().catch(() => {}));  // the foot of the page says that it is old
    })
    .catch((error) => { place.querySelector("figcaption").textContent = "The numbers could not be read: " + error.message; });
})();
