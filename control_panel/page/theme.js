// Light or dark by what is really behind the panel, looked at again each second: front ends tell nobody when they switch.
function luminance(colour) {
  const parts = colour.match(/[\d.]+/g);
  if (!parts || parts.length < 3) return 1;
  const [red, green, blue] = parts.slice(0, 3).map((part) => {
    const value = Number(part) / (colour.startsWith("color(") ? 1 : 255);
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

function inkOf(node) {
  const style = getComputedStyle(node);
  const get = (name) => style.getPropertyValue(name).trim();
  return {
    accent: get("--accent"), muted: get("--muted"), line: get("--grid"), champion: get("--champion"),
    warn: get("--warn"), bg: get("--bg-solid"), fg: get("--fg"), font: style.fontFamily,
  };
}

// Whether curves have to be drawn anew. Asked before a paint, while nothing has been written.
function applyTheme(root) {
  const theme = luminance(getComputedStyle(root).backgroundColor) < 0.35 ? "dark" : "light";
  setAttr(root, "data-theme", theme);
  const [shadow, ink] = [root.getRootNode(), inkOf(root)];
  const fresh = JSON.stringify(ink) !== JSON.stringify(shadow.ink);
  shadow.ink = ink;
  return fresh;
}

// Desktop notifications: asked for by a press, never on their own; one per event, also with several tabs (same tag).
class Notifier {
  constructor() {
    this.possible = typeof Notification === "function";
  }

  get on() {
    if (!this.possible || Notification.permission !== "granted") return false;
    try {
      return localStorage.getItem("bridgehead.notify") === "on";
    } catch (error) {
      return false; // a frame without storage
    }
  }

  async toggle() {
    if (!this.possible) return false;
    const wanted = !this.on;
    try {
      if (wanted && (await Notification.requestPermission()) !== "granted") return false;
      localStorage.setItem("bridgehead.notify", wanted ? "on" : "off");
    } catch (error) {
      return false;
    }
    return wanted;
  }

  tell(key, title, body) {
    if (!this.on) return;
    try {
      new Notification(title, { body, tag: `bridgehead:${key}` });
    } catch (error) {
      this.possible = false; // some browsers allow it only from a worker
    }
  }
}

// What is worth waking someone for, told once: a run that ended or was lost, and each new alarm.
class Watch {
  constructor(notifier) {
    this.notifier = notifier;
    this.states = null;
    this.alerts = null;
  }

  look(store) {
    const states = new Map([...store.runs.values()].map((run) => [run.id, run.state]));
    const alerts = new Set(store.whole.alerts.map((alert) => alert.key));
    if (this.states) {
      for (const [id, state] of states) {
        const before = this.states.get(id);
        if (before && before !== state && (ENDED.has(state) || state === "lost")) {
          const run = store.runs.get(id);
          this.notifier.tell(`${id}:${run.attempt}:${state}`, `${id} ${stateOf(state)[0]}`, run.next || run.reason || "");
        }
      }
      for (const alert of store.whole.alerts) {
        if (!this.alerts.has(alert.key)) this.notifier.tell(alert.key, alert.text, alert.next || "");
      }
    }
    this.states = states;
    this.alerts = alerts;
  }
}
