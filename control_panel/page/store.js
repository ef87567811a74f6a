// What the kernel's model holds, folded together from a snapshot and the patches after it.
const LINES_KEPT = 20000;
const LINES_CUT = 2000; // cut in blocks: one shift of a big array, not one per line
const WHOLE = ["queue", "artifacts", "cost", "alerts", "bridge", "next", "stages", "can", "project"];

class Store {
  constructor() {
    this.gen = "";
    this.seq = -1;
    this.t = 0;
    this.heardAt = 0; // by this page's own clock, ms
    this.vms = new Map();
    this.runs = new Map();
    this.series = {};
    this.log = [];
    this.cut = 0; // lines cut from the front so far
    this.lastN = 0;
    this.whole = { queue: [], artifacts: [], cost: null, alerts: [], bridge: {}, next: {}, stages: [], can: {}, project: "" };
  }

  // Seconds since 1970 as the kernel has it, going on between patches.
  now() {
    return this.t + (Date.now() - this.heardAt) / 1000;
  }

  list(name) {
    return [...this[name].values()].sort((a, b) => (a.order || 0) - (b.order || 0));
  }

  snapshot(message) {
    const fresh = message.gen !== this.gen;
    this.gen = message.gen;
    this.seq = message.seq;
    this.vms = new Map((message.vms || []).map((vm) => [vm.id, vm]));
    this.runs = new Map((message.runs || []).map((run) => [run.id, run]));
    this.series = message.series || {};
    if (fresh) {
      this.cut += this.log.length;
      this.log = [];
      this.lastN = 0;
    }
    this.addLines(message.log || [], 0);
    for (const name of WHOLE) if (name in message) this.whole[name] = message[name];
    this.touch(message);
    return new Set(["all"]);
  }

  // "same": nothing new; "gap": something is missing; else the names of what changed.
  patch(message) {
    if (message.gen !== this.gen || message.since > this.seq) return "gap";
    this.touch(message);
    if (message.seq <= this.seq) return "same";
    this.seq = message.seq;
    const changed = new Set(WHOLE.filter((name) => name in message));
    for (const name of changed) this.whole[name] = message[name];
    for (const name of ["vms", "runs"]) {
      for (const id of (message.gone && message.gone[name]) || []) this[name].delete(id);
      for (const item of message[name] || []) this[name].set(item.id, { ...this[name].get(item.id), ...item });
      if (message[name] || (message.gone && message.gone[name])) changed.add(name);
    }
    if (this.addCurves(message)) changed.add("series");
    if (this.addLines(message.lines || [], message.drop || 0)) changed.add("log");
    return changed;
  }

  touch(message) {
    this.t = message.t || this.t;
    this.heardAt = Date.now();
  }

  addCurves(message) {
    for (const id of (message.gone && message.gone.runs) || []) delete this.series[id];
    for (const [run, metrics] of Object.entries(message.series || {})) {
      this.series[run] = { ...(this.series[run] || {}), ...metrics };
    }
    for (const [run, metrics] of Object.entries(message.points || {})) {
      const curves = this.series[run] || (this.series[run] = {});
      for (const [metric, points] of Object.entries(metrics)) {
        const curve = curves[metric] || (curves[metric] = []);
        for (const point of points) {
          // A run that went back does that part anew: what lies after the new point goes.
          while (curve.length && curve[curve.length - 1][0] >= point[0]) curve.pop();
          curve.push(point);
        }
      }
    }
    return Boolean(message.series || message.points || (message.gone && message.gone.runs));
  }

  addLines(lines, dropped) {
    const fresh = lines.filter((line) => line.n > this.lastN);
    if (fresh.length === 0 && !dropped) return false;
    const missing = fresh.length && this.lastN ? fresh[0].n - this.lastN - 1 : dropped;
    if (missing > 0) {
      const text = `${count(missing)} lines came too fast to show here. The run's log file has them all.`;
      // Whose they were is not known: they came with these. A log of one run tells of a gap that may be its own.
      const runs = fresh.length ? new Set(fresh.map((line) => line.run)) : null;
      const run = runs && runs.size === 1 ? fresh[0].run : "";
      this.log.push({ n: this.lastN, t: fresh.length ? fresh[0].t : this.t, vm: "", run, runs, level: "note", text });
    }
    for (const line of fresh) this.log.push(line);
    if (fresh.length) this.lastN = fresh[fresh.length - 1].n;
    if (this.log.length > LINES_KEPT + LINES_CUT) {
      const cut = this.log.length - LINES_KEPT;
      this.log.splice(0, cut);
      this.cut += cut;
    }
    return true;
  }
}
