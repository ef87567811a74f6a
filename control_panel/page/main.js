// The panel: builds the parts once, then paints what changed, at most once a frame and never while hidden.
const FULL_PAINT_MS = 1000;

class App {
  constructor({ feed, command, el, css }) {
    this.store = new Store();
    this.notifier = new Notifier();
    this.watch = new Watch(this.notifier);
    this.asks = new Set();
    this.dirty = new Set(["all"]);
    this.chosen = "";
    this.picked = false;
    this.link = new Link(feed, command, this.store, this);
    this.build(el, css);
  }

  build(el, css) {
    const host = h("div", {});
    this.shadow = host.attachShadow({ mode: "open" });
    this.pairing = new Pairing(this);
    this.commandAsk = new Ask(this, "command");
    this.runForm = new RunForm(this);
    this.shell = new Shell(this);
    this.header = new Header(this);
    this.staleStrip = new Stale();
    this.alerts = new Alerts();
    this.next = new Next(this);
    this.machines = new Machines(this);
    this.runs = new Runs(this);
    this.detail = new Detail(this);
    this.log = new Log(this);
    this.commands = new Commands(this);
    this.artifacts = new Artifacts(this);
    this.said = h("p", { class: "said", role: "status", id: "said" });
    this.main = h(
      "div", { class: "panel", id: "panel", role: "region", "aria-label": "Bridgehead control panel" },
      this.header.node, this.staleStrip.node, this.alerts.node, this.pairing.node, this.next.node, this.said, this.machines.node,
      h("div", { class: "split runs-split" }, this.runs.node, this.detail.node), this.log.node,
      h("div", { class: "split" }, this.commands.node, this.artifacts.node),
    );
    this.root = h("div", { class: "root" }, this.main);
    const style = document.createElement("style");
    style.textContent = css;
    this.shadow.append(style, this.root);
    el.append(host);
    // A notebook reads single keys as orders to it (dd deletes a cell): what is typed here stays here.
    for (const kind of ["keydown", "keypress", "keyup"]) {
      this.root.addEventListener(kind, (event) => !event.ctrlKey && !event.metaKey && event.stopPropagation());
    }
  }

  start() {
    applyTheme(this.root);
    this.link.start();
    this.timer = setInterval(() => this.tick(), FULL_PAINT_MS);
    this.paint();
  }

  stop() {
    clearInterval(this.timer);
    this.link.stop();
    this.log.stopAll();
    this.detail.stopAll();
  }

  // --- what the link tells -------------------------------------------------------------------------

  changed(names) {
    this.watch.look(this.store);
    for (const name of names) this.schedule(name);
  }

  sent(entry) {
    if (!QUESTIONS.has(entry.verb)) this.lastShown = entry;
    this.schedule("queue");
  }

  command() {
    this.schedule("queue");
  }

  stale(stale) {
    this.root.classList.toggle("is-stale", stale);
    this.staleStrip.paint(this.link, this.store);
    this.schedule("all");
  }

  // --- paint ---------------------------------------------------------------------------------------

  schedule(name) {
    this.dirty.add(name);
    if (this.frame || document.hidden) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.paint();
    });
  }

  paint() {
    const dirty = this.dirty;
    this.dirty = new Set();
    const has = (...names) => dirty.has("all") || names.some((name) => dirty.has(name));
    const store = this.store;
    if (has("runs")) this.chooseDefault();
    if (has("bridge", "cost", "project")) this.header.paint(store);
    if (has("bridge")) this.pairing.paint(store);
    if (has("alerts")) this.alerts.paint(store);
    if (has("next", "runs", "vms")) this.next.paint(store);
    if (has("vms")) this.machines.paint(store);
    if (has("runs", "choice")) this.runs.paint(store, this.chosen);
    if (has("runs", "series", "choice", "stages")) this.detail.paint(store, this.chosen);
    if (has("queue", "artifacts")) this.artifacts.paint(store);
    if (has("stages", "vms", "can")) this.paintForms(store);
    if (has("queue")) this.commands.paint(store);
    if (has("queue")) for (const ask of this.asks) ask instanceof StopAsk ? ask.update(null, store) : ask.update(store);
    if (has("log", "runs", "choice")) this.log.paint();
    else if (dirty.has("rows")) this.log.paintRows(this.log.length());
    this.header.tick(this.link);
  }

  paintForms(store) {
    this.runForm.paint(store);
    this.shell.paint(store);
  }

  // Ages grow by themselves; the theme may have been switched.
  tick() {
    if (document.hidden) return;
    if (applyTheme(this.root)) this.detail.redraw();
    this.header.tick(this.link);
    if (this.link.stale) this.staleStrip.paint(this.link, this.store);
    for (const name of ["vms", "alerts", "cost", "runs", "artifacts"]) this.schedule(name);
  }

  // --- choice --------------------------------------------------------------------------------------

  chooseDefault() {
    if (this.picked && this.store.runs.has(this.chosen)) return;
    const runs = this.store.list("runs").reverse();
    const first = runs.find((run) => ["running", "saving", "resuming"].includes(run.state)) || runs.find((run) => !ENDED.has(run.state)) || runs[0];
    this.chosen = first ? first.id : "";
    this.picked = false;
  }

  choose(id) {
    this.chosen = id;
    this.picked = true;
    this.schedule("choice");
  }

  say(text) {
    setText(this.said, text);
    clearTimeout(this.saying);
    this.saying = setTimeout(() => setText(this.said, ""), 6000);
  }
}

export function start(parts) {
  const app = new App(parts);
  app.start();
  return () => app.stop();
}
