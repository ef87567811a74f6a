// A front end of forty lines: two widget models, and a kernel that answers only what a test scripted.
class FakeModel {
  constructor(traits) {
    this.traits = traits;
    this.handlers = new Set();
    this.sent = [];
  }
  get(name) {
    return this.traits[name];
  }
  on(name, handler) {
    if (name === "msg:custom") this.handlers.add(handler);
  }
  off(name, handler) {
    this.handlers.delete(handler);
  }
  send(content) {
    this.sent.push(content);
    queueMicrotask(() => kernel.take(content));
  }
  deliver(message) {
    if (message.seq !== undefined) kernel.at = { gen: message.gen, seq: message.seq };
    for (const handler of [...this.handlers]) handler(structuredClone(message));
  }
}

const kernel = (window.kernel = {
  alive: true,
  at: {}, // gen and seq of the last that was told
  code: await (await fetch("code.json")).json(),
  command: new FakeModel({}),
  feed: new FakeModel({ command_id: "command" }),
  snapshot: null, // what a hello is answered with
  plan: { state: "done", line: "run:pretrain epochs=2", text: "1 VM can take it; about 2 h" },
  take(content) {
    if (!this.alive) return;
    if (content.k === "code") this.command.deliver({ k: "code", ...this.code });
    if (content.k === "hello" && this.snapshot) this.greet(content.have);
    if (content.k !== "cmd") return;
    this.command.deliver({ k: "got", id: content.id });
    if (content.verb === "plan") this.feed.deliver({ k: "ack", id: content.id, ...this.plan });
  },
  greet(have) {
    if (have.gen === this.at.gen && have.seq === this.at.seq) this.beat();
    else this.feed.deliver({ k: "snap", ...this.snapshot });
  },
  beat() {
    if (this.alive && this.at.gen) this.feed.deliver({ k: "p", ...this.at, since: this.at.seq, t: this.snapshot.t });
  },
  commands(verb) {
    return this.command.sent.filter((one) => one.k === "cmd" && (!verb || one.verb === verb));
  },
});
kernel.feed.widget_manager = { get_model: async () => kernel.command };

setInterval(() => kernel.beat(), 1000);

window.show = async (snapshot) => {
  kernel.snapshot = snapshot;
  const { default: widget } = await import("./loader.js");
  window.closePanel = widget.render({ model: kernel.feed, el: document.getElementById("cell") });
};
window.ready = true;
