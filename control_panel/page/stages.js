// The table of runs. One row is chosen; its details stand beside it.
const NOWHERE = new Set(["queued", "lost"]); // on no VM that could die
const LEVELS = ["local", "mounted", "confirmed"];

function mainMetric(run) {
  const metrics = run.metrics || {};
  const names = Object.keys(metrics);
  const name = names.find((one) => one === "loss") || names.find((one) => one.includes("loss")) || names[0];
  return name ? [name, metrics[name]] : null;
}

function highest(run) {
  const levels = run.checkpoint || {};
  return [...LEVELS].reverse().find((level) => levels[level]) || "";
}

function riskText(run) {
  const risk = run.at_risk;
  if (!risk || ENDED.has(run.state) || NOWHERE.has(run.state)) return "";
  if (risk.seconds === null || risk.seconds === undefined) return "all of it";
  return duration(risk.seconds);
}

// What works now comes first, then what waits, then what has ended; within each the newest first.
function inOrder(store) {
  const rank = (run) => (ENDED.has(run.state) ? 2 : run.state === "queued" ? 1 : 0);
  return store.list("runs").reverse().sort((a, b) => rank(a) - rank(b));
}

// Why it stands where it stands, in one line: what it waits for, what broke, what to do.
function whyText(run) {
  if (run.state === "failed" || run.state === "rejected") return run.failure || run.reason || "";
  return run.waits_for || (run.state === "stopped" && run.reason !== run.state ? run.reason : "") || "";
}

class Runs {
  constructor(app) {
    this.app = app;
    this.body = h("tbody", {});
    const heads = [["Run", "c-run"], ["State", "c-state"], ["Progress", "c-progress"], ["ETA", "c-eta num"],
      ["Loss", "c-loss num"], ["Checkpoint", "c-checkpoint"], ["At risk", "c-risk num"], ["VM", "c-vm"]];
    const row = h("tr", {});
    heads.forEach(([word, name]) => row.append(h("th", { class: name, scope: "col" }, word)));
    row.children[6].title = "What the VM's death right now would cost";
    this.table = h("table", { class: "runs-table", "aria-label": "Runs" }, h("thead", {}, row), this.body);
    this.empty = h("p", { class: "empty" });
    this.scroll = h("div", { class: "table-scroll" }, this.table);
    this.summary = h("span", { class: "muted" });
    this.node = h("section", { id: "runs", class: "block runs", "aria-label": "Runs" }, h("h3", {}, "Runs", this.summary), this.empty, this.scroll);
    this.body.addEventListener("keydown", (event) => this.walk(event));
  }

  paint(store, chosen) {
    const runs = inOrder(store);
    show(this.empty, runs.length === 0);
    show(this.scroll, runs.length > 0);
    const stages = store.whole.stages || [];
    setText(this.empty, stages.length ? "No run yet. Choose a stage under Command, look at its plan, send it." : "No run yet.");
    const active = runs.filter((run) => !ENDED.has(run.state)).length;
    setText(this.summary, runs.length ? `${active} active of ${runs.length}` : "");
    keyed(this.body, runs, (run) => run.id, (run) => this.make(run), (row, run) => this.update(row, run, run.id === chosen));
  }

  make(run) {
    const row = { id: run.id, dots: [] };
    row.pick = button("", { class: "pick", title: run.id, "aria-label": run.id }, () => this.app.choose(row.id, true));
    const name = idParts();
    setId(name, run.id);
    row.pick.label.replaceChildren(name.node);
    row.vm = idParts();
    row.why = h("span", { class: "why" });
    row.mark = stateMark(`state-${run.id}`);
    row.fill = h("i", {});
    row.bar = h("span", { class: "bar", role: "progressbar", "aria-label": `Progress of ${run.id}`, "aria-valuemin": 0, "aria-valuemax": 100 }, row.fill);
    row.done = h("span", { class: "num percent" });
    row.dots = LEVELS.map(() => h("i", { class: "level" }));
    row.level = h("span", {});
    const cell = (name, ...children) => h("td", { class: name }, ...children);
    row.cells = { eta: cell("c-eta num"), loss: cell("c-loss num"), risk: cell("c-risk num"), vm: cell("c-vm", row.vm.node) };
    row.node = h(
      "tr", { id: `run-${run.id}` },
      h("th", { scope: "row", class: "c-run" }, row.pick, row.why), cell("c-state", row.mark.node),
      cell("c-progress", h("span", { class: "progress" }, row.bar, row.done)), row.cells.eta, row.cells.loss,
      cell("c-checkpoint", h("span", { class: "levels", "aria-hidden": "true" }, ...row.dots), row.level), row.cells.risk, row.cells.vm,
    );
    row.node.addEventListener("click", (event) => {
      if (!event.target.closest("button")) this.app.choose(row.id, true);
    });
    return row;
  }

  update(row, run, chosen) {
    setState(row.mark, run.state);
    const ended = ENDED.has(run.state);
    const part = run.state === "done" ? 1 : percent(run.step, run.total_steps);
    const known = run.state === "done" || run.total_steps > 0;
    setText(row.why, whyText(run));
    setAttr(row.why, "title", whyText(run) || null);
    setText(row.done, known ? `${Math.floor(part * 100)} %` : run.step ? shortStep(run.step) : "");
    row.bar.classList.toggle("none", !known);
    setAttr(row.bar, "aria-valuenow", known ? Math.floor(part * 100) : null);
    const scale = `scaleX(${part.toFixed(3)})`;
    if (row.fill.style.transform !== scale) row.fill.style.transform = scale;
    setText(row.cells.eta, ended || !run.eta_s ? "–" : duration((run.eta_s[0] + run.eta_s[1]) / 2));
    const metric = mainMetric(run);
    setText(row.cells.loss, metric ? number(metric[1]) : "–");
    setAttr(row.cells.loss, "title", metric ? metric[0] : null);
    const level = highest(run);
    row.dots.forEach((dot, at) => dot.classList.toggle("on", Boolean((run.checkpoint || {})[LEVELS[at]])));
    setText(row.level, level || "none");
    setText(row.cells.risk, riskText(run) || "–");
    setId(row.vm, run.vm || "–");
    setAttr(row.node, "data-tone", stateOf(run.state)[2]);
    row.node.classList.toggle("chosen", chosen);
    setAttr(row.pick, "aria-pressed", String(chosen));
    setAttr(row.pick, "tabindex", chosen ? "0" : "-1");
  }

  walk(event) {
    const moves = { ArrowDown: 1, ArrowUp: -1 };
    if (!(event.key in moves) || !event.target.classList.contains("pick")) return;
    const picks = [...this.body.querySelectorAll(".pick")];
    const next = picks[picks.indexOf(event.target) + moves[event.key]];
    if (!next) return;
    event.preventDefault();
    next.click();
    next.focus();
  }
}
