// The chosen run: how far, how safe, its curves, and what can be done with it.
const PLOTS_MAX = 4;

class Detail {
  constructor(app) {
    this.app = app;
    this.charts = new Map();
    this.run = null;
    this.title = h("h3", {}, "Run");
    this.mark = stateMark("detail-state");
    this.sub = h("span", { class: "muted" });
    this.fact = h("p", { class: "facts num", id: "progress-facts" });
    this.fill = h("i", {});
    this.bar = h("span", { class: "bar big", role: "progressbar", "aria-label": "Progress", "aria-valuemin": 0, "aria-valuemax": 100 }, this.fill);
    this.todo = h("p", { class: "strip todo", id: "run-next", hidden: true });
    this.tail = h("p", { class: "tail mono", hidden: true });
    this.risk = h("p", { class: "risk", id: "at-risk" });
    this.levels = h("ol", { class: "level-list", "aria-label": "How safe the newest checkpoints are" });
    this.levelRows = LEVELS.map((level) => this.levelRow(level));
    this.levels.append(...this.levelRows.map((row) => row.node));
    this.plots = h("div", { class: "plots" });
    this.more = h("p", { class: "facts num more" });
    this.stopAsk = new StopAsk(app);
    this.ask = new Ask(app, "detail");
    this.buttons = this.makeButtons();
    const head = h("div", { class: "detail-head" }, this.title, this.mark.node, this.sub);
    this.inner = h(
      "div", { class: "detail-inner" }, head, this.buttons, this.stopAsk.node, this.ask.node, this.todo,
      h("div", { class: "progress wide" }, this.bar), this.fact, this.tail, this.plots, this.more, this.risk, this.levels,
    );
    this.empty = h("p", { class: "empty" }, "The details of a run appear here: its curves, its checkpoints, what to do about it.");
    this.node = h("section", { id: "detail", class: "block detail", "aria-label": "Chosen run" }, this.empty, this.inner);
  }

  levelRow(level) {
    const row = { dot: h("i", { class: "level" }), text: h("span", { class: "num" }) };
    row.node = h("li", { id: `level-${level}` }, row.dot, h("span", { class: "level-name" }, level), row.text);
    return row;
  }

  makeButtons() {
    const open = (verb, args, node, note) => {
      this.stopAsk.close();
      this.ask.open(verb, args, node, note);
    };
    const onRun = () => ({ run: this.run.id });
    this.stop = button("Stop…", { id: "stop" }, () => {
      this.ask.close();
      this.stopAsk.open(this.run, this.stop);
    });
    this.resume = button("Resume…", { id: "resume" }, () => open("resume", onRun(), this.resume));
    this.rerun = button("Run again…", { id: "rerun" }, () => open("rerun", onRun(), this.rerun));
    this.gate = button("Gate…", { id: "gate" }, () => open("gate", {}, this.gate));
    this.exported = button("Export…", { id: "export" }, () => open("export", {}, this.exported));
    return h("div", { class: "buttons", role: "group", "aria-label": "Do" }, this.rerun, this.resume, this.stop, this.gate, this.exported);
  }

  paint(store, id) {
    const run = store.runs.get(id) || null;
    if (this.run && run && this.run.id !== run.id) {
      this.stopAsk.close();
      this.ask.close();
    }
    this.run = run;
    show(this.inner, Boolean(run));
    show(this.empty, !run);
    if (!run) return;
    setText(this.title, run.id);
    setState(this.mark, run.state);
    const facts = [run.stage !== run.id ? run.stage : "", run.vm && `on ${run.vm}`, run.attempt > 1 && `attempt ${run.attempt}`, run.verdict && `gate: ${verdictText(run)}`];
    setText(this.sub, facts.filter(Boolean).join(" · "));
    this.paintProgress(run);
    this.paintSafety(run, store);
    this.paintTodo(run);
    this.paintButtons(run, store);
    this.paintPlots(run, store);
    this.stopAsk.update(run, store);
  }

  paintProgress(run) {
    const part = run.state === "done" ? 1 : percent(run.step, run.total_steps);
    const scale = `scaleX(${part.toFixed(4)})`;
    if (this.fill.style.transform !== scale) this.fill.style.transform = scale;
    setAttr(this.bar, "aria-valuenow", Math.floor(part * 100));
    const words = [];
    if (run.total_steps) words.push(`step ${count(run.step)} of ${count(run.total_steps)}`);
    else if (run.step) words.push(`step ${count(run.step)}`);
    if (run.total_epochs) words.push(`epoch ${run.epoch} of ${run.total_epochs}`);
    if (!ENDED.has(run.state)) {
      if (run.rate_per_s) words.push(`${number(run.rate_per_s, 3)} steps/s since this start`);
      if (run.eta_s) words.push(`${span(run.eta_s)} to go`);
      else if (run.state === "running" && run.total_steps) words.push("time to go: measuring");
    } else if (run.exit_code !== null && run.exit_code !== undefined) words.push(`exit code ${run.exit_code}`);
    setText(this.fact, words.join(" · ") || run.message || "no step yet");
    const tail = ENDED.has(run.state) ? "" : run.bar || (words.length ? run.message : "");
    show(this.tail, Boolean(tail));
    setText(this.tail, tail);
  }

  paintTodo(run) {
    const ended = ENDED.has(run.state);
    const why = [whyText(run), run.state === "failed" && run.failure && run.reason].filter(Boolean).join(": ");
    const todo = run.next && run.next !== why ? (ended ? `Next: ${run.next}` : run.next) : "";
    const text = [why && todo ? `${why.replace(/[.\s]+$/, "")}.` : why, todo].filter(Boolean).join(" ");
    show(this.todo, Boolean(text));
    setText(this.todo, text);
    setAttr(this.todo, "data-tone", stateOf(run.state)[2]);
  }

  paintSafety(run, store) {
    const risk = run.at_risk;
    const ended = ENDED.has(run.state);
    show(this.risk, !ended && !NOWHERE.has(run.state) && Boolean(risk));
    if (risk) {
      const lost = risk.seconds === null || risk.seconds === undefined;
      const words = lost ? "everything so far would be lost: no checkpoint has left it" : `${duration(risk.seconds)} of work lost`;
      const back = risk.level && !lost ? `, ${risk.steps ? `${lines(risk.steps, "step")}, ` : ""}back to the ${risk.level} checkpoint` : "";
      setText(this.risk, `If the VM dies now: ${words}${back}.`);
      setAttr(this.risk, "data-tone", lost || risk.seconds > 1800 ? "warn" : null);
    }
    LEVELS.forEach((level, at) => {
      const told = (run.checkpoint || {})[level];
      const row = this.levelRows[at];
      row.dot.classList.toggle("on", Boolean(told));
      const age = told && (told.at ? store.now() - told.at : told.age_s);
      setText(row.text, told ? `step ${count(told.step)} · ${ago(age)}` : "none yet");
    });
  }

  paintButtons(run, store) {
    const ended = ENDED.has(run.state);
    const active = !ended && run.state !== "lost";
    allow(this.stop, !ended, "It has ended");
    const saved = Object.values(run.checkpoint || {}).some(Boolean);
    const why = !saved ? "It has no checkpoint" : active ? "It is still going" : "It is done";
    allow(this.resume, saved && ((ended && run.state !== "done") || run.state === "lost"), why);
    allow(this.rerun, ended, "It is still going");
    const has = (name) => (store.whole.stages || []).some((stage) => stage.name === name);
    show(this.gate, has("gate"));
    show(this.exported, has("export"));
  }

  paintPlots(run, store) {
    const curves = store.series[run.id] || {};
    const names = Object.keys(curves).sort((a, b) => b.includes("loss") - a.includes("loss"));
    const shown = names.slice(0, PLOTS_MAX);
    const champion = championOf(run, store);
    const marks = run.resumed || [];
    show(this.plots, shown.length > 0);
    for (const name of this.charts.keys()) if (!shown.includes(name)) this.drop(name);
    keyed(this.plots, shown, (name) => name, (name) => this.chart(name), (chart, name, at) => {
      setAttr(chart.node, "data-testid", at === 0 ? "plot" : `plot-${at}`);
      const other = champion && (store.series[champion.id] || {})[name];
      chart.set(curves[name], other && other.length ? { label: champion.label, curve: other } : null, marks);
    });
    const rest = Object.entries(run.metrics || {}).filter(([name]) => !shown.includes(name));
    show(this.more, rest.length > 0);
    setText(this.more, rest.map(([name, value]) => `${name} ${number(value)}`).join(" · "));
  }

  chart(name) {
    const chart = new Chart(name, "plot");
    this.charts.set(name, chart);
    return chart;
  }

  drop(name) {
    this.charts.get(name).stop();
    this.charts.delete(name);
  }

  redraw() {
    for (const chart of this.charts.values()) chart.draw();
  }

  stopAll() {
    for (const name of [...this.charts.keys()]) this.drop(name);
  }
}

function verdictText(run) {
  const verdict = run.verdict;
  return typeof verdict === "string" ? verdict : String(verdict.verdict || verdict.text || "");
}

// What a run is held against: the run that the gate named, else the newest finished one of its stage before it.
function championOf(run, store) {
  const others = store.list("runs").filter((one) => one.id !== run.id && one.stage === run.stage && store.series[one.id]);
  const named = others.find((one) => /champion|promoted|passed/i.test(verdictText(one)));
  if (named) return { id: named.id, label: named.id };
  const before = others.filter((one) => one.state === "done" && (one.order || 0) < (run.order || 0)).pop();
  return before ? { id: before.id, label: before.id } : null;
}
