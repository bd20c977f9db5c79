// A clicked point of the charts: the viewer can add a note at that point, or select a range with a second click.

export class TwoPoints {
  /**
   * @param line  the element that shows that a point is marked
   * @param form  the form for a note at that point; null for a read-only viewer
   * @param notes {address: the API's address of the run, added(): called after a note was stored}
   */
  constructor(line, form, notes) {
    this.line = line;
    this.form = form;
    this.notes = notes;
    this.charts = null;
    this.moving = false;
    this.sending = false;
    document.addEventListener("keydown", (event) => event.key === "Escape" && this.forget());
    document.addEventListener("click", ({ target }) => target.closest(".chart, #point-note") ?? this.forget());
    form?.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.sending || this.charts.point === null) return;
      this.sending = true;
      this.#add(form.elements.text.value).finally(() => { this.sending = false; });
    });
  }

  click(x) {
    // The second click of a double click, which resets the zoom.
    if (this.moving) return;
    const { point } = this.charts;
    if (point === null) return this.#mark(x);
    this.forget();
    if (point !== x) this.charts.zoom([Math.min(point, x), Math.max(point, x)]);
  }

  /** Called when the viewer has moved the axis in another way. */
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
    // A note belongs to a generation, which a point on a time axis does not have.
    if (this.form) this.form.hidden = x === null || this.charts.axis().unit !== "generation";
    this.charts.redraw();
  }

  async #add(text) {
    const generation = Math.round(this.charts.point);
    try {
      const answer = await fetch(this.notes.address, {
        method: "PATCH",
        headers: { "content-type": "application/json" },
        body: JSON.stringify({ notes: [{ text, generation }] }),
      });
      if (!answer.ok) {
        const body = await answer.json().catch(() => null); // a proxy may answer in HTML
        this.line.textContent = `The note was not added: ${body?.error?.message ?? `the server answered ${answer.status}`}.`;
        return;
      }
    } catch (error) {
      if (!(error instanceof TypeError)) throw error;
      this.line.textContent = "The note was not added: the server does not answer. Try again.";
      return;
    }
    this.form.reset();
    this.forget();
    this.line.textContent = "Note added.";
    this.notes.added();
  }
}
