// Before a press is sent: the line it will be in queue.txt. After: what became of it. In place, never a dialog.
const FATES = ["sent", "taken", "started", "done"];
const REACHED = { sent: 0, waiting: 0, taken: 1, started: 2, done: 3, failed: 3, stopped: 3 };
const STOP_OPEN_MS = 10000;
const DONE_OPEN_MS = 4000; // the queue below goes on telling

// The line as the queue will have it, until the kernel's own plan has come.
function lineOf(verb, args, store) {
  const run = args.run && store.runs.get(args.run);
  const stage = run ? run.stage : args.stage || "";
  if (verb === "run") return [`run:${stage}`, ...Object.entries(args.overrides || {}).map(([key, value]) => `${key}=${value}`)].join(" ");
  if (verb === "stop") return args.now ? `stop:${args.run} (at once)` : `stop:${args.run}`;
  if (verb === "resume") return `run:${stage} resume=${args.run}`;
  if (verb === "rerun") return `run:${stage}`;
  if (verb === "export" || verb === "gate") return `run:${verb}`;
  if (verb === "sh") return `${args.vm ? `@${args.vm} ` : ""}sh: ${args.text}`;
  if (verb === "sync") return "sync:";
  if (verb === "release") return `@${args.vm} release:`;
  return [verb, args.vm || args.path || args.run].filter(Boolean).join(" ");
}

function terminalWay(verb, args) {
  if (verb === "stop") return `bridgehead stop ${args.run}`;
  if (verb === "run") return `bridgehead run ${args.stage}`;
  if (verb === "release") return `bridgehead vm release ${args.vm}`;
  return "the same command of bridgehead in a terminal";
}

// Where a sent command stands, by the queue itself where it is there, else by what the kernel answered.
function fateOf(entry, store) {
  const line = store.whole.queue.find((one) => one.id === entry.id);
  const shown = line ? `${line.n ? `#${line.n} ` : ""}${line.line}` : entry.line || lineOf(entry.verb, entry.args, store);
  if (line) return { line: shown, state: line.state, text: chain(line), over: ["done", "failed", "rejected", "stopped"].includes(line.state) };
  const words = {
    sending: entry.busy ? `sending… the kernel is busy; ${terminalWay(entry.verb, entry.args)} works at once` : "sending…",
    arrived: "the panel has it; writing the line…",
  };
  const over = ["done", "failed", "refused"].includes(entry.state);
  const said = [entry.text || stateOf(entry.state)[0], entry.next].filter(Boolean).join(". Next: ");
  return { line: shown, state: entry.state, text: words[entry.state] || said, over };
}

// The stage as the ledger would have it and what it will cost, as [name, value] rows.
function planFacts({ spec, text, plan }) {
  const pairs = (value) => Object.entries(value || {}).filter(([, one]) => one !== null && one !== "" && one !== 0 && one !== false)
    .map(([name, one]) => `${name}=${typeof one === "object" ? JSON.stringify(one) : one}`).join("  ");
  const every = [
    spec.checkpoint_every_steps && lines(spec.checkpoint_every_steps, "step"),
    spec.checkpoint_every_s && duration(spec.checkpoint_every_s),
    spec.checkpoint_every_epochs && lines(spec.checkpoint_every_epochs, "epoch"),
  ].filter(Boolean);
  const rows = [
    ["command", spec.command],
    ["after", (spec.after || []).join(", ")],
    ["begins at", spec.resume_from && `the newest checkpoint of ${spec.resume_from}`],
    ["config", pairs(spec.config)],
    ["needs", pairs(spec.needs)],
    ["checkpoint", every.length ? `every ${every.join(" or ")}, ${spec.keep_checkpoints} kept` : ""],
    ...priceFacts(text || ""),
    ...(((plan || {}).checks) || []).filter((check) => check.state === "warn")
      .map((check) => [`warning: ${check.name}`, [check.text, check.hint].filter(Boolean).join(". Next: ")]),
  ];
  return rows.filter(([, value]) => value).map(([name, value]) => [name, String(value).slice(0, 400)]);
}

// One line says that there is no price; five say it no better.
function priceFacts(text) {
  const rows = text.split(/; |\n/).filter((line) => line.includes(": ")).map((line) => [line.slice(0, line.indexOf(": ")), line.slice(line.indexOf(": ") + 2)]);
  const unpriced = rows.some(([name, value]) => name === "total" && value.startsWith("unpriced"));
  return rows.filter(([name]) => !unpriced || !["rate", "time", "storage", "egress"].includes(name))
    .map(([name, value]) => [name, value.replace(/\b([0-9a-f]{12})[0-9a-f]{40,}/g, "$1…")]);
}

function chain(line) {
  if (line.state === "rejected") return `rejected: ${line.why || "see queue.txt"}`;
  const at = line.began === false ? 2 : REACHED[line.state] || 0; // one that never began was taken, and that is all
  const steps = FATES.slice(0, at).map((word) => `${word} ✓`);
  const code = line.exit_code !== null && line.exit_code !== undefined ? ` (${line.exit_code})` : "";
  steps.push(line.state === "sent" ? "sent" : `${stateOf(line.state)[0]}${code}`);
  return steps.join(" → ") + (line.why && line.why !== line.state ? ` · ${line.why}` : "");
}

class Ask {
  constructor(app, name) {
    this.app = app;
    this.line = h("code", { class: "line" });
    this.text = h("p", { class: "ask-text" });
    this.go = button("Send", { class: "primary", id: `send-${name}` }, () => this.send());
    this.no = button("Cancel", { id: `cancel-${name}` }, () => this.close(true));
    this.row = h("div", { class: "buttons" }, this.go, this.no);
    this.facts = h("dl", { class: "plan" });
    this.node = h("div", { class: "ask", id: `ask-${name}`, role: "group", "aria-label": "Before it is sent", hidden: true }, this.line, this.text, this.facts, this.row);
    this.node.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.close(true);
    });
    app.asks.add(this);
  }

  open(verb, args, opener, note) {
    this.verb = verb;
    this.args = args;
    this.opener = opener;
    this.entry = null;
    const line = lineOf(verb, args, this.app.store);
    setText(this.line, line);
    setText(this.text, note || "");
    setAttr(this.text, "data-tone", null);
    this.fill([]);
    clearTimeout(this.timer);
    setText(this.go.label, "Send");
    setText(this.no.label, "Cancel");
    show(this.go, true);
    allow(this.go, true);
    show(this.node, true);
    this.go.focus();
    if (!["verify", "open"].includes(verb)) this.plan(verb, args, note);
  }

  async plan(verb, args, note) {
    const asked = this.args;
    const answer = await this.app.link.send("plan", verb === "run" ? args : { verb, ...args }).answer;
    if (this.args !== asked || this.entry) return;
    if (answer.state === "refused" || answer.state === "failed") {
      // The plan says why this would be refused: nothing to send.
      setText(this.text, [answer.text || "this can't be sent as it is", answer.next].filter(Boolean).join("\nNext: "));
      setAttr(this.text, "data-tone", "bad");
      allow(this.go, false, answer.text);
      return;
    }
    setAttr(this.text, "data-tone", answer.warn ? "warn" : null);
    if (answer.line) setText(this.line, answer.line);
    const told = answer.spec ? planFacts(answer) : [];
    setText(this.text, [note, told.length ? "" : answer.text].filter(Boolean).join("\n"));
    this.fill(told);
  }

  fill(facts) {
    this.facts.replaceChildren(...facts.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
    show(this.facts, facts.length > 0);
  }

  send() {
    const { verb, args } = this;
    this.entry = this.app.link.send(verb, args);
    this.fill([]);
    show(this.go, false);
    setText(this.no.label, "Close");
    this.no.focus();
    this.update(this.app.store);
  }

  update(store) {
    if (!this.entry || this.node.hidden) return;
    const fate = fateOf(this.entry, store);
    setText(this.line, fate.line);
    setText(this.text, fate.text);
    setAttr(this.text, "data-tone", stateOf(fate.state)[2] === "bad" ? "bad" : null);
    if (["taken", "started", "waiting", "done"].includes(fate.state) && !this.timer) this.timer = setTimeout(() => this.close(true), DONE_OPEN_MS);
  }

  close(back) {
    clearTimeout(this.timer);
    this.timer = 0;
    if (this.node.hidden) return;
    back = back && this.node.contains(this.node.getRootNode().activeElement);
    this.entry = null;
    this.args = null;
    show(this.node, false);
    if (back && this.opener) this.opener.focus();
  }
}

// What already asks this run to stop: a line of the queue, or a press of this page that was not refused; "" for nothing.
function stoppedBy(run, app) {
  const fresh = app.store.runs.get(run.id) || run;
  if (fresh.stopped_by) return `line #${fresh.stopped_by}`;
  const words = `stop:${run.id}`;
  const line = app.store.whole.queue.find((one) => one.state !== "rejected" && one.line.split("; ").includes(words));
  if (line) return line.n ? `line #${line.n}` : "a line that no bridge has taken yet";
  const sent = [...app.link.sent.values()].some((entry) => entry.verb === "stop" && entry.args.run === run.id && ["sent", "taken"].includes(entry.state));
  return sent ? "an earlier press" : "";
}

// Stop in two steps, in place: the first press opens this, and it closes again when nobody chooses.
class StopAsk {
  constructor(app) {
    this.app = app;
    this.line = h("code", { class: "line" });
    this.text = h("p", { class: "ask-text" });
    this.save = button("Save, then stop", { id: "stop-save", class: "primary" }, () => this.send(false));
    this.now = button("Kill now", { id: "stop-now", class: "danger" }, () => this.send(true));
    this.no = button("Keep running", { id: "stop-cancel" }, () => this.close(true));
    this.node = h(
      "div", { class: "ask", id: "stop-ask", role: "group", "aria-label": "Stop this run?", hidden: true },
      this.line, this.text, h("div", { class: "buttons" }, this.save, this.now, this.no),
    );
    this.node.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.close(true);
    });
    for (const kind of ["keydown", "pointermove"]) this.node.addEventListener(kind, () => this.wait());
    app.asks.add(this);
  }

  open(run, opener) {
    this.opener = opener;
    this.run = run;
    this.entry = null;
    setText(this.line, lineOf("stop", { run: run.id }, this.app.store));
    setAttr(this.text, "data-tone", null);
    show(this.node, true);
    this.ask();
    (this.save.hidden ? this.no : this.save).focus();
    this.wait();
  }

  // What can be chosen, by what has asked it to stop so far: after one stop the next one kills.
  ask() {
    const run = this.app.store.runs.get(this.run.id) || this.run;
    const by = stoppedBy(run, this.app);
    const risk = riskText(run);
    const loss = risk ? (risk === "all of it" ? "all of it" : `${risk} of work`) : "";
    const held = this.node.contains(this.node.getRootNode().activeElement);
    const ended = ENDED.has(run.state);
    show(this.save, !by && !ended);
    show(this.now, !ended);
    setText(this.now.label, by ? "Kill now, without saving" : "Kill now");
    setText(this.no.label, by ? "Let it save" : "Keep running");
    const since = loss === "all of it" ? "all of it: no checkpoint has left its VM" : `${loss || "the work"} since its last checkpoint`;
    const { at, why } = run.stopping || {};
    const age = at ? `, since ${duration(this.app.store.now() - at)}` : "";
    const again = `It is being stopped already, by ${by}${age}: it saves a checkpoint, then ends. A second stop kills it at once and loses ${since}.`;
    const joins = why ? `It is saving already${age}: ${why}. This joins that. ` : "";
    const first = `${joins}The run saves a checkpoint, then ends, and can be resumed.${loss ? ` Killing now loses ${loss}.` : ""}`;
    setText(this.text, ended ? `It has ended: ${stateOf(run.state)[0]}.` : by ? again : first);
    setAttr(this.text, "data-tone", (by || why) && !ended ? "warn" : null);
    if (held && !this.node.contains(this.node.getRootNode().activeElement)) this.no.focus();
  }

  wait() {
    clearTimeout(this.timer);
    if (!this.entry) this.timer = setTimeout(() => !this.entry && this.close(this.node.contains(this.node.getRootNode().activeElement)), STOP_OPEN_MS);
  }

  send(now) {
    clearTimeout(this.timer);
    this.entry = this.app.link.send("stop", { run: this.run.id, now });
    show(this.save, false);
    show(this.now, false); // a kill after a stop that hangs is two presses again
    setText(this.no.label, "Close");
    this.no.focus();
    this.update(null, this.app.store);
  }

  update(_run, store) {
    if (this.node.hidden) return;
    const run = store.runs.get(this.run.id);
    if (run && ENDED.has(run.state) && !this.closing) this.closing = setTimeout(() => this.close(true), DONE_OPEN_MS);
    if (!this.entry) return this.ask();
    const fate = fateOf(this.entry, store);
    setText(this.line, fate.line);
    setText(this.text, fate.text);
  }

  close(back) {
    clearTimeout(this.timer);
    clearTimeout(this.closing);
    this.closing = 0;
    if (this.node.hidden) return;
    back = back && this.node.contains(this.node.getRootNode().activeElement);
    this.entry = null;
    show(this.node, false);
    if (back && this.opener) this.opener.focus();
  }
}
