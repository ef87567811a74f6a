// Everything that can be sent, the queue with the fate of each line, the cell for a new VM, and what has arrived.
const QUEUE_SHOWN = 40;
const QUEUE_FIRST = 8;

const HERE_ONLY =
  "The bridge has no tunnel: only a notebook on this machine can use this cell. For Colab: bridgehead down, then bridgehead up --tunnel cloudflared, "
  + "and pair again. To try it here: bridgehead up --runtime local.";

function isLoopback(url) {
  return /^https?:\/\/(localhost|127\.[\d.]+|\[?::1\]?)(:|\/|$)/.test(url || "");
}

class Pairing {
  constructor(app) {
    this.app = app;
    this.text = h("p", {});
    this.cell = h("pre", { class: "cell mono", id: "pair-cell", tabindex: "0", "aria-label": "The cell to paste" });
    this.copy = button("Copy the cell", { id: "pair-copy", class: "primary" }, () => this.copied(), "copy");
    this.done = button("Done", { id: "pair-close" }, () => this.close());
    this.node = h(
      "section", { class: "next-box pair", id: "pair-box", hidden: true, "aria-label": "Pair a VM" },
      h("div", {}, h("h3", {}, "Pair a VM"), this.text, this.cell), h("div", { class: "buttons" }, this.copy, this.done),
    );
    this.node.addEventListener("keydown", (event) => event.key === "Escape" && this.close());
  }

  async open() {
    show(this.node, true);
    this.app.schedule("next");
    show(this.cell, false);
    show(this.copy, false);
    this.failed = false;
    setText(this.text, "Making the cell…");
    this.done.focus();
    const answer = await this.app.link.send("pair", {}).answer;
    if (this.node.hidden) return;
    const cell = answer.cell || (answer.state === "done" ? answer.text : "");
    if (!cell) {
      setText(this.text, [answer.text || "No cell could be made.", answer.next].filter(Boolean).join(". Next: "));
      this.failed = true;
      return;
    }
    const local = isLoopback((this.app.store.whole.bridge || {}).url);
    const where = local ? HERE_ONLY : "Paste this into one cell of a notebook with a GPU and run it.";
    setText(this.text, `${where} It holds the pairing code, so share it with nobody. It is shown this once and is not kept in this notebook.`);
    setText(this.cell, cell);
    show(this.cell, true);
    show(this.copy, true);
    this.copy.focus();
  }

  // No bridge, no cell: once there is one, what to do next is shown again.
  paint(store) {
    const up = (store.whole.bridge || {}).state === "up";
    if (this.failed && up && !this.up) this.close(this.node.contains(this.node.getRootNode().activeElement));
    this.up = up;
  }

  async copied() {
    const done = await copyText(this.cell.textContent, this.app.root);
    setText(this.copy.label, done ? "Copied" : "Select it and copy");
    setTimeout(() => setText(this.copy.label, "Copy the cell"), 2000);
  }

  close(back = true) {
    setText(this.cell, "");
    show(this.node, false);
    this.failed = false;
    this.app.schedule("next");
    if (back) this.app.header.pair.focus();
  }
}

class RunForm {
  constructor(app) {
    this.app = app;
    this.stage = h("select", { id: "run-stage", "aria-label": "Stage", onchange: () => this.ask.close() });
    this.overrides = h("input", {
      id: "run-overrides", type: "text", placeholder: "overrides: epochs=20 seed=7", "aria-label": "Overrides",
      spellcheck: "false", autocomplete: "off", oninput: () => this.ask.close(),
    });
    this.plan = button("Run…", { id: "run", type: "submit" }, () => {});
    this.ask = new Ask(app, "run");
    this.form = h("form", { class: "form-row", "aria-label": "Run a stage" }, this.stage, this.overrides, this.plan);
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.show();
    });
    this.node = h("div", {}, this.form, this.ask.node);
  }

  paint(store) {
    const names = (store.whole.stages || []).map((stage) => stage.name);
    if (this.known !== names.join("\n")) {
      this.known = names.join("\n");
      const chosen = this.stage.value;
      this.stage.replaceChildren(...names.map((name) => h("option", { value: name }, name)));
      if (names.includes(chosen)) this.stage.value = chosen;
    }
    allow(this.plan, names.length > 0, (store.whole.can || {}).why || "bridgehead.toml has no stage yet");
  }

  open(stage) {
    if (stage) this.stage.value = stage;
    this.node.scrollIntoView({ block: "nearest" });
    this.show();
  }

  show() {
    if (!this.stage.value) return;
    const overrides = {};
    for (const word of this.overrides.value.trim().split(/\s+/).filter(Boolean)) {
      const at = word.indexOf("=");
      overrides[at < 0 ? word : word.slice(0, at)] = at < 0 ? "" : word.slice(at + 1);
    }
    this.ask.open("run", { stage: this.stage.value, overrides }, this.plan);
  }
}

class Shell {
  constructor(app) {
    this.app = app;
    this.vm = h("select", { id: "sh-vm", "aria-label": "VM for the command", onchange: () => this.preview() });
    this.box = h("input", {
      id: "cmd", type: "text", placeholder: "shell command: nvidia-smi", "aria-label": "Shell command",
      spellcheck: "false", autocomplete: "off", autocapitalize: "off", oninput: () => this.preview(),
    });
    this.go = button("Send", { id: "sh-send", type: "submit" }, () => {});
    this.line = h("code", { class: "line soft" });
    this.form = h("form", { class: "form-row", "aria-label": "Shell command" }, this.vm, this.box, this.go);
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    this.node = h("div", {}, this.form, this.line);
    show(this.line, false);
  }

  paint(store) {
    const ids = store.list("vms").filter((vm) => vm.state === "live" || vm.state === "silent").map((vm) => vm.id);
    if (this.known !== ids.join("\n")) {
      this.known = ids.join("\n");
      const chosen = this.vm.value;
      this.vm.replaceChildren(h("option", { value: "" }, "any VM"), ...ids.map((id) => h("option", { value: id }, id)));
      if (ids.includes(chosen)) this.vm.value = chosen;
    }
    const { sh, why = "shell commands are off in bridgehead.toml" } = store.whole.can || {};
    const can = sh === true;
    setAttr(this.box, "disabled", !can);
    setAttr(this.box, "placeholder", can ? "shell command: nvidia-smi" : why);
    allow(this.go, can, why);
  }

  args() {
    return { text: this.box.value.trim(), vm: this.vm.value };
  }

  preview() {
    show(this.line, Boolean(this.args().text));
    setText(this.line, lineOf("sh", this.args(), this.app.store));
  }

  send() {
    if (!this.args().text || this.go.getAttribute("aria-disabled") === "true") return;
    this.app.link.send("sh", this.args());
    this.box.value = "";
    this.preview();
  }
}

class Commands {
  constructor(app) {
    this.app = app;
    this.ack = h("p", { class: "ack num", id: "ack", role: "status" });
    this.list = h("ol", { class: "queue", id: "queue", "aria-label": "The queue, newest first" });
    this.empty = h("p", { class: "empty" }, "Nothing was sent yet. Every button here becomes one line in queue.txt, and its fate appears in this place.");
    this.all = button("", { class: "plain small", id: "queue-all" }, () => {
      this.whole = !this.whole;
      this.app.schedule("queue");
    });
    this.sync = button("Re-ship the code…", { id: "sync" }, () => app.commandAsk.open("sync", {}, this.sync, "Live VMs fetch the project's files again. Runs that go on keep the files they began with."));
    this.node = h(
      "section", { class: "block", id: "commands", "aria-label": "Command" }, h("div", { class: "head-row" }, h("h3", {}, "Command"), this.sync),
      app.runForm.node, app.shell.node, app.commandAsk.node, this.ack, this.empty, this.list, this.all,
    );
  }

  paint(store) {
    const known = new Set(store.whole.queue.map((line) => line.id));
    const mine = [...this.app.link.sent.values()].filter((entry) => !known.has(entry.id) && this.worthShowing(entry));
    const rows = [
      ...mine.reverse().slice(0, 5).map((entry) => ({ key: entry.id, entry })),
      ...[...store.whole.queue].sort((a, b) => (b.n || 1e12) - (a.n || 1e12)).slice(0, QUEUE_SHOWN).map((line) => ({ key: line.id, line })),
    ];
    const shown = this.whole ? rows : rows.slice(0, QUEUE_FIRST);
    show(this.empty, rows.length === 0);
    show(this.all, rows.length > QUEUE_FIRST);
    setText(this.all.label, this.whole ? "Fewer" : `All ${rows.length}`);
    keyed(this.list, shown, (row) => row.key, () => this.make(), (part, row) => this.fill(part, row, store));
    this.paintAck(store);
  }

  // Questions (a plan, a page of a log) are no lines of the queue; a finished one has its line there.
  worthShowing(entry) {
    return !QUESTIONS.has(entry.verb) && entry.verb !== "open" && (entry.state === "sending" || entry.state === "arrived" || Date.now() - entry.at < 60000);
  }

  make() {
    const part = { n: h("span", { class: "num muted q-n" }), line: h("code", {}), mark: stateMark(), more: h("span", { class: "muted q-more num" }) };
    part.node = h("li", {}, part.n, part.line, part.mark.node, part.more);
    return part;
  }

  fill(part, { entry, line }, store) {
    if (line) {
      setText(part.n, line.n ? `#${line.n}` : "");
      setText(part.line, line.line);
      setAttr(part.line, "title", line.line);
      setState(part.mark, line.state);
      const code = line.exit_code !== null && line.exit_code !== undefined ? `exit ${line.exit_code}` : "";
      setText(part.more, [line.why !== line.state && line.why, code, line.t && dayClock(line.t)].filter(Boolean).join(" · "));
      setAttr(part.more, "title", chain(line));
      return;
    }
    const fate = fateOf(entry, store);
    setText(part.n, "");
    setText(part.line, fate.line);
    setState(part.mark, entry.state === "sending" || entry.state === "arrived" ? "sent" : entry.state);
    setText(part.more, fate.text);
  }

  paintAck(store) {
    const entry = this.app.lastShown;
    show(this.ack, Boolean(entry));
    if (!entry) return;
    const fate = fateOf(entry, store);
    setText(this.ack, `${fate.line}  ${fate.text}`);
    setAttr(this.ack, "data-tone", stateOf(fate.state)[2] === "bad" ? "bad" : null);
    setAttr(this.ack, "data-state", fate.state);
  }
}

const HASHES = { verified: ["verified", "done", "good"], arriving: ["arriving", "saving", "busy"], unchecked: ["not checked", "waiting", "quiet"], bad: ["hash wrong", "failed", "bad"] };

class Artifacts {
  constructor(app) {
    this.app = app;
    this.list = h("ul", { class: "arts" });
    this.empty = h("p", { class: "empty" }, "Bundles, encoders and results appear here as they arrive, each with the state of its hash.");
    this.node = h("section", { class: "block", id: "artifacts", "aria-label": "Artifacts" }, h("h3", {}, "Artifacts"), this.empty, this.list);
  }

  paint(store) {
    const items = [...store.whole.artifacts].sort((a, b) => (b.kind === "bundle") - (a.kind === "bundle") || b.t - a.t).slice(0, 60);
    show(this.empty, items.length === 0);
    keyed(this.list, items, (item) => `${item.run}/${item.path}`, (item) => this.make(item), (part, item, at) => this.fill(part, item, at, store));
  }

  make(item) {
    const part = { path: h("code", {}), facts: h("span", { class: "muted num" }), mark: stateMark() };
    const args = () => ({ run: part.item.run, path: part.item.path });
    part.verify = button("Verify", { class: "small" }, () => this.app.link.send("verify", args()));
    part.open = button("Open folder", { class: "plain small" }, () => this.app.link.send("open", args()));
    part.copy = button("Copy path", { class: "plain small" }, async () => {
      await copyText(`in/${part.item.run}/${part.item.path}`, this.app.root);
      this.app.say("Path copied.");
    });
    part.node = h("li", {}, h("div", { class: "art-name" }, part.path, part.facts), part.mark.node, h("span", { class: "art-buttons" }, part.verify, part.open, part.copy));
    part.item = item;
    return part;
  }

  fill(part, item, at, store) {
    part.item = item;
    setAttr(part.node, "data-testid", `art-${at}`);
    setText(part.path, `${item.run}/${item.path}`);
    setAttr(part.path, "title", `${item.run}/${item.path}`);
    setText(part.facts, [item.kind === "other" ? "" : item.kind, bytes(item.size), item.t && ago(store.now() - item.t), item.note, item.checked_at && `checked ${ago(store.now() - item.checked_at)}`].filter(Boolean).join(" · "));
    const [word, shape, tone] = HASHES[item.hash_state] || HASHES.unchecked;
    setText(part.mark.word, word);
    setIcon(part.mark.shape, shape);
    setAttr(part.mark.node, "data-tone", tone);
    show(part.verify, item.kind === "bundle" && item.hash_state !== "arriving");
  }
}
