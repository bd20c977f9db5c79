// Two points clicked one after the other select a range, as brushing does.

export class TwoPoints {
  /** @param line the element that shows that a point is marked */
  constructor(line) {
    this.line = line;
    this.charts = null;
    this.moving = false;
    document.addEventListener("keydown", (event) => event.key === "Escape" && this.forget());
    document.addEventListener("click", ({ target }) => target.closest(".chart") ?? this.forget());
  }

  click(x) {
    // The second click of a double click, which resets the zoom.
    if (this.moving) return;
    const { point } = this.charts;
    if (point === null) return this.#mark(x);
    this.forget();
    if (point !== x) this.charts.zoom([Math.min(point, x), Math.max(point, x)]);
  }

  /** Called when the axis was moved in another way. */
  moved() {
    this.forget();
    this.moving = true;
    queueMicrotask(() => { this.moving = false; });
  }

  forget() {
    if (this.charts && this.charts.point !== null) this.#mark(null);
  }

  #mark(x) {
    this.charts.point = x;
    this.line.textContent = x === null ? "" : "Click a second point to compare, or press Escape to cancel.";
    this.charts.redraw();
  }
}
