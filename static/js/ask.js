// Buttons that ask the training to look: `data-ask` is the kind, `data-type` the class. What came of it is an event.

export function listenForAsking(page) {
  page.addEventListener("click", (event) => {
    const button = event.target.closest("[data-ask]");
    if (button) ask(page.dataset.requests, button);
  });
}

async function ask(address, button) {
  button.disabled = true;
  const { ask: kind, type } = button.dataset;
  try {
    const answer = await fetch(address, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(type ? { kind, type } : { kind }),
    });
    show(button, answer.ok ? "Asked" : "Not asked", answer.ok ? button.title : (await answer.json()).error.message);
  } catch (error) {
    if (!(error instanceof TypeError)) throw error;
    show(button, "No server", "The server does not answer.");
    button.disabled = false;
  }
}

function show(button, text, title) {
  button.textContent = text;
  button.title = title;
}
