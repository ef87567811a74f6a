// Words for figures.
function number(value, digits = 4) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (value !== 0 && (Math.abs(value) < 0.001 || Math.abs(value) >= 1e6)) return value.toExponential(2);
  return String(Number(value.toPrecision(digits)));
}

function count(value) {
  return Math.round(value || 0).toString().replace(/\B(?=(\d{3})+$)/g, ",");
}

function lines(n, word = "line") {
  return `${count(n)} ${word}${n === 1 ? "" : "s"}`;
}

function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (value >= 1024 && at < units.length - 1) {
    value /= 1024;
    at += 1;
  }
  return `${at === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${units[at]}`;
}

// 31.2/40 GiB: one unit for both.
function bytesOf(used, total) {
  if (!total) return bytes(used);
  const power = Math.max(0, Math.min(4, Math.floor(Math.log(total) / Math.log(1024))));
  const scale = 1024 ** power;
  const part = (value) => (value / scale >= 100 ? Math.round(value / scale) : (value / scale).toFixed(1).replace(/\.0$/, ""));
  return `${part(used || 0)}/${part(total)} ${["B", "KiB", "MiB", "GiB", "TiB"][power]}`;
}

function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min`;
  const hours = Math.floor(whole / 3600);
  if (hours >= 48) return `${Math.floor(hours / 24)}d${hours % 24}h`;
  return `${hours}h${String(Math.floor((whole % 3600) / 60)).padStart(2, "0")}m`;
}

function ago(seconds) {
  return seconds < 1.5 ? "just now" : `${duration(seconds)} ago`;
}

function span(range) {
  if (!range) return "–";
  const [low, high] = range.map(duration);
  return low === high ? low : `${low} to ${high}`;
}

function clock(t) {
  if (!t) return "";
  const at = new Date(t * 1000);
  return [at.getHours(), at.getMinutes(), at.getSeconds()].map((part) => String(part).padStart(2, "0")).join(":");
}

function dayClock(t) {
  if (!t) return "";
  const at = new Date(t * 1000);
  const today = new Date(Date.now());
  const day = at.toDateString() === today.toDateString() ? "" : `${at.getDate()}.${at.getMonth() + 1}. `;
  return day + clock(t).slice(0, 5);
}

function percent(part, total) {
  return total ? Math.max(0, Math.min(1, part / total)) : 0;
}

// State -> [word, icon, tone]. The word is always written out; tone is only a colour.
const STATES = {
  queued: ["queued", "waiting", "quiet"],
  sent: ["sent", "waiting", "quiet"],
  taken: ["taken", "waiting", "quiet"],
  waiting: ["waiting", "waiting", "quiet"],
  starting: ["starting", "waiting", "busy"],
  started: ["started", "running", "busy"],
  running: ["running", "running", "busy"],
  saving: ["saving", "saving", "busy"],
  resuming: ["resuming", "resuming", "busy"],
  stopping: ["stopping", "stopped", "warn"],
  done: ["done", "done", "good"],
  finished: ["done", "done", "good"],
  failed: ["failed", "failed", "bad"],
  rejected: ["rejected", "failed", "bad"],
  refused: ["refused", "failed", "bad"],
  stopped: ["stopped", "stopped", "quiet"],
  lost: ["lost", "lost", "warn"],
  unknown: ["outcome unknown", "lost", "warn"],
  live: ["live", "live", "good"],
  silent: ["silent", "silent", "warn"],
  ended: ["ended", "ended", "quiet"],
  released: ["released", "ended", "quiet"],
};
const ENDED = new Set(["done", "finished", "failed", "rejected", "stopped"]);

function stateOf(state) {
  return STATES[state] || [String(state).slice(0, 40), "waiting", "quiet"];
}

function stateMark(testId) {
  const shape = icon("waiting");
  const word = h("span", {});
  return { node: h("span", { class: "state", id: testId }, shape, word), shape, word };
}

function setState(mark, state) {
  const [word, shape, tone] = stateOf(state);
  setText(mark.word, word);
  setIcon(mark.shape, shape);
  setAttr(mark.node, "data-tone", tone);
  setAttr(mark.node, "data-state", state);
}
