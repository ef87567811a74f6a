// The log: only the rows in sight exist. Follows its end until the reader scrolls up; then only a press or End goes back.
const ROW = 18; // px; panel.css says the same
const ROWS_OVER = 6;
const SIGNS = { error: ["✕", "looks like an error"], warn: ["!", "looks like a warning"], stderr: ["»", "stderr"] }; // also told without colour

class Log {
  constructor(app) {
    this.app = app;
    this.follow = true;
    this.pausedAt = 0; // absolute index of the end when the reader paused
    this.filter = { run: "", level: "", text: "" };
    this.index = null; // absolute indices of the lines that pass the filter; null: all
    this.looked = 0; // absolute index up to which the filter was applied
    this.page = null; // a page of the file, in place of the live end
    this.height = 0;
    this.wanted = 0; // the scroll position that we set last
    this.runs = h("select", { id: "log-run", "aria-label": "Run", onchange: () => this.refilter() });
    this.level = h("select", { id: "log-level", "aria-label": "Level", onchange: () => this.refilter() });
    [["", "all lines"], ["warn", "warnings and errors"], ["error", "errors"]].forEach(([value, word]) => this.level.append(h("option", { value }, word)));
    this.box = h("input", {
      id: "log-search", type: "search", placeholder: "Filter; Enter: whole file", "aria-label": "Filter the log",
      oninput: () => this.refilter(), spellcheck: "false", autocomplete: "off",
    });
    this.first = button("First error", { id: "first-error" }, () => this.firstError());
    this.file = button("Open file", { id: "open-log", class: "plain" }, () => this.openFile());
    this.toggle = button("Following", { id: "follow", "aria-pressed": "true" }, () => this.setFollow(!this.follow));
    this.count = h("span", { class: "muted num", id: "log-count" });
    this.bar = h("div", { class: "log-bar" }, this.runs, this.level, this.box, this.first, this.file, this.toggle);
    this.where = h("span", { class: "num" });
    this.older = button("Older", { id: "log-older", class: "small" }, () => this.turn(-1));
    this.newer = button("Newer", { id: "log-newer", class: "small" }, () => this.turn(1));
    this.again = button("Next match", { id: "log-next", class: "small" }, () => this.searchOn());
    this.back = button("Back to live", { id: "log-live", class: "small primary" }, () => this.leavePage());
    this.pageBar = h("div", { class: "strip page-bar", hidden: true, id: "log-page", role: "status" }, this.where, this.older, this.newer, this.again, this.back);
    this.rows = h("div", { class: "rows" });
    this.sizer = h("div", { class: "sizer" }, this.rows);
    this.view = h("div", { class: "log", id: "log", role: "log", "aria-live": "off", "aria-label": "Log", tabindex: "0" }, this.sizer);
    this.none = h("p", { class: "empty log-none" });
    this.whole = h("div", { class: "whole-line mono", id: "log-line", hidden: true });
    this.node = h("section", { class: "block", "aria-label": "Log" }, h("div", { class: "log-head" }, h("h3", {}, "Log", this.count), this.bar), this.pageBar, h("div", { class: "log-frame" }, this.view, this.none), this.whole);
    this.pool = [];
    this.listen();
  }

  listen() {
    this.resized = new ResizeObserver(([entry]) => {
      this.height = entry.contentRect.height;
      this.app.schedule("log");
    });
    this.resized.observe(this.view);
    this.view.addEventListener("scroll", () => this.scrolled(), { passive: true });
    this.view.addEventListener("keydown", (event) => {
      if (event.key === "End") this.setFollow(true);
      else if (event.key === "/") this.box.focus();
      else if (["Home", "PageUp", "ArrowUp"].includes(event.key)) this.setFollow(false);
      else return;
      if (event.key !== "ArrowUp" && event.key !== "PageUp") event.preventDefault();
      if (event.key === "Home") this.view.scrollTop = 0;
    });
    this.box.addEventListener("keydown", (event) => {
      if (event.key === "Enter") this.searchFile(0);
      if (event.key === "Escape" && this.box.value) {
        this.box.value = "";
        this.refilter();
      }
    });
    // A selection would be pulled from under the pointer: hold still while there is one.
    this.view.addEventListener("pointerup", () => {
      const selection = (this.view.getRootNode().getSelection || document.getSelection).call(this.view.getRootNode().getSelection ? this.view.getRootNode() : document);
      if (selection && !selection.isCollapsed) this.setFollow(false);
    });
    this.rows.addEventListener("click", (event) => this.showWhole(event));
  }

  // --- which lines ---------------------------------------------------------------------------------

  length() {
    if (this.page) return this.page.lines.length;
    const store = this.app.store;
    return this.index ? this.index.length : store.log.length;
  }

  line(at) {
    if (this.page) return this.page.lines[at];
    const store = this.app.store;
    return this.index ? store.log[this.index[at] - store.cut] : store.log[at];
  }

  passes(line) {
    const { run, level, text } = this.filter;
    if (run && (line.runs ? !line.runs.has(run) : line.run && line.run !== run)) return false;
    if (level && line.level !== "error" && (level === "error" || !["warn", "stderr"].includes(line.level))) return false;
    return !text || line.text.toLowerCase().includes(text);
  }

  refilter() {
    this.filter = { run: this.runs.value, level: this.level.value, text: this.box.value.trim().toLowerCase() };
    const any = this.filter.run || this.filter.level || this.filter.text;
    this.index = any ? [] : null;
    this.looked = this.app.store.cut;
    this.page = null;
    this.follow = true;
    this.app.schedule("log");
  }

  catchUp() {
    const store = this.app.store;
    const end = store.cut + store.log.length;
    let gone = 0;
    if (this.index) {
      while (gone < this.index.length && this.index[gone] < store.cut) gone += 1;
      if (gone) this.index.splice(0, gone);
      for (let at = Math.max(this.looked, store.cut); at < end; at += 1) if (this.passes(store.log[at - store.cut])) this.index.push(at);
    } else if (store.cut > this.looked - this.knownLength) {
      gone = Math.max(0, store.cut - (this.looked - this.knownLength));
    }
    this.looked = end;
    this.knownLength = store.log.length;
    return this.page ? 0 : gone;
  }

  // --- paint ---------------------------------------------------------------------------------------

  paint() {
    const gone = this.catchUp();
    this.paintBar();
    const total = this.length();
    const height = total * ROW;
    if (this.sized !== height) this.sizer.style.height = `${(this.sized = height)}px`;
    const end = Math.max(0, height - this.height);
    let top = this.top || 0;
    if (this.follow && !this.page) top = end;
    else if (gone) top = Math.max(0, top - gone * ROW);
    const moves = top !== this.top;
    this.top = top;
    this.paintRows(total);
    if (moves) this.scrollTo(top); // last: it makes the browser lay out all that was written
  }

  scrollTo(top) {
    this.wanted = this.top = top;
    this.view.scrollTop = top;
  }

  paintRows(total) {
    const first = Math.max(0, Math.floor((this.top || 0) / ROW) - ROWS_OVER);
    const shown = Math.max(0, Math.min(total - first, Math.ceil(this.height / ROW) + 2 * ROWS_OVER));
    while (this.pool.length < shown) this.pool.push(this.makeRow());
    const rolled = first - (this.shownFrom || 0);
    this.shownFrom = first;
    if (rolled > 0 && rolled < shown) {
      // Lines that stay in sight stay in their rows; those that went out give theirs to the new ones.
      const free = this.pool.splice(0, rolled);
      this.pool.push(...free);
      this.rows.append(...free.map((row) => row.node));
    }
    this.pool.forEach((row, at) => {
      if (at < shown) this.fillRow(row, this.line(first + at), first + at);
      show(row.node, at < shown);
    });
    const shift = `translateY(${first * ROW}px)`;
    if (this.rows.style.transform !== shift) this.rows.style.transform = shift;
    show(this.none, total === 0);
    this.view.classList.toggle("short", total === 0 && !this.index && !this.page);
    if (total === 0) setText(this.none, this.filter.text || this.filter.run || this.filter.level ? "No line here matches. Enter searches the whole file." : "No line yet. A run's output appears here within a second of being written.");
  }

  makeRow() {
    const row = { time: h("span", { class: "time" }), tag: idParts(), sign: h("span", { class: "sign" }), text: h("span", { class: "text" }) };
    row.tag.node.classList.add("tag");
    row.node = h("div", { class: "row" }, row.time, row.tag.node, row.sign, row.text);
    this.rows.append(row.node);
    return row;
  }

  fillRow(row, line, at) {
    if (!line || (row.line === line && row.mark === this.filter.text && row.at === at)) return;
    row.line = line;
    row.mark = this.filter.text;
    row.at = at;
    setText(row.time, line.t ? clock(line.t) : line.at !== undefined ? count(line.at) : "");
    setId(row.tag, this.filter.run || this.page ? "" : line.run);
    row.tag.node.classList.toggle("none", !row.tag.text);
    setAttr(row.node, "data-level", line.level);
    setAttr(row.node, "data-hit", this.page && this.page.hit === at ? "yes" : null);
    const [sign, word] = SIGNS[line.level] || ["", ""];
    setText(row.sign, sign);
    setAttr(row.sign, "role", word ? "img" : null);
    setAttr(row.sign, "aria-label", word || null);
    setAttr(row.sign, "title", word ? `${word}, by its text: a stage's two streams are one file` : null);
    this.fillText(row.text, line.text, this.page ? this.page.text : this.filter.text);
  }

  fillText(node, text, wanted) {
    if (!wanted) {
      setText(node, text);
      return;
    }
    const parts = [];
    const low = text.toLowerCase();
    let from = 0;
    for (let at = low.indexOf(wanted); at >= 0 && parts.length < 40; at = low.indexOf(wanted, from)) {
      parts.push(document.createTextNode(text.slice(from, at)), h("mark", {}, text.slice(at, at + wanted.length)));
      from = at + wanted.length;
    }
    node.replaceChildren(...parts, document.createTextNode(text.slice(from)));
  }

  paintBar() {
    const total = this.length();
    const behind = this.follow || this.page ? 0 : this.looked - this.pausedAt;
    setText(this.count, this.index ? `${count(total)} of ${count(this.app.store.log.length)}` : lines(total));
    setText(this.toggle.label, this.page ? "File" : this.follow ? "Following" : behind > 0 ? `${count(behind)} new · follow` : "Paused · follow");
    setAttr(this.toggle, "aria-pressed", String(this.follow && !this.page));
    const ids = this.app.store.list("runs").map((run) => run.id).reverse();
    if (this.known !== ids.join("\n")) {
      this.known = ids.join("\n");
      const chosen = this.runs.value;
      this.runs.replaceChildren(h("option", { value: "" }, "all runs"), ...ids.map((id) => h("option", { value: id }, id)));
      this.runs.value = ids.includes(chosen) ? chosen : "";
      if (this.runs.value !== chosen) this.refilter();
    }
    const run = this.fileRun();
    for (const node of [this.first, this.file]) allow(node, Boolean(run), "Choose a run");
  }

  scrolled() {
    const top = this.view.scrollTop;
    // Asked of the box itself: while it grows, what we know of its height is a frame behind, and nobody has scrolled.
    const away = this.follow && Math.abs(top - this.wanted) > 2 && top < this.view.scrollHeight - this.view.clientHeight - 2;
    if (away) this.setFollow(false, true);
    this.top = top;
    this.app.schedule("rows");
  }

  setFollow(on, fromScroll) {
    if (on && this.page) this.leavePage();
    if (this.follow === on) return;
    this.follow = on;
    this.pausedAt = this.looked;
    if (!fromScroll || on) this.app.schedule("log");
    else this.paintBar();
  }

  showWhole(event) {
    const node = event.target.closest(".row");
    const row = this.pool.find((one) => one.node === node);
    const text = row ? row.line.text : "";
    const shown = row && row.text.scrollWidth > 0 && text.length > 90 && this.wholeOf !== row.line;
    this.wholeOf = shown ? row.line : null;
    show(this.whole, Boolean(shown));
    setText(this.whole, shown ? text : "");
  }

  // --- the file ------------------------------------------------------------------------------------

  fileRun() {
    return this.filter.run || this.app.chosen;
  }

  openFile() {
    this.app.link.send("open", { run: this.fileRun(), path: "log" });
  }

  firstError() {
    this.ask({ first_error: true }, "");
  }

  searchFile(from) {
    const text = this.box.value.trim();
    if (text) this.ask({ search: text, from_bytes: from }, text.toLowerCase());
  }

  searchOn() {
    this.ask({ ...this.query, from_bytes: this.next }, this.sought);
  }

  turn(way) {
    this.ask(way < 0 ? { to_bytes: this.page.from } : { from_bytes: this.page.to }, this.sought);
  }

  async ask(query, text) {
    const run = this.fileRun();
    if (!run) return;
    this.query = query;
    this.sought = text;
    show(this.pageBar, true);
    setText(this.where, `Reading the file of ${run}…`);
    const answer = await this.app.link.send("log", { run, ...query }).answer;
    if (this.query !== query) return;
    this.showPage(answer, run, text);
  }

  showPage(answer, run, text) {
    if (!answer.lines || !answer.lines.length) {
      const on = answer.searched_to;
      setText(this.where, answer.text || (answer.state === "refused" ? "This can't be read." : `Nothing found in the file of ${run}.`));
      [this.older, this.newer].forEach((node) => show(node, Boolean(this.page)));
      show(this.again, Boolean(on));
      setText(this.again.label, "Search on");
      this.next = on;
      return;
    }
    this.page = { run, text, lines: answer.lines, from: answer.from_bytes, to: answer.to_bytes, size: answer.size, hit: -1 };
    const found = answer.hit_bytes;
    if (found !== null && found !== undefined) {
      this.page.hit = answer.lines.findIndex((line) => line.at === found);
      const after = this.page.lines[this.page.hit + 1];
      this.next = after ? after.at : this.page.to; // the line after the one that was found
    }
    setText(this.where, `File of ${run}: bytes ${count(this.page.from)} to ${count(this.page.to)} of ${count(this.page.size)}.${answer.text ? ` ${answer.text}` : ""}`);
    show(this.older, this.page.from > 0);
    show(this.newer, this.page.to < this.page.size);
    show(this.again, this.page.hit >= 0);
    setText(this.again.label, "Next match");
    this.follow = false;
    this.pool.forEach((row) => (row.line = null));
    this.sized = this.page.lines.length * ROW;
    this.sizer.style.height = `${this.sized}px`;
    this.scrollTo(Math.max(0, (this.page.hit < 0 ? 0 : this.page.hit) * ROW - this.height / 3));
    this.app.schedule("log");
  }

  leavePage() {
    this.page = null;
    this.query = null;
    show(this.pageBar, false);
    this.pool.forEach((row) => (row.line = null));
    this.follow = true;
    this.app.schedule("log");
  }

  stopAll() {
    this.resized.disconnect();
  }
}
