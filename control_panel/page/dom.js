// Nodes. Text goes in through textContent alone: nothing in this view reads data as markup.
const SVG = "http://www.w3.org/2000/svg";

function h(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "class") node.className = value;
    else if (name === "id") node.dataset.testid = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children) if (child) node.append(child);
  return node;
}

// Writing what is there already costs a layout; these compare first.
function setText(node, value) {
  const text = value === null || value === undefined ? "" : String(value);
  if (node.textContent !== text) node.textContent = text;
}

function setAttr(node, name, value) {
  if (value === null || value === false || value === undefined) {
    if (node.hasAttribute(name)) node.removeAttribute(name);
  } else {
    const text = value === true ? "" : String(value);
    if (node.getAttribute(name) !== text) node.setAttribute(name, text);
  }
}

function show(node, visible) {
  if (node.hidden === visible) node.hidden = !visible;
}

// Shapes differ, not only colours: state can be told apart in grey.
const ICONS = {
  running: ["M5 3.2v9.6l7.6-4.8z", true],
  done: ["M3 8.6l3.2 3.2L13 4.6", false],
  failed: ["M4 4l8 8M12 4l-8 8", false],
  stopped: ["M4 4h8v8H4z", true],
  lost: ["M8 2.4L14.4 13.4H1.6zM8 6.4v3.2M8 11.3v.6", false],
  waiting: ["M8 2.2a5.8 5.8 0 1 0 0 11.6a5.8 5.8 0 1 0 0-11.6M8 4.8V8l2.4 1.6", false],
  saving: ["M8 2.4v7M5 6.8l3 3l3-3M3 13h10", false],
  resuming: ["M13 8a5 5 0 1 1-1.6-3.7M13 2.4v3h-3", false],
  live: ["M8 4.4a3.6 3.6 0 1 0 0 7.2a3.6 3.6 0 1 0 0-7.2", true],
  silent: ["M8 4.4a3.6 3.6 0 1 0 0 7.2a3.6 3.6 0 1 0 0-7.2", false],
  ended: ["M3.4 8h9.2", false],
  bell: ["M4 11.4V7.4a4 4 0 0 1 8 0v4l1 1.2H3zM6.6 14h2.8", false],
  arch: ["M1.6 12.6h12.8M3 12.6V7.4a5 5 0 0 1 10 0v5.2M6 12.6V8a2 2 0 0 1 4 0v4.6", false],
  copy: ["M5.6 5.6V2.8h7.6v7.6h-2.8M2.8 5.6h7.6v7.6H2.8z", false],
  plus: ["M8 3v10M3 8h10", false],
};

function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 16 16");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS(SVG, "path");
  svg.append(path);
  setIcon(svg, name);
  return svg;
}

function setIcon(svg, name) {
  if (svg.dataset.name === name) return;
  svg.dataset.name = name;
  const [shape, filled] = ICONS[name] || ICONS.waiting;
  svg.firstChild.setAttribute("d", shape);
  svg.classList.toggle("filled", filled);
}

function button(label, attributes, onclick, iconName) {
  const text = h("span", {}, label);
  const node = h("button", { type: "button", ...attributes }, iconName && icon(iconName), text);
  node.label = text;
  node.addEventListener("click", (event) => {
    if (node.getAttribute("aria-disabled") !== "true") onclick(event);
  });
  return node;
}

// A button that can't be used stays in the tab order and says why.
function allow(node, allowed, why) {
  setAttr(node, "aria-disabled", allowed ? null : "true");
  setAttr(node, "title", allowed ? null : why);
}

// One node for each key, in the order of the items; what is there stays there, so focus and scroll survive.
function keyed(parent, items, keyOf, make, update) {
  const nodes = parent.keyedNodes || (parent.keyedNodes = new Map());
  const wanted = new Set(items.map(keyOf));
  for (const [key, part] of nodes) {
    if (!wanted.has(key)) {
      part.node.remove();
      nodes.delete(key);
    }
  }
  let before = null;
  items.forEach((item, index) => {
    const key = keyOf(item);
    let part = nodes.get(key);
    if (!part) nodes.set(key, (part = make(item)));
    update(part, item, index);
    const place = before ? before.nextSibling : parent.firstChild;
    if (place !== part.node) parent.insertBefore(part.node, place);
    before = part.node;
  });
}

// A name that is cut in its middle where it does not fit: what tells two of them apart stands at the end. In the page
// it is whole, for the title, for whoever copies it and for a screen reader.
function idParts() {
  const part = { head: h("span", { class: "id-head" }), tail: h("span", {}), text: "" };
  part.node = h("span", { class: "id" }, part.head, part.tail);
  return part;
}

function setId(part, id) {
  if (part.text === id) return;
  part.text = id;
  const number = /-\d{4,}-[0-9a-f]{6}$/.exec(id); // stage-0003-5f5f5f
  const at = number ? number.index : id.length > 8 ? id.length - 6 : id.length;
  part.head.textContent = id.slice(0, at);
  part.tail.textContent = id.slice(at);
  part.node.style.setProperty("--tail", String(id.length - at));
  setAttr(part.node, "title", id || null);
}

async function copyText(text, root) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch (error) {
    // No clipboard in this frame: the old way, through a selection.
    const area = h("textarea", { class: "away", "aria-hidden": "true" });
    area.value = text;
    root.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}
