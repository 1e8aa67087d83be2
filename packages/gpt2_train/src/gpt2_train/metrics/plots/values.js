"use strict";
// Shows the values of all curves of a chart at the point nearest to the pointer.
for (const panel of document.querySelectorAll(".panel")) {
  const { across: [low, high], curves } = JSON.parse(panel.querySelector("script").textContent);
  const room = panel.querySelector(".room");
  const cursor = Object.assign(document.createElement("div"), { className: "cursor", hidden: true });
  const values = Object.assign(document.createElement("div"), { className: "values", hidden: true });
  room.append(cursor, values);
  const nearest = (points, x) => {
    let first = 0, last = points.length - 1;
    while (last - first > 1) {
      const middle = (first + last) >> 1;
      if (points[middle][0] <= x) first = middle; else last = middle;
    }
    return x - points[first][0] <= points[last][0] - x ? points[first] : points[last];
  };
  const written = (number) => Math.abs(number) >= 1e5 || Number.isInteger(number)
    ? number.toLocaleString("en") : String(Number(number.toPrecision(5)));
  room.addEventListener("pointermove", (event) => {
    const box = room.getBoundingClientRect();
    const at = low + (high - low) * (event.clientX - box.left) / box.width;
    const found = curves.map((curve) => [curve.name, ...nearest(curve.points, at)])
      .filter(([, x], place) => curves[place].points.length === 1 || Math.abs(x - at) <= (high - low) / 4);
    if (!found.length) return;
    const x = found.reduce((best, one) => Math.abs(one[1] - at) < Math.abs(best - at) ? one[1] : best, Infinity);
    const head = Object.assign(document.createElement("b"), { textContent: written(x) });
    const lines = found.map(([name, , y]) =>
      Object.assign(document.createElement("div"), { textContent: `${name}: ${written(y)}` }));
    values.replaceChildren(head, ...lines);
    cursor.hidden = values.hidden = false;
    const place = (x - low) / ((high - low) || 1) * box.width;
    cursor.style.left = `${place}px`;
    values.style.left = `${place + 12 + values.offsetWidth > box.width ? Math.max(0, place - 12 - values.offsetWidth) : place + 12}px`;
  });
  room.addEventListener("pointerleave", () => { cursor.hidden = values.hidden = true; });
}
