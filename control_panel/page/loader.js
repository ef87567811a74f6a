// All that a notebook may save of the panel. The view itself comes by message from the kernel.
export default {
  render({ model, el }) {
    let stop = null;
    let gone = false;
    const note = document.createElement("div");
    note.setAttribute("role", "status");
    note.style.cssText = "font: 13px/1.5 system-ui, sans-serif; padding: 8px 2px; opacity: .8";
    note.textContent = "Bridgehead: waiting for the kernel…";
    el.appendChild(note);
    const begin = async () => {
      const command = await model.widget_manager.get_model(model.get("command_id"));
      const code = await fetchCode(command, note, () => gone);
      if (gone || !code) return;
      const url = URL.createObjectURL(new Blob([code.js], { type: "text/javascript" }));
      const view = await import(url);
      URL.revokeObjectURL(url);
      if (gone) return;
      note.remove();
      stop = view.start({ feed: model, command, el, css: code.css });
    };
    begin().catch((error) => {
      note.textContent = `Bridgehead: the panel could not start here (${error.message}). Try panel(view="plain").`;
    });
    return () => {
      gone = true;
      if (stop) stop();
    };
  },
};

function fetchCode(command, note, gone) {
  return new Promise((resolve) => {
    let asked = 0;
    let timer = 0;
    const heard = (message) => {
      if (!message || message.k !== "code") return;
      clearTimeout(timer);
      command.off("msg:custom", heard);
      resolve(message);
    };
    const ask = () => {
      if (gone()) return resolve(null);
      asked += 1;
      if (asked === 4) {
        note.textContent =
          "Bridgehead: the kernel does not answer yet (a cell runs, or it was restarted: then run this cell again). "
          + "Your runs go on either way; bridgehead status shows them.";
      }
      try {
        command.send({ k: "code" });
      } catch (error) {
        // A closed comm: the next try says the same until the cell is run again.
      }
      timer = setTimeout(ask, Math.min(8000, 700 * asked));
    };
    command.on("msg:custom", heard);
    ask();
  });
}
