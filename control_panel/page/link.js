// Talk with the kernel: hello and snapshot, acknowledgements, commands that are acted on once, and a clock of its own.
const SEEN_EVERY_MS = 2000;
const STALE_AFTER_MS = 6000; // a heartbeat comes each 2 s
const BUSY_AFTER_MS = 2000;
const QUESTIONS = new Set(["plan", "log", "pair", "fate"]); // no lines of the queue
// Presses whose answer this page still waits for. They outlive a view: after a kernel restart the cell makes a new one.
const UNANSWERED = (globalThis.bridgeheadUnanswered = globalThis.bridgeheadUnanswered || new Map()); // id -> {entry, link}

function mint() {
  if (crypto.randomUUID) return crypto.randomUUID();
  const parts = crypto.getRandomValues(new Uint8Array(16)); // a page that is not on https or loopback has no randomUUID
  return [...parts].map((part) => part.toString(16).padStart(2, "0")).join("");
}

class Link {
  constructor(feed, command, store, listener) {
    this.feed = feed;
    this.command = command;
    this.store = store;
    this.listener = listener; // changed(set), sent(entry), command(entry), stale(bool)
    this.view = mint();
    this.sent = new Map(); // id -> {id, verb, args, state, text, line, at, resolve}
    this.lastFeed = Date.now();
    this.lastHello = 0;
    this.stale = false;
    this.heard = (message) => this.take(message);
    this.seen = () => this.say({ k: "seen", view: this.view, seq: this.store.seq, hidden: document.hidden });
    this.looked = () => (document.hidden ? this.seen() : this.hello(true));
  }

  start() {
    this.feed.on("msg:custom", this.heard);
    this.command.on("msg:custom", this.heard);
    document.addEventListener("visibilitychange", this.looked);
    this.hello(true);
    this.adopt();
    // The kernel answers a comm on the thread that last sent on it. A few words early settle that on the quick one.
    this.pings = [0, 1500, 3000].map((delay) => setTimeout(() => this.say({ k: "ping" }), delay));
    this.timers = [setInterval(this.seen, SEEN_EVERY_MS), setInterval(() => this.check(), 500)];
  }

  stop() {
    this.stopped = true;
    this.say({ k: "bye", view: this.view });
    this.feed.off("msg:custom", this.heard);
    this.command.off("msg:custom", this.heard);
    document.removeEventListener("visibilitychange", this.looked);
    this.pings.forEach(clearTimeout);
    this.timers.forEach(clearInterval);
  }

  say(message) {
    try {
      this.command.send(message);
    } catch (error) {
      // The comm is closed: the clock will say so.
    }
  }

  hello(now) {
    if (!now && Date.now() - this.lastHello < 1000) return;
    this.lastHello = Date.now();
    this.say({ k: "hello", view: this.view, have: { gen: this.store.gen, seq: this.store.seq } });
  }

  take(message) {
    if (!message || typeof message !== "object") return;
    if (message.k === "snap" || message.k === "p") {
      this.lastFeed = Date.now();
      this.freshen();
    }
    if (message.k === "snap") this.listener.changed(this.store.snapshot(message));
    else if (message.k === "p") {
      const changed = this.store.patch(message);
      if (changed === "gap") this.hello(false);
      else if (changed !== "same") this.listener.changed(changed);
    } else if (message.k === "got" || message.k === "ack") this.answered(message);
    else if (message.k === "page") this.paged(message);
  }

  // What an earlier view of this page sent and never heard of: ask what became of it.
  adopt() {
    for (const { entry, link } of UNANSWERED.values()) {
      if (link === this || !(link.stopped || link.stale)) continue;
      this.keep(entry);
      this.listener.sent(entry);
      this.askFate(entry);
    }
  }

  // The kernel may be another one, or the line was cut: it says what the press did, and does nothing for the question.
  askFate(entry) {
    entry.asking = true;
    this.send("fate", { of: entry.id }).answer.then(({ state, text, line }) => {
      entry.asking = false;
      if (UNANSWERED.has(entry.id)) this.answered({ k: "ack", id: entry.id, state, text, line });
    });
  }

  keep(entry) {
    this.sent.set(entry.id, entry);
    if (this.sent.size > 200) this.sent.delete(this.sent.keys().next().value);
    if (!QUESTIONS.has(entry.verb)) UNANSWERED.set(entry.id, { entry, link: this });
    if (UNANSWERED.size > 200) UNANSWERED.delete(UNANSWERED.keys().next().value);
  }

  // The same press again while nobody knows what became of the first: it goes out under the same id, so it acts once.
  again(verb, args) {
    const asked = [...UNANSWERED.values()].find(({ entry }) => entry.asking && entry.verb === verb && JSON.stringify(entry.args) === JSON.stringify(args));
    return asked ? asked.entry : null;
  }

  // Ask for something. The entry's `answer` resolves with the first ack that says more than "arrived".
  send(verb, args) {
    let entry = this.again(verb, args);
    if (!entry) {
      entry = { id: mint(), verb, args, state: "sending", text: "", line: "", at: Date.now(), busy: false };
      entry.answer = new Promise((resolve) => (entry.resolve = resolve));
    }
    this.keep(entry);
    this.listener.sent(entry);
    if (this.stale) {
      // A front end keeps what is sent over a cut line and delivers it late: a Stop of then must not act at a time of its own.
      this.answered({ k: "ack", id: entry.id, state: "refused", text: "not sent: the kernel does not answer. Use bridgehead in a terminal", line: "" });
    } else {
      // What this view shows goes along: the same press in another view of the same state is the same press.
      const seen = this.store.whole.queue.reduce((newest, line) => Math.max(newest, line.n || 0), 0);
      this.say({ k: "cmd", id: entry.id, view: this.view, seen, verb, args });
    }
    return entry;
  }

  answered(message) {
    const entry = this.sent.get(message.id);
    if (!entry) return; // another view's
    entry.busy = false;
    if (message.k === "got") {
      if (entry.state === "sending") entry.state = "arrived";
    } else {
      UNANSWERED.delete(entry.id);
      Object.assign(entry, message, { k: undefined });
      entry.resolve(entry);
    }
    this.listener.command(entry);
  }

  paged(message) {
    const entry = this.sent.get(message.id);
    if (!entry) return;
    entry.state = "done";
    entry.resolve(message);
  }

  check() {
    if (!this.stale && Date.now() - this.lastFeed > STALE_AFTER_MS) {
      this.stale = true;
      this.listener.stale(true);
    }
    if (this.stale) this.hello(false);
    for (const entry of this.sent.values()) {
      if (entry.state === "sending" && !entry.busy && Date.now() - entry.at > BUSY_AFTER_MS) {
        entry.busy = true;
        this.listener.command(entry);
      }
    }
  }

  freshen() {
    if (!this.stale) return;
    this.stale = false;
    this.listener.stale(false);
    // What was on its way when the line was cut may have been lost with it.
    for (const entry of this.sent.values()) if (UNANSWERED.has(entry.id)) this.askFate(entry);
  }
}
