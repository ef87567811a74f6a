// One card per VM. A VM that is gone keeps its last figures, greyed and dated.
const GAUGES = [
  ["gpu", "GPU"],
  ["gpu_memory", "GPU memory"],
  ["ram", "RAM"],
  ["disk", "Disk"],
  ["store", "Store"],
];
const FULL = 0.92;

class Machines {
  constructor(app) {
    this.app = app;
    this.cards = h("div", { class: "cards" });
    this.empty = h("p", { class: "empty" }, "No VM yet. Pair one: the cell to paste is one press away, top right.");
    this.node = h("section", { id: "vms", class: "block", "aria-label": "VMs" }, h("h3", {}, "VMs"), this.empty, this.cards);
  }

  paint(store) {
    const vms = store.list("vms");
    show(this.empty, vms.length === 0);
    show(this.cards, vms.length > 0);
    keyed(this.cards, vms, (vm) => vm.id, (vm) => this.make(vm), (card, vm) => this.update(card, vm, store));
  }

  make(vm) {
    const card = { gauges: {}, id: vm.id };
    card.mark = stateMark(`vm-state-${vm.id}`);
    card.accelerator = h("span", { class: "muted accelerator" });
    card.up = h("span", { class: "num" });
    card.bars = h("div", { class: "gauges" });
    card.foot = h("p", { class: "foot" });
    card.warn = h("p", { class: "foot warn-text", hidden: true });
    card.ask = new Ask(this.app, "release");
    card.release = button("Release…", { class: "plain small", id: `release-${vm.id}` }, () => {
      card.ask.open("release", { vm: vm.id }, card.release, `${vm.id} saves what it has, hands its runs to the next VM, and is then given back.`);
    });
    const head = h("div", { class: "card-head" }, h("strong", { class: "name", title: vm.id }, vm.id), card.mark.node);
    card.node = h(
      "article", { class: "card", id: `vm-${vm.id}`, "aria-label": `VM ${vm.id}` },
      head, h("div", { class: "card-sub" }, card.accelerator, card.up), card.bars, card.warn,
      h("div", { class: "card-foot" }, card.foot, card.release), card.ask.node,
    );
    return card;
  }

  update(card, vm, store) {
    const live = vm.state === "live";
    setState(card.mark, vm.state);
    card.node.classList.toggle("gone", !live);
    setText(card.accelerator, vm.accelerator || "no accelerator");
    setAttr(card.accelerator, "title", vm.accelerator);
    setText(card.up, vm.up_s ? `up ${duration(vm.up_s)}${vm.cap_s ? ` of ${duration(vm.cap_s)}` : ""}` : "");
    setAttr(card.up, "data-tone", vm.cap_s && vm.up_s > vm.cap_s * 0.9 ? "warn" : null);
    const present = GAUGES.filter(([key]) => (vm.gauges || {})[key]);
    keyed(card.bars, present, ([key]) => key, ([key, label]) => this.gauge(key, label), (gauge, [key]) => this.fill(gauge, vm.gauges[key]));
    const seen = vm.seen_at ? store.now() - vm.seen_at : vm.seen_s;
    const facts = [live ? `seen ${ago(seen)}` : `figures of ${ago(seen)}`];
    if (live && vm.kept_alive_by) facts.push(`kept by ${vm.kept_alive_by}`);
    if (vm.note) facts.push(vm.note);
    setText(card.foot, facts.join(" · "));
    setText(card.warn, [vm.tunnel, vm.image_drift].filter(Boolean).join(" · "));
    show(card.warn, Boolean(vm.tunnel || vm.image_drift));
    show(card.release, live || vm.state === "silent");
  }

  gauge(key, label) {
    const gauge = { fill: h("i", {}), value: h("span", { class: "num value" }), bar: null, label };
    gauge.bar = h("span", { class: "bar", role: "meter", "aria-label": label, "aria-valuemin": 0, "aria-valuemax": 100 }, gauge.fill);
    gauge.node = h("div", { class: "gauge", id: `gauge-${key}` }, h("span", { class: "label" }, label), gauge.bar, gauge.value);
    return gauge;
  }

  fill(gauge, told) {
    if (told.free !== undefined) {
      // Most stores tell what is left and not how large they are: no bar to draw.
      setText(gauge.value, `${bytes(told.free)} free`);
      gauge.bar.classList.toggle("none", true);
      return;
    }
    gauge.bar.classList.toggle("none", false);
    const known = told.use !== null && told.use !== undefined ? told.use : told.total ? percent(told.used, told.total) : null;
    const text = told.total ? bytesOf(told.used, told.total) : known === null ? "not known" : `${Math.round(known * 100)} %`;
    const full = told.total && known > FULL;
    setText(gauge.value, full ? `${text} !` : text);
    setAttr(gauge.bar, "aria-valuenow", known === null ? 0 : Math.round(known * 100));
    setAttr(gauge.bar, "aria-valuetext", full ? `${text}, nearly full` : text);
    setAttr(gauge.node, "data-tone", full ? "warn" : null);
    const scale = `scaleX(${(known || 0).toFixed(3)})`;
    if (gauge.fill.style.transform !== scale) gauge.fill.style.transform = scale;
  }
}
