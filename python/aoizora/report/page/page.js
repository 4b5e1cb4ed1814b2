"use strict";
// Draws the plan in #plan. Every text goes in as a text node: what a plan says is never markup.
(() => {
  const plan = JSON.parse(document.getElementById("plan").textContent);
  const SVG = "http://www.w3.org/2000/svg";
  const AXES = "xyzwvu";
  const byId = (id) => document.getElementById(id);
  const unit = plan.unit;  // what is priced: a block, or a whole program's step

  const fill = (element, attributes, children) => {
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
    }
    for (const child of children.flat()) {
      if (child !== null && child !== undefined) element.append(child);
    }
    return element;
  };
  const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
  const s = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

  const digits = (value, places) => value.toLocaleString("en", { maximumFractionDigits: places, minimumFractionDigits: places });
  const ms = (seconds) => {
    const value = seconds * 1e3;
    return digits(value, value >= 100 ? 1 : value >= 1 ? 2 : value >= 0.01 || value === 0 ? 3 : 5) + " ms";
  };
  const bytes = (value) => {
    for (const [unit, size] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) {
      if (value >= size) return digits(value / size, value / size >= 100 ? 0 : value / size >= 10 ? 1 : 2) + " " + unit;
    }
    return digits(value, 0) + " B";
  };
  const gib = (value) => digits(value / 2 ** 30, 2) + " GiB";
  const percent = (part) => digits(100 * part, 1) + " %";
  const times = (count, what) => (count === 1 ? what : digits(count, 0) + " × " + what);
  const maximum = (values) => values.reduce((a, b) => Math.max(a, b), 0);

  // Tooltip, by pointer or by focus; what has the focus is said as well.
  const tip = byId("tip");
  const showTip = (text, x, y) => {
    tip.textContent = text;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = Math.max(6, Math.min(x + 14, innerWidth - box.width - 6)) + "px";
    tip.style.top = (y + 18 + box.height > innerHeight ? Math.max(6, y - box.height - 12) : y + 18) + "px";
  };
  const hideTip = () => { tip.hidden = true; };
  const tells = (element, text) => {
    element.addEventListener("pointermove", (event) => showTip(text(), event.clientX, event.clientY));
    element.addEventListener("pointerleave", hideTip);
    element.addEventListener("focus", () => {
      if (!element.matches(":focus-visible")) return;
      const box = element.getBoundingClientRect();
      showTip(text(), box.left + box.width / 2, box.top + box.height / 2);
    });
    element.addEventListener("blur", hideTip);
  };
  const say = (text) => { byId("said").textContent = text; };
  addEventListener("keydown", (event) => { if (event.key === "Escape") hideTip(); });
  addEventListener("scroll", hideTip, { passive: true });

  // One stop of the tab key for many elements; the arrow keys go among them.
  const roving = (elements, next) => {
    elements.forEach((element, i) => {
      element.setAttribute("tabindex", i === 0 ? "0" : "-1");
      element.addEventListener("keydown", (event) => {
        const to = next(i, event.key);
        if (to === null || to === undefined || !elements[to]) return;
        event.preventDefault();
        elements.forEach((other) => other.setAttribute("tabindex", "-1"));
        elements[to].setAttribute("tabindex", "0");
        elements[to].focus();
        elements[to].scrollIntoView({ block: "nearest", inline: "nearest" });
      });
    });
  };
  const inLine = (count) => (i, key) => {
    const to = { ArrowRight: i + 1, ArrowDown: i + 1, ArrowLeft: i - 1, ArrowUp: i - 1, Home: 0, End: count - 1 }[key];
    return to >= 0 && to < count ? to : null;
  };

  const section = (id, title, ...children) => h("section", { id, "aria-labelledby": id + "-title" }, h("h2", { id: id + "-title" }, title), ...children);

  // ---- the slice ----
  const { dims, wraps, cores } = plan.slice;
  const chips = dims.reduce((a, b) => a * b, 1);
  const coordinates = (chip) => {
    const at = [];
    for (let d = dims.length - 1; d >= 0; d--) { at.unshift(chip % dims[d]); chip = Math.floor(chip / dims[d]); }
    return at;
  };
  const width = dims[0], height = dims[1] || 1;
  const planes = dims.slice(2).reduce((a, b) => a * b, 1);
  const planeColumns = Math.ceil(Math.sqrt(planes));
  const PITCH = 104, CHIP = 58, ROOM = wraps.some(Boolean) || dims.length > 2 ? 64 : 34;
  const planeWidth = (width - 1) * PITCH + CHIP + 2 * ROOM, planeHeight = (height - 1) * PITCH + CHIP + 2 * ROOM;
  const centre = (chip) => {
    const at = coordinates(chip);
    const plane = at.slice(2).reduce((number, c, i) => number * dims[i + 2] + c, 0);
    return [
      (plane % planeColumns) * planeWidth + ROOM + CHIP / 2 + at[0] * PITCH,
      Math.floor(plane / planeColumns) * planeHeight + ROOM + CHIP / 2 + (at[1] || 0) * PITCH,
    ];
  };
  const mapWidth = planeColumns * planeWidth, mapHeight = Math.ceil(planes / planeColumns) * planeHeight;
  const ranksOf = Array.from({ length: chips }, () => []);
  plan.places.forEach(([chip, core], rank) => { ranksOf[chip][core] = rank; });
  const axes = plan.mesh.filter(([, size]) => size > 1);
  const meshPlace = (rank) => {
    const at = {};
    for (let i = plan.mesh.length - 1; i >= 0; i--) { at[plan.mesh[i][0]] = rank % plan.mesh[i][1]; rank = Math.floor(rank / plan.mesh[i][1]); }
    return axes.map(([name]) => [name, at[name]]);
  };
  const placeText = (chip) => coordinates(chip).map((c, d) => AXES[d] + c).join(" ");
  const linkText = ([from, to, dimension, a, b]) => (dimension < 0 ? `chip ${placeText(from)}, core ${a} to core ${b}` : `${placeText(from)} to ${placeText(to)}`);

  // Where each directed link is drawn: a straight arrow between neighbours, a stub at both ends of one that wraps
  // round, a diagonal stub for a third dimension and more.
  const HALF = CHIP / 2, ASIDE = 9;
  const geometry = ([from, to, dimension, a, b]) => {
    const [x, y] = centre(from), [u, v] = centre(to);
    if (dimension < 0) {
      if (Math.abs(a - b) !== 1) return [];
      const part = CHIP / cores, edge = x - HALF + part * Math.max(a, b), up = a < b ? -14 : 14;
      return [[edge - (a < b ? 7 : -7), y + up, edge + (a < b ? 7 : -7), y + up]];
    }
    if (dimension > 1) {
      const up = coordinates(to)[dimension] === (coordinates(from)[dimension] + 1) % dims[dimension] ? 1 : -1;
      const sx = dimension === 2 ? up : -up, sy = -up, shift = (dimension - 2) >> 1 ? 10 : 0;
      return [[x + sx * HALF, y + sy * (HALF - shift), x + sx * (HALF + 18), y + sy * (HALF + 18 - shift)]];
    }
    const dx = Math.sign(u - x), dy = Math.sign(v - y);
    const away = Math.abs(u - x) + Math.abs(v - y) > PITCH + 1;  // round the end of the dimension
    const [ex, ey] = away ? [-dx, -dy] : [dx, dy];
    const ox = -ey * ASIDE, oy = ex * ASIDE;
    const out = [x + ex * HALF + ox, y + ey * HALF + oy];
    if (!away) return [[...out, u - dx * HALF + ox, v - dy * HALF + oy]];
    const far = ROOM * 0.62;
    return [[...out, out[0] + ex * far, out[1] + ey * far], [u - ex * (HALF + far) + ox, v - ey * (HALF + far) + oy, u - ex * HALF + ox, v - ey * HALF + oy]];
  };
  const COLOURS = ["--load0", "--load1", "--load2", "--load3", "--load4"];
  const mixed = (part) => {
    const at = part * (COLOURS.length - 1), low = Math.min(COLOURS.length - 2, Math.floor(at));
    return `color-mix(in srgb, var(${COLOURS[low + 1]}) ${Math.round(100 * (at - low))}%, var(${COLOURS[low]}))`;
  };
  const shaft = (part) => 2.5 + 6.5 * part;
  const arrow = (x, y, u, v, thick) => {
    const length = Math.hypot(u - x, v - y) || 1, ux = (u - x) / length, uy = (v - y) / length;
    const head = Math.min(length * 0.6, 6 + thick * 1.1), wide = Math.min(9, 3.2 + thick * 0.75);
    const bx = u - ux * head, by = v - uy * head;
    return { end: [bx, by], head: `M${u} ${v}L${bx - uy * wide} ${by + ux * wide}L${bx + uy * wide} ${by - ux * wide}Z` };
  };

  // A picture: what is loaded, how much.
  const loadsOf = (pattern, factor) => {
    const loads = new Map();
    for (const [each, members] of plan.patterns[pattern]) for (const link of members) loads.set(link, each * factor);
    return loads;
  };
  const pictures = [];
  if (plan.links) {
    const whole = new Map();
    plan.collectives.forEach((c, number) => {
      const loads = loadsOf(c.pattern, c.bytes * c.runs);
      for (const [link, size] of loads) whole.set(link, (whole.get(link) || 0) + size);
      pictures.push({ number, loads, title: times(c.runs, c.kind), bytes: c.bytes, collective: c });
    });
    pictures.unshift({ number: -1, loads: whole, title: `The whole ${unit}` });
    for (const picture of pictures) {
      picture.most = maximum(picture.loads.values ? [...picture.loads.values()] : []);
      picture.total = [...picture.loads.values()].reduce((a, b) => a + b, 0);
    }
  }
  const rate = plan.ici_bytes_per_second;
  const linkTip = (picture, number) => {
    const load = picture.loads.get(number) || 0;
    const lines = [linkText(plan.links[number]), load ? `${bytes(load)} a ${unit}: ${ms(load / rate)} of the link at ${digits(rate / 1e9, 0)} GB/s` : "not used"];
    if (picture.number < 0 && load) {
      const parts = pictures.slice(1).map((p) => [p.loads.get(number) || 0, p.title]).filter(([size]) => size > 0).sort((a, b) => b[0] - a[0]);
      for (const [size, title] of parts.slice(0, 6)) lines.push(`${bytes(size)}  ${title}`);
      if (parts.length > 6) lines.push(`and ${parts.length - 6} more`);
    }
    return lines.join("\n");
  };
  const pictureText = (picture) => {
    const c = picture.collective;
    if (!c) return `${bytes(picture.most)} on the busiest link, ${picture.loads.size} of ${plan.links.length} links used`;
    return `${bytes(c.bytes)} a group, ${ms(c.seconds)} alone, ${ms(c.exposed_seconds)} not hidden; ${bytes(picture.most)} on the busiest link`;
  };

  let chosen = pictures[0];
  const whenChosen = [];
  const choose = (picture, speak) => {
    chosen = picture;
    for (const told of whenChosen) told(picture);
    if (speak) say(`${picture.title}: ${pictureText(picture)}`);
  };

  const thumbnail = (picture) => {
    const pad = 26, box = [ROOM - pad, ROOM - pad, mapWidth - 2 * (ROOM - pad), mapHeight - 2 * (ROOM - pad)];
    const svg = s("svg", { viewBox: box.join(" "), "aria-hidden": "true", preserveAspectRatio: "xMidYMid meet" });
    const levels = new Map();
    const thin = Math.max(mapWidth, mapHeight) / 520;
    plan.links.forEach((link, number) => {
      const load = picture.loads.get(number) || 0;
      const level = load && picture.most ? Math.ceil(12 * load / picture.most) : 0;
      const line = geometry(link).map(([x, y, u, v]) => `M${Math.round(x)} ${Math.round(y)}L${Math.round(u)} ${Math.round(v)}`).join("");
      levels.set(level, (levels.get(level) || "") + line);
    });
    for (const [level, d] of [...levels].sort((a, b) => a[0] - b[0])) {
      svg.append(s("path", { d, fill: "none", style: `stroke:${level ? mixed(level / 12) : "var(--idle)"}`, "stroke-width": level ? Math.max(9, 7 * thin) : 2 * thin }));
    }
    let boxes = "";
    for (let chip = 0; chip < chips; chip++) { const [x, y] = centre(chip); boxes += `M${x - HALF} ${y - HALF}h${CHIP}v${CHIP}h${-CHIP}Z`; }
    svg.append(s("path", { d: boxes, style: "fill:var(--chip);stroke:var(--chip-line)", "stroke-width": 3 * thin }));
    return svg;
  };

  const largeMap = () => {
    const large = chips > 64;
    const svg = s("svg", { viewBox: `0 0 ${mapWidth} ${mapHeight}`, class: large ? "map large" : "map", role: "group", "aria-label": `Slice ${plan.slice.name}: ${chips} chips, ${plan.links.length} directed links. Arrow keys go from chip to chip.` });
    svg.style.width = large ? `max(100%, ${Math.round(mapWidth * 0.5)}px)` : `min(100%, ${Math.round(mapWidth * 1.05)}px)`;
    const linkLayer = s("g", {});
    const drawn = plan.links.map((link, number) => {
      const group = s("g", { class: "link", "data-link": number });
      const pieces = geometry(link).map((ends) => ({ ends, reach: s("path", { class: "reach", d: `M${ends[0]} ${ends[1]}L${ends[2]} ${ends[3]}` }), line: s("path", { class: "shaft" }), head: s("path", { class: "head" }) }));
      for (const piece of pieces) group.append(piece.reach, piece.line, piece.head);
      tells(group, () => linkTip(chosen, number));
      linkLayer.append(group);
      return { group, pieces };
    });
    const paint = (picture) => drawn.forEach(({ group, pieces }, number) => {
      const load = picture.loads.get(number) || 0, part = picture.most ? load / picture.most : 0;
      group.style.color = load ? mixed(part) : "var(--idle)";
      group.dataset.bytes = load;
      for (const { ends: [x, y, u, v], line, head } of pieces) {
        const thick = load ? shaft(part) : 1.2, { end, head: d } = arrow(x, y, u, v, thick);
        line.setAttribute("d", `M${x} ${y}L${end[0]} ${end[1]}`);
        line.setAttribute("stroke-width", thick);
        line.setAttribute("stroke-dasharray", load ? "none" : "3 4");
        head.setAttribute("d", d);
      }
    });
    const outgoing = Array.from({ length: chips }, () => []);
    plan.links.forEach((link, number) => outgoing[link[0]].push(number));
    const chipText = (chip) => {
      const lines = [`chip ${placeText(chip)}`];
      ranksOf[chip].forEach((rank, core) => lines.push(`rank ${rank}${cores > 1 ? ` on core ${core}` : ""}${axes.length ? ": " + meshPlace(rank).map((p) => p.join(" ")).join(", ") : ""}`));
      for (const number of outgoing[chip]) {
        const load = chosen.loads.get(number) || 0;
        if (load) lines.push(`sends ${bytes(load)} ${plan.links[number][2] < 0 ? "between cores" : "to " + placeText(plan.links[number][1])}`);
      }
      return lines.join("\n");
    };
    const numberSize = large ? 26 : 20, smallSize = 12;
    const boxes = [];
    for (let chip = 0; chip < chips; chip++) {
      const [x, y] = centre(chip);
      const group = s("g", { class: "chip", role: "img", "data-chip": chip });
      for (let core = 0; core < cores; core++) {
        const part = CHIP / cores, left = x - HALF + core * part, rank = ranksOf[chip][core];
        group.append(s("rect", { x: left, y: y - HALF, width: part, height: CHIP, rx: cores > 1 ? 2 : 8 }));
        if (rank === undefined) continue;
        const place = meshPlace(rank).map(([name, at]) => name[0] + at).join(" ");
        const withPlace = !large && cores === 1 && place && place.length <= 10;
        group.append(s("text", { x: left + part / 2, y: y + (withPlace ? 3 : numberSize * 0.36), "font-size": cores > 2 ? 11 : numberSize }, String(rank)));
        if (withPlace) group.append(s("text", { class: "at", x: left + part / 2, y: y + 20, "font-size": smallSize - (place.length > 8 ? 2 : 0) }, place));
      }
      tells(group, () => chipText(chip));
      group.addEventListener("focus", () => group.setAttribute("aria-label", chipText(chip).replaceAll("\n", "; ")));
      group.setAttribute("aria-label", `chip ${placeText(chip)}, rank ${ranksOf[chip].join(", ")}`);
      boxes.push(group);
    }
    const numberOf = (at) => at.reduce((number, c, d) => number * dims[d] + c, 0);
    roving(boxes, (chip, key) => {
      const at = coordinates(chip), [d, step] = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 1], ArrowUp: [1, -1], PageDown: [2, 1], PageUp: [2, -1] }[key] || [];
      if (d === undefined || d >= dims.length) return null;
      at[d] += step;
      return at[d] >= 0 && at[d] < dims[d] ? numberOf(at) : null;
    });
    svg.append(linkLayer, ...boxes, s("text", { class: "axis", x: ROOM + CHIP + 4, y: 18, "font-size": large ? 26 : 15 }, "x →"));
    if (dims.length > 1) svg.append(s("text", { class: "axis", x: large ? 0 : 4, y: ROOM + (large ? -8 : 14), "font-size": large ? 26 : 15 }, "y ↓"));
    whenChosen.push(paint);
    return svg;
  };

  const linkTable = () => {
    const details = h("details", {}, h("summary", {}, "The same as a table"));
    const body = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Bytes on each link" });
    const draw = (picture) => {
      if (!details.open) return;
      const rows = [...picture.loads].filter(([, load]) => load > 0).sort((a, b) => b[1] - a[1] || a[0] - b[0]);
      body.replaceChildren(h("table", {}, h("caption", {}, `${picture.title}: links that carry something, the busiest first`),
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "link"), h("th", { scope: "col" }, `bytes a ${unit}`), h("th", { scope: "col" }, "of the link's time"))),
        h("tbody", {}, rows.map(([link, load]) => h("tr", {}, h("td", {}, linkText(plan.links[link])), h("td", {}, bytes(load)), h("td", {}, ms(load / rate)))))));
    };
    details.append(body);
    details.addEventListener("toggle", () => draw(chosen));
    whenChosen.push(draw);
    return details;
  };

  const sliceSection = () => {
    if (!plan.links) return section("slice", "Slice and links", h("p", {}, plan.missing));
    const title = h("h3", { id: "map-title" }), under = h("p", { class: "quiet", id: "map-text" });
    const least = h("span", {}), most = h("span", {});
    whenChosen.push((picture) => {
      title.textContent = picture.title;
      under.textContent = pictureText(picture);
      least.textContent = "0";
      most.textContent = `${bytes(picture.most)} (${ms(picture.most / rate)} of a link)`;
    });
    const buttons = pictures.map((picture) => {
      const c = picture.collective;
      const button = h("button", { type: "button", "aria-pressed": "false", "data-picture": picture.number }, thumbnail(picture), h("b", {}, picture.title),
        h("span", {}, c ? `${bytes(c.bytes)} · ${ms(c.seconds)}` : `${bytes(picture.total)} over all links`), c ? h("span", { class: "quiet" }, `${ms(c.exposed_seconds)} not hidden`) : null);
      if (c) tells(button, () => c.name);
      button.addEventListener("click", () => choose(picture, true));
      return button;
    });
    whenChosen.push((picture) => buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(pictures[i] === picture))));
    const mesh = axes.map(([name, size]) => `${name} ${size}`).join(" × ");
    return section("slice", "Slice and links",
      h("p", {}, `${plan.slice.name}: ${dims.join(" × ")} chips${cores > 1 ? ` of ${cores} cores` : ""}` + (wraps.some(Boolean) ? `, wrapping along ${AXES.split("").filter((_, d) => wraps[d]).join(" and ")}` : ", no wrap") +
        `. Each chip shows its logical rank${axes.length ? ` in the mesh ${mesh}` : ""}. An arrow is one direction of a link: the more bytes of one ${unit} it carries, the darker (in dark mode the brighter) and wider; dashed ones are idle.`),
      h("div", { class: chips > 64 ? "map-and-list one" : "map-and-list" },
        h("div", { class: "box" }, title, under, h("div", { class: "scroll" }, largeMap()), h("div", { class: "legend" }, least, h("span", { class: "ramp", role: "img", "aria-label": "colour scale" }), most), linkTable()),
        h("div", {}, h("h3", {}, `Pictures: the ${unit} and its ${plan.collectives.length} collectives`), h("div", { class: "gallery", role: "group", "aria-label": "Pictures" }, buttons))));
  };

  // ---- one block in time ----
  const KIND = { "all-gather": ["--gather", "all-gather", "AG"], "reduce-scatter": ["--scatter", "reduce-scatter", "RS"], "all-reduce": ["--reduce", "all-reduce", "AR"], "all-to-all": ["--exchange", "all-to-all", "A2A"], "ragged-all-to-all": ["--exchange", "ragged all-to-all", "RA2A"], "collective-permute": ["--permute", "permute", "P"], "collective-broadcast": ["--permute", "broadcast", "B"] };
  const CORE = { matmul: ["--matmul", "matrix products", "M"], attention: ["--attention", "attention kernel", "A"], relayout: ["--relayout", "relayout copies", "R"], other: ["--other", "other compute", "O"], wait: ["--wait", "waits for a collective", "wait"], "copy wait": ["--wait", "waits for a copy", "copy"], trips: ["--other", "further trips of a loop"] };
  const look = (kind) => CORE[kind] || KIND[kind] || ["--other", kind];

  const timelineSection = () => {
    if (!plan.lanes) return section("timeline", `One ${unit} in time`, h("p", {}, plan.missing));
    const ROW = 30, GAP = 14, TOP = 24, whole = plan.block_seconds;
    const at = (seconds) => (100 * seconds / whole).toFixed(4) + "%";
    const slots = [], rows = [], labels = [];
    const svg = s("svg", { role: "group", "aria-label": `Timeline of one ${unit}, ${ms(whole)}. Arrow keys go from slot to slot.` });
    const names = h("div", { class: "names", "aria-hidden": "true" }, h("div", { style: `height:${TOP}px` }));
    const grid = s("g", { class: "grid", "aria-hidden": "true" });
    svg.append(grid);
    let y = TOP;
    const used = new Set();
    for (const lane of plan.lanes) {
      names.append(h("div", { style: `height:${lane.rows.length * ROW}px;margin-bottom:${GAP}px` }, lane.name));
      for (const row of lane.rows) {
        const inRow = [];
        for (const [kind, begin, end, c] of row) {
          const [colour, text, letters] = look(kind);
          used.add(kind);
          const slot = s("svg", { x: at(begin), y, width: at(end - begin), height: ROW - 2, overflow: "hidden", class: "slot " + kind.replaceAll(" ", "-"), role: "img", "data-collective": c, "data-begin": begin, "data-end": end, "data-kind": kind });
          const label = s("text", { x: 5, y: ROW / 2 + 3 });
          const rect = s("rect", { width: "100%", height: "100%", rx: 2, style: `fill:var(${colour})` });
          slot.append(rect, label);
          labels.push({ slot, rect, label, texts: [text, letters || ""], part: (end - begin) / whole });
          const collective = c === null ? null : plan.collectives[c];
          const told = () => {
            const lines = [`${lane.name}: ${text}`, `${ms(end - begin)}, from ${ms(begin)} to ${ms(end)}`];
            if (collective) lines.push(`${collective.kind} of ${bytes(collective.bytes)}`, `${digits(collective.effective_bytes_per_second / 1e9, 1)} GB/s effective`, collective.name);
            return lines.join("\n");
          };
          slot.setAttribute("aria-label", told().split("\n").slice(0, 3).join("; "));
          tells(slot, told);
          if (collective && plan.links) {
            const pick = () => choose(pictures[c + 1], true);
            slot.addEventListener("click", pick);
            slot.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); pick(); } });
          }
          svg.append(slot);
          inRow.push(slots.length);
          slots.push({ slot, row: rows.length, begin, end, c });
        }
        rows.push(inRow);
        y += ROW;
      }
      y += GAP;
    }
    svg.setAttribute("height", y);
    const among = (row, time) => rows[row].reduce((best, i) => {
      const far = (k) => Math.max(slots[k].begin - time, time - slots[k].end, 0);
      return best === null || far(i) < far(best) ? i : best;
    }, null);
    roving(slots.map((one) => one.slot), (i, key) => {
      const { row, begin, end } = slots[i], place = rows[row].indexOf(i);
      if (key === "ArrowRight") return rows[row][place + 1];
      if (key === "ArrowLeft") return rows[row][place - 1];
      if (key === "Home") return rows[row][0];
      if (key === "End") return rows[row].at(-1);
      const to = row + ({ ArrowDown: 1, ArrowUp: -1 }[key] || 0);
      return to !== row && rows[to] && rows[to].length ? among(to, (begin + end) / 2) : null;
    });
    whenChosen.push((picture) => slots.forEach(({ slot, c }) => slot.classList.toggle("chosen", picture.number >= 0 && c === picture.number)));
    const scroller = h("div", { class: "scroll" }, svg);
    let zoom = 1;
    const draw = () => {
      svg.setAttribute("width", 100 * zoom + "%");
      const pixels = (scroller.clientWidth || 800) * zoom;
      for (const { slot, rect, label, texts, part } of labels) {
        label.textContent = texts.find((text) => part * pixels > text.length * 8 + 10) || "";
        const thin = part * pixels < 3;  // what takes next to no time is still there to be pointed at
        slot.setAttribute("overflow", thin ? "visible" : "hidden");
        rect.setAttribute("width", thin ? 3 : "100%");
      }
      const rough = whole / Math.max(2, Math.floor(pixels / 110)), power = 10 ** Math.floor(Math.log10(rough));
      const step = [1, 2, 5, 10].map((m) => m * power).find((m) => m >= rough);
      grid.replaceChildren();
      for (let time = 0; time <= whole * 1.0001; time += step) {
        const last = time + step * 0.6 > whole;
        grid.append(s("line", { x1: at(time), x2: at(time), y1: TOP - 4, y2: y }), s("text", { x: at(time), y: 14, "text-anchor": time === 0 ? "start" : last ? "end" : "middle" }, digits(time * 1e3, step < 1e-4 ? 2 : step < 1e-3 ? 1 : 0) + " ms"));
      }
    };
    const range = h("input", { type: "range", min: "1", max: "24", step: "1", value: "1", id: "zoom" });
    range.addEventListener("input", () => { zoom = Number(range.value); draw(); });
    addEventListener("resize", draw);
    drawLater.push(draw);
    const keys = [...used].map((kind) => h("span", {}, h("span", { class: "swatch", style: `background:var(${look(kind)[0]})` }), look(kind)[1] + (look(kind)[2] ? ` (${look(kind)[2]})` : "")));
    return section("timeline", `One ${unit} in time`,
      h("p", {}, `The core's lane fills the ${unit}: ${ms(whole)}. Below it, one lane for each dimension of links: a collective stands in every lane whose links it uses. ${ms(plan.exposed_seconds)} of communication is not hidden by compute.`),
      h("p", {}, h("label", { for: "zoom" }, "Zoom "), range),
      h("div", { class: "box lanes" }, names, scroller), h("div", { class: "legend" }, keys));
  };

  // ---- parts ----
  const stack = (parts, colour, total) => {
    const bar = h("div", { class: "stack", "aria-hidden": "true" });
    parts.forEach((part, i) => { if (part.value > 0) bar.append(h("span", { style: `width:${100 * part.value / total}%;background:var(${colour[i]})` })); });
    return bar;
  };
  const partsTable = (caption, rows, shown, total) => h("table", {}, h("caption", {}, caption), h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "part"), h("th", { scope: "col" }, shown === ms ? "time" : "memory"), h("th", { scope: "col" }, "share"))),
    h("tbody", {}, rows.map((row) => h("tr", { class: row.sub ? "sub" : row.sum ? "best" : null }, h("td", {}, row.colour ? h("span", { class: "swatch", style: `background:var(${row.colour})` }) : null, row.name), h("td", {}, shown(row.value)), h("td", {}, total > 0 ? percent(row.value / total) : "")))));
  const partsSection = () => {
    const time = ["--matmul", "--attention", "--relayout", "--other", "--reduce", "--wait"], memory = ["--matmul", "--gather", "--attention", "--other"];
    const timeParts = plan.time.filter((row) => !row.sub && !row.sum), memoryParts = plan.memory.filter((row) => !row.sub && !row.sum);
    timeParts.forEach((row, i) => { row.colour = time[i]; });
    memoryParts.forEach((row, i) => { row.colour = memory[i]; });
    return section("parts", "Time and memory by part", h("div", { class: "two" },
      h("div", {}, h("h3", {}, `One ${unit}`), stack(timeParts, time, plan.block_seconds), partsTable(`Predicted; ${plan.rung}`, plan.time, ms, plan.block_seconds)),
      h("div", {}, h("h3", {}, "HBM of one device"), stack(memoryParts, memory, plan.hbm_limit_bytes), partsTable(`Of ${gib(plan.hbm_limit_bytes)}; ${plan.hbm_source}`, plan.memory, gib, plan.hbm_limit_bytes))));
  };

  // ---- placements ----
  const placementsSection = () => {
    const all = plan.placements;
    if (!all) return section("placements", "Placements of the plan's sharding", h("p", {}, plan.missing));
    const best = all[0][0], worst = all.at(-1)[0], H = 150;
    const count = all.reduce((total, [, many]) => total + many, 0), each = count <= 120;
    const svg = s("svg", { width: "100%", height: H + 22, role: "group", "aria-label": `${count} placements from best to worst, equal ones together. Arrow keys go from one price to the next.` });
    const wide = Math.min(100 / count, 9);
    let before = 0;
    const bars = all.map(([seconds, many, orders], i) => {
      const tall = Math.max(2, H * seconds / worst), bar = s("g", { class: i === 0 ? "bar best" : "bar", role: "img", "data-seconds": seconds, "data-count": many });
      for (let k = 0; k < (each ? many : 1); k++) {
        const span = each ? wide : wide * many, gap = each ? 0.15 * wide : 0;
        bar.append(s("rect", { x: (before + k) * wide + gap / 2 + "%", y: H - tall, width: span - gap + "%", height: tall }));
      }
      const first = before + 1;
      before += many;
      const told = () => `${many === 1 ? `number ${first}` : `numbers ${first} to ${first + many - 1}`} of ${count}: ${ms(seconds)} a ${unit}${i ? `, ${digits(100 * (seconds / best - 1), 1)} % more` : ""}\n${i === 0 ? "the plan's: " : ""}${orders.join("\n")}${many > orders.length ? `\nand ${many - orders.length} more` : ""}`;
      bar.setAttribute("aria-label", told().replaceAll("\n", "; "));
      tells(bar, told);
      return bar;
    });
    roving(bars, inLine(bars.length));
    svg.append(...bars, s("line", { x1: "0", x2: "100%", y1: H - H * best / worst, y2: H - H * best / worst, style: "stroke:var(--accent)", "stroke-dasharray": "5 4" }));
    svg.append(s("g", { class: "grid" }, s("text", { x: 0, y: H + 16 }, `best ${ms(best)}`), count > 1 ? s("text", { x: Math.min(100, wide * count) + "%", y: H + 16, "text-anchor": wide * count > 40 ? "end" : "start", dx: wide * count > 40 ? 0 : 8 }, `worst ${ms(worst)}`) : null));
    return section("placements", "Placements of the plan's sharding",
      h("p", {}, count === 1 ? "There is one distinct placement." : `All ${count} distinct placements from best to worst; the worst takes ${digits(100 * (worst / best - 1), 1)} % more a ${unit}. Axis order of the best: `, count === 1 ? null : h("code", { class: "break" }, all[0][2][0])),
      h("div", { class: "box" }, svg));
  };

  // ---- tables ----
  const sortable = (caption, columns, rows, first) => {
    const body = h("tbody", {});
    const heads = columns.map((column, i) => {
      const mark = h("span", { class: "dir", "aria-hidden": "true" });
      const button = h("button", { type: "button" }, column.name, mark);
      const head = h("th", { scope: "col", class: column.left ? "left" : null }, button);
      button.addEventListener("click", () => sort(i, head.getAttribute("aria-sort") === "ascending" ? -1 : 1, true));
      return { head, mark };
    });
    const sort = (i, way, speak) => {
      heads.forEach(({ head, mark }, k) => {
        if (k === i) head.setAttribute("aria-sort", way > 0 ? "ascending" : "descending"); else head.removeAttribute("aria-sort");
        mark.textContent = k === i ? (way > 0 ? " ▲" : " ▼") : "";
      });
      const value = (row) => columns[i].value(row);
      const ordered = [...rows].sort((a, b) => {
        const [p, q] = [value(a), value(b)];
        if (p === null || q === null) return (p === null) - (q === null);
        return way * (typeof p === "string" ? p.localeCompare(q) : p - q);
      });
      body.replaceChildren(...ordered.map((row) => h("tr", { class: row.best ? "best" : null }, columns.map((column) => {
        const shown = column.show ? column.show(row) : column.value(row);
        const cell = h("td", { class: column.wrap ? "wrap left" : column.left ? "left" : null }, shown === null || shown === undefined ? "–" : String(shown));
        if (column.more) {
          cell.append(h("span", { class: "unseen" }, ": " + column.more(row)));
          tells(cell, () => column.more(row));
        }
        return cell;
      }))));
      if (speak) say(`sorted by ${columns[i].name}, ${way > 0 ? "ascending" : "descending"}`);
    };
    const table = h("table", {}, h("caption", {}, caption), h("thead", {}, h("tr", {}, heads.map(({ head }) => head))), body);
    sort(first, 1, false);
    return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, table);
  };
  const seconds = (name, key) => ({ name, value: (row) => row[key], show: (row) => (row[key] === null ? null : digits(row[key] * 1e3, 2)) });
  const runnersSection = () => section("runners", "The plan and its runners-up",
    sortable(`Milliseconds of one ${unit}; a heading sorts by it`, [
      { name: "sharding", value: (row) => row.short, left: true, wrap: true, more: (row) => row.sharding },
      seconds("ms by passes", "passes_seconds"), seconds("ms by cycles", "code_seconds"), seconds("matrix", "matmul_seconds"), seconds("attention", "attention_seconds"), seconds("relayout", "relayout_seconds"), seconds("other", "other_seconds"), seconds("exposed", "exposed_seconds"), seconds("contention", "contention_seconds"),
      { name: "GiB", value: (row) => row.hbm_bytes, show: (row) => digits(row.hbm_bytes / 2 ** 30, 1) },
      { name: "placed", value: (row) => row.order, left: true },
      { name: "verified", value: (row) => (row.verified ? "yes" : "no"), left: true }], plan.plans, 1),
    h("p", { class: "quiet" }, plan.legend));
  const collectivesSection = () => section("collectives", `Collectives of one ${unit}`,
    plan.collectives.length === 0 ? h("p", {}, "None.") : sortable("Milliseconds of one run; a heading sorts by it", [
      { name: "collective", value: (row) => row.kind, left: true },
      { name: "runs", value: (row) => row.runs, show: (row) => digits(row.runs, 0) },
      { name: "payload", value: (row) => row.bytes, show: (row) => bytes(row.bytes) },
      { name: "ms alone", value: (row) => row.seconds, show: (row) => digits(row.seconds * 1e3, 3) },
      { name: "not hidden", value: (row) => row.exposed_seconds, show: (row) => digits(row.exposed_seconds * 1e3, 3) },
      { name: "shared links", value: (row) => row.contention_seconds, show: (row) => digits(row.contention_seconds * 1e3, 3) },
      { name: "GB/s", value: (row) => row.effective_bytes_per_second, show: (row) => digits(row.effective_bytes_per_second / 1e9, 1) },
      { name: "in the program", value: (row) => row.name, left: true, wrap: true }], plan.collectives, 0));

  const whySection = () => section("why", "Why this plan", h("p", { class: "break" }, plan.why), plan.half ? h("p", { class: "break" }, plan.half) : null,
    plan.gains.length ? h("h3", {}, "Beside what people deploy") : null,
    plan.gains.length ? h("ul", {}, plan.gains.map((gain) => h("li", { class: "break" }, h("b", {}, gain.name + ": "), gain.text))) : null,
    plan.notes.map((note) => h("p", { class: "break" }, h("b", {}, "Note: "), note)));

  const copy = async (text, button) => {
    let done = false;
    try { await navigator.clipboard.writeText(text); done = true; } catch {
      const area = h("textarea", {}, text);
      document.body.append(area);
      area.select();
      done = document.execCommand("copy");
      area.remove();
      button.focus();
    }
    button.textContent = done ? "Copied" : "Select it";
    say(done ? "copied" : "not copied; select the text");
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  };
  const commandsSection = () => section("commands", "Commands to copy", plan.commands.map(({ title, text }) => {
    const button = h("button", { type: "button", "aria-label": `Copy: ${title}` }, "Copy");
    button.addEventListener("click", () => copy(text, button));
    return h("div", {}, h("h3", {}, title), h("div", { class: "command" }, h("pre", {}, h("code", {}, text)), button));
  }));

  // ---- the page ----
  const drawLater = [];
  document.title = "Plan for " + plan.title;
  const sections = [sliceSection(), timelineSection(), partsSection(), placementsSection(), runnersSection(), collectivesSection(), whySection(), commandsSection()];
  byId("top").append(h("h1", {}, "Plan for " + plan.title), h("p", { class: "quiet break" }, plan.assumed),
    h("p", { class: "break" }, h("b", {}, plan.sharding), h("br"), "placed ", h("code", {}, plan.order)),
    h("dl", { class: "facts" }, plan.facts.map(([name, value, more]) => h("div", { class: "fact" }, h("dt", {}, name), h("dd", {}, value, more ? h("small", {}, more) : null)))),
    h("nav", { "aria-label": "Parts of this page" }, sections.map((one) => h("a", { href: "#" + one.id }, one.querySelector("h2").textContent))));
  byId("main").replaceChildren(...sections, h("p", { class: "quiet break" }, plan.made_with));
  if (pictures.length) choose(pictures[0], false);
  for (const draw of drawLater) draw();
  document.documentElement.dataset.drawn = "yes";
})();
