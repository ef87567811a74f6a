// The top line, what needs a person, and what to do next.
class Header {
  constructor(app) {
    this.app = app;
    this.project = h("span", { class: "project" });
    this.dot = h("span", { class: "dot" });
    this.live = h("span", { class: "live", id: "live", role: "status" }, this.dot, (this.liveWord = h("span", {})));
    this.age = h("span", { class: "muted num age", "aria-hidden": "true" });
    this.bridge = h("span", { class: "muted bridge", id: "bridge" });
    this.cost = h("span", { class: "cost num", id: "cost" });
    this.bell = button("Notify me", { id: "notify", class: "plain", "aria-pressed": "false" }, () => this.ring(), "bell");
    this.pair = button("Pair a VM", { id: "pair" }, () => app.pairing.open(), "plus");
    const name = h("h2", { class: "brand" }, icon("arch"), h("span", {}, "Bridgehead"));
    this.node = h(
      "header", { class: "top" },
      name, this.project, h("span", { class: "links" }, this.live, this.age, this.bridge), this.cost,
      h("span", { class: "top-buttons" }, this.bell, this.pair),
    );
    show(this.bell, app.notifier.possible);
    this.showBell();
  }

  async ring() {
    const on = await this.app.notifier.toggle();
    if (!on && this.app.notifier.possible && Notification.permission === "denied") {
      this.app.say("This browser does not let the page notify you; its site settings can change that.");
    }
    this.showBell();
  }

  showBell() {
    const on = this.app.notifier.on;
    setAttr(this.bell, "aria-pressed", String(on));
    setText(this.bell.label, on ? "Notifying" : "Notify me");
    setAttr(this.bell, "title", "A desktop notification when a run ends, is lost or stalls");
  }

  paint(store) {
    setText(this.project, store.whole.project);
    const bridge = store.whole.bridge || {};
    const down = bridge.state === "down";
    const tunnel = /^none\b/.test(bridge.tunnel || "") ? "" : bridge.tunnel;
    const words = down ? "bridge down" : bridge.state === "up" ? `bridge up${tunnel ? ` · ${tunnel}` : ""}` : "";
    setText(this.bridge, bridge.trouble ? `${words}: ${bridge.trouble}` : words);
    setAttr(this.bridge, "data-tone", down || bridge.trouble ? "warn" : null);
    setAttr(this.bridge, "title", bridge.url || null);
    this.paintCost(store);
  }

  paintCost(store) {
    const cost = store.whole.cost;
    show(this.cost, Boolean(cost));
    if (!cost) return;
    const unit = cost.unit || "";
    const parts = [cost.balance === null || cost.balance === undefined ? "balance unknown" : `${number(cost.balance, 3)} ${unit}`];
    if (cost.burn_per_h) parts.push(`${number(cost.burn_per_h, 3)}/h`);
    if (cost.finish) parts.push(`to finish ${cost.finish.map((part) => number(part, 2)).join("–")}`);
    if (cost.dry_at) parts.push(`lasts ${duration(cost.dry_at - store.now())}`);
    setText(this.cost, parts.join(" · "));
    setAttr(this.cost, "title", `${cost.spent ? `spent ${number(cost.spent, 3)} ${unit}; ` : ""}as of ${ago(store.now() - cost.as_of)}`);
    const short = cost.finish && cost.balance !== null && cost.balance < cost.finish[1];
    setAttr(this.cost, "data-tone", short ? "warn" : null);
  }

  // Each second: the age of the feed by this page's own clock.
  tick(link) {
    const age_s = (Date.now() - link.lastFeed) / 1000;
    const waiting = this.app.store.seq < 0;
    setText(this.liveWord, link.stale ? "stale" : waiting ? "waiting for the kernel" : "live");
    setAttr(this.live, "data-tone", link.stale ? "warn" : waiting ? "quiet" : "good");
    setText(this.age, waiting ? "" : age_s < 3 ? "" : ago(age_s));
  }
}

class Stale {
  constructor() {
    this.text = h("span", {});
    this.node = h("div", { class: "strip stale", id: "stale", role: "alert", hidden: true }, icon("lost"), this.text);
  }

  paint(link, store) {
    show(this.node, link.stale);
    if (!link.stale) return;
    const since = store.heardAt ? `What you see is from ${clock(store.heardAt / 1000)}. ` : "";
    const text =
      `No word from the notebook's kernel. ${since}Your runs go on without this page. `
      + "If the kernel was restarted, run this cell again, and reload the page if it stays silent or has no cell; bridgehead status in a terminal shows the same.";
    setText(this.text, text);
  }
}

class Alerts {
  constructor() {
    this.list = h("ul", { class: "alerts", id: "alerts", "aria-label": "What needs you" });
    this.node = this.list;
  }

  paint(store) {
    const alerts = [...store.whole.alerts].sort((a, b) => (b.key === "project-file") - (a.key === "project-file") || b.t - a.t); // a mistake there makes others
    show(this.node, alerts.length > 0);
    keyed(this.list, alerts, (alert) => alert.key, () => this.make(), (part, alert) => {
      setAttr(part.node, "data-tone", alert.level === "bad" ? "bad" : "warn");
      setIcon(part.shape, alert.level === "bad" ? "failed" : "lost");
      setText(part.text, alert.text);
      setText(part.age, alert.t ? ago(store.now() - alert.t) : "");
      setText(part.next, alert.next ? `Next: ${alert.next}` : "");
    });
  }

  make() {
    const part = { shape: icon("lost"), text: h("span", {}), age: h("span", { class: "age num" }), next: h("span", { class: "next" }) };
    part.node = h("li", { class: "strip" }, part.shape, h("span", { class: "strip-text" }, part.text, " ", part.next), part.age);
    return part;
  }
}

// Before anything runs: never an empty table, but the next thing to do and the button for it.
class Next {
  constructor(app) {
    this.app = app;
    this.text = h("p", {});
    this.steps = h("ol", { class: "steps", "aria-label": "The way to a finished run" });
    this.button = button("", { id: "next-action", class: "primary" }, () => this.act());
    const words = h("div", {}, h("h3", {}, "What to do next"), this.text, this.steps);
    this.node = h("section", { class: "next-box", id: "next", hidden: true, "aria-label": "What to do next" }, words, this.button);
    this.steps.append(...["Pair a VM", "Run a stage", "Take the bundle"].map((word) => h("li", {}, word)));
  }

  paint(store) {
    const next = store.whole.next || {};
    show(this.node, Boolean(next.text) && this.app.pairing.node.hidden);
    if (!next.text) return;
    setText(this.text, next.text);
    const action = String(next.action || "");
    const verb = action.split(/[ :]/)[0];
    const known = { pair: "Pair a VM", run: `Run ${action.slice(4) || "a stage"}…`, export: "Export…", gate: "Gate…", verify: "See the artifacts" };
    show(this.button, verb in known);
    setText(this.button.label, known[verb] || "");
    this.action = action;
    const finished = store.list("runs").some((run) => run.state === "done");
    const at = finished ? 2 : store.vms.size ? 1 : 0;
    [...this.steps.children].forEach((step, index) => setAttr(step, "aria-current", index === at ? "step" : null));
    [...this.steps.children].forEach((step, index) => setAttr(step, "data-done", index < at ? "yes" : null));
  }

  act() {
    const [verb, ...rest] = this.action.split(/[ :]/);
    if (verb === "pair") this.app.pairing.open();
    else if (verb === "run") this.app.runForm.open(rest.join(" "));
    else if (verb === "verify") this.app.artifacts.node.scrollIntoView({ block: "nearest" });
    else this.app.commandAsk.open(verb, {}, this.button);
  }
}
