// The page that `lensview.to_html` writes: a module list, a heatmap of what is chosen, tables.
// Everything that a model or a user wrote is set as text; nothing is fetched, nothing is evaluated.
// The data stand in the page as JSON (see pages.py for its fields).
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const $ = (id) => document.getElementById(id);

  function make(tag, text, name) {
    const element = document.createElement(tag);
    if (text !== undefined) element.textContent = text;
    if (name) element.className = name;
    return element;
  }

  // --- theme ---------------------------------------------------------------------------------

  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  let chosenTheme = "";
  const isDark = () => (chosenTheme || (system.matches ? "dark" : "light")) === "dark";

  function applyTheme() {
    root.dataset.theme = isDark() ? "dark" : "light";
    $("theme").textContent = isDark() ? "Light" : "Dark";
    draw();
  }

  /** The palette as [r, g, b] by index: -limit … 0 … limit, then NaN, then infinities. */
  function palette() {
    const hex = data.palettes[isDark() ? 1 : 0];
    const colours = [];
    for (let i = 0; i < hex.length; i += 6) {
      colours.push([0, 2, 4].map((at) => parseInt(hex.slice(i + at, i + at + 2), 16)));
    }
    return colours;
  }

  // --- the list ------------------------------------------------------------------------------

  const list = $("list");
  let shown = [];
  let active = -1;

  function fillList() {
    const wanted = $("search").value.trim().toLowerCase().split(/\s+/).filter(Boolean);
    shown = data.entries.filter((entry) => {
      const text = `${entry.site} ${entry.kind}`.toLowerCase();
      return wanted.every((word) => text.includes(word));
    });
    const rows = shown.map((entry, i) => {
      const row = make("li", undefined, entry.tile < 0 ? "without" : "");
      row.id = `entry-${i}`;
      row.setAttribute("role", "option");
      row.setAttribute("aria-selected", String(entry === selected));
      row.title = entry.site || "the model itself";
      const name = make("bdi", wanted.length ? entry.site || entry.name : entry.name, "name");
      name.style.paddingInlineStart = `${wanted.length ? 0 : Math.min(entry.depth, 12) * 10}px`;
      row.append(name, make("bdi", entry.kind, "kind"), make("span", entry.shape, "shape"));
      row.addEventListener("click", () => select(entry));
      return row;
    });
    list.replaceChildren(...rows);
    $("count").textContent = `${shown.length} of ${data.entries.length}`;
    active = shown.indexOf(selected);
  }

  function moveTo(i) {
    if (!shown.length) return;
    active = Math.max(0, Math.min(shown.length - 1, i));
    list.setAttribute("aria-activedescendant", `entry-${active}`);
    list.children[active].scrollIntoView({ block: "nearest" });
    select(shown[active]);
  }

  list.addEventListener("keydown", (event) => {
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: 20, PageUp: -20, Home: -1e9, End: 1e9 };
    if (!(event.key in steps)) return;
    event.preventDefault();
    moveTo(active + steps[event.key]);
  });
  $("search").addEventListener("input", fillList);
  $("search").addEventListener("keydown", (event) => {
    if (event.key !== "ArrowDown" && event.key !== "Enter") return;
    event.preventDefault();
    list.focus();
    moveTo(Math.max(active, 0));
  });

  // --- the heatmap ---------------------------------------------------------------------------

  const canvas = $("cells");
  let selected = null;
  let variant = 0;
  let tile = null;
  let size = { width: 1, height: 1 };
  let cursor = null;

  function select(entry) {
    selected = entry;
    cursor = null;
    for (const [i, row] of [...list.children].entries()) {
      row.setAttribute("aria-selected", String(shown[i] === entry));
    }
    draw();
  }

  function cellsOf(one) {
    if (!one.cells) {
      const bytes = Uint8Array.from(atob(one.data), (c) => c.charCodeAt(0));
      const view = new DataView(bytes.buffer);
      one.cells = Float32Array.from({ length: bytes.length / 4 }, (_, i) =>
        view.getFloat32(4 * i, true),
      );
    }
    return one.cells;
  }

  function draw() {
    const tiles = selected && selected.tile >= 0 ? data.tiles[selected.tile] : null;
    tile = tiles ? tiles[Math.min(variant, tiles.length - 1)] : null;
    $("site").textContent = selected ? selected.site || "the model itself" : "";
    $("variants").hidden = !tiles || tiles.length < 2;
    $("readout").textContent = "";
    const empty = !tile || tile.rows * tile.columns === 0;
    $("picture").hidden = empty;
    $("legend").hidden = empty;
    $("stats").textContent = tile ? tile.stats : "";
    $("note").textContent = tile
      ? tile.note
      : selected
        ? selected.missed || "This page has no picture of it."
        : "Choose a module.";
    if (empty) return;
    const colours = palette();
    const centre = (colours.length - 3) / 2;
    const cells = cellsOf(tile);
    const limit = Math.max(Math.abs(tile.low ?? 0), Math.abs(tile.high ?? 0)) || 1;
    const small = document.createElement("canvas");
    small.width = tile.columns;
    small.height = tile.rows;
    const image = new ImageData(tile.columns, tile.rows);
    cells.forEach((value, i) => {
      let index = centre + Math.round(Math.max(-1, Math.min(1, value / limit)) * centre);
      if (Number.isNaN(value)) index = colours.length - 2;
      else if (!Number.isFinite(value)) index = colours.length - 1;
      image.data.set([...colours[index], 255], 4 * i);
    });
    small.getContext("2d").putImageData(image, 0, 0);
    const room = Math.max(200, $("view").clientWidth - 190);
    size = {
      width: Math.max(1, Math.min(24, Math.floor(room / tile.columns))),
      height: Math.max(2, Math.min(22, Math.floor(460 / tile.rows))),
    };
    canvas.width = tile.columns * size.width;
    canvas.height = tile.rows * size.height;
    const context = canvas.getContext("2d");
    context.imageSmoothingEnabled = false;
    context.drawImage(small, 0, 0, canvas.width, canvas.height);
    fillGutter();
    fillLegend(colours, limit);
    canvas.setAttribute("aria-label", `Heatmap of ${selected.site}: ${tile.stats}`);
    if (cursor) showCursor();
  }

  function rowLabel(row) {
    const first = tile.window[0] + row * tile.row_step;
    const last = Math.min(first + tile.row_step, tile.window[1]) - 1;
    const labels = tile.labels < 0 ? [] : data.labels[tile.labels];
    const name = (i) => (labels[i] === undefined ? String(i) : `${i} ${labels[i]}`);
    return first === last ? name(first) : `${name(first)} … ${name(last)}`;
  }

  function fillGutter() {
    const every = Math.ceil(12 / size.height);
    const rows = [];
    for (let row = 0; row < tile.rows; row += every) {
      const label = make("bdi", rowLabel(row));
      label.style.height = `${size.height * Math.min(every, tile.rows - row)}px`;
      rows.push(label);
    }
    $("gutter").replaceChildren(...rows);
  }

  function fillLegend(colours, limit) {
    const centre = (colours.length - 3) / 2;
    const swatches = [-1, -0.6, -0.25, 0, 0.25, 0.6, 1].map((share) => {
      const swatch = make("i");
      swatch.style.background = `rgb(${colours[centre + Math.round(share * centre)]})`;
      return swatch;
    });
    const parts = [make("span", short(-limit)), ...swatches, make("span", short(limit))];
    const counts = [
      [tile.nan, "NaN", colours.length - 2],
      [tile.inf, "infinite", colours.length - 1],
    ];
    for (const [count, name, index] of counts) {
      if (!count) continue;
      const swatch = make("i");
      swatch.style.background = `rgb(${colours[index]})`;
      parts.push(swatch, make("span", `${count.toLocaleString()} ${name}`));
    }
    if (tile.low === null) parts.unshift(make("span", "no finite value"));
    $("legend").replaceChildren(...parts);
  }

  const short = (value) => String(Number(value.toPrecision(4)));

  function showCursor() {
    const { row, column } = cursor;
    const value = cellsOf(tile)[row * tile.columns + column];
    const first = tile.window[2] + column * tile.column_step;
    const last = Math.min(first + tile.column_step, tile.window[3]) - 1;
    const where = first === last ? `column ${first}` : `columns ${first} … ${last}`;
    const text = Number.isFinite(value) ? String(Number(value.toPrecision(7))) : String(value);
    $("readout").replaceChildren(
      make("bdi", `row ${rowLabel(row)}`),
      make("span", `, ${where}: `),
      make("b", text),
    );
    const mark = $("mark");
    mark.style.left = `${column * size.width}px`;
    mark.style.top = `${row * size.height}px`;
    mark.style.width = `${size.width}px`;
    mark.style.height = `${size.height}px`;
    mark.hidden = false;
  }

  function leave() {
    cursor = null;
    $("mark").hidden = true;
    $("readout").textContent = "";
  }

  canvas.addEventListener("mousemove", (event) => {
    const box = canvas.getBoundingClientRect();
    const column = Math.floor(((event.clientX - box.left) / box.width) * tile.columns);
    const row = Math.floor(((event.clientY - box.top) / box.height) * tile.rows);
    if (row < 0 || column < 0 || row >= tile.rows || column >= tile.columns) return leave();
    cursor = { row, column };
    showCursor();
  });
  canvas.addEventListener("mouseleave", leave);
  canvas.addEventListener("keydown", (event) => {
    const moves = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] };
    const move = moves[event.key];
    if (!move) return;
    event.preventDefault();
    const at = cursor ?? { row: 0, column: 0 };
    cursor = {
      row: Math.max(0, Math.min(tile.rows - 1, at.row + move[0])),
      column: Math.max(0, Math.min(tile.columns - 1, at.column + move[1])),
    };
    showCursor();
  });

  // --- the rest ------------------------------------------------------------------------------

  function table(id, head, rows) {
    const section = $(id);
    section.hidden = rows.length === 0;
    const line = (cells, tag) => {
      const tr = make("tr");
      tr.append(...cells.map((cell) => (cell instanceof Node ? cell : make(tag, cell))));
      return tr;
    };
    section.querySelector("table").replaceChildren(
      line(head, "th"),
      ...rows.map((cells) => line(cells, "td")),
    );
  }

  function tokenCells(token, most) {
    if (!token) return [make("td", ""), make("td", "")];
    const text = make("td");
    text.append(make("bdi", token.text, "code"));
    text.title = `id ${token.id}`;
    const bar = make("td", undefined, "probability");
    const fill = make("i");
    fill.style.width = `${(70 * token.probability) / most}px`;
    bar.append(fill, make("span", `${(100 * token.probability).toFixed(1)}%`));
    return [text, bar];
  }

  function fillTables() {
    const { baseline, edited } = data;
    const both = edited.length > 0;
    const most = Math.max(1e-9, ...[...baseline, ...edited].map((t) => t.probability));
    const rows = Array.from({ length: Math.max(baseline.length, edited.length) }, (_, i) => [
      ...tokenCells(baseline[i], most),
      ...(both ? tokenCells(edited[i], most) : []),
    ]);
    table("next", both ? ["baseline", "", "edited", ""] : ["token", ""], rows);
    table(
      "interventions",
      ["on", "operation", "site", "index", "value", ""],
      data.interventions.map((row) => [row.on ? "✓" : "–", ...row.cells]),
    );
    table(
      "checks",
      ["", "check", ""],
      data.checks.map(([name, ok, reason]) => {
        const sign = make("td", ok ? "✓" : ok === null ? "?" : "!", ok ? "green" : "amber");
        return [sign, name, reason];
      }),
    );
    $("notes").hidden = data.notes.length === 0;
    $("notes").querySelector("ul").replaceChildren(...data.notes.map((n) => make("li", n)));
    $("tokens").replaceChildren(...data.tokens.map((t) => make("bdi", t, "code token")));
    if (data.more) $("tokens").append(make("span", data.more, "quiet"));
  }

  document.title = `${data.title}: lensview`;
  $("title").textContent = data.title;
  $("summary").textContent = data.summary;
  $("about").textContent = data.about;
  $("theme").addEventListener("click", () => {
    chosenTheme = isDark() ? "light" : "dark";
    applyTheme();
  });
  system.addEventListener("change", applyTheme);
  for (const [i, button] of [...$("variants").children].entries()) {
    button.addEventListener("click", () => {
      variant = i;
      for (const one of $("variants").children) {
        one.setAttribute("aria-pressed", String(one === button));
      }
      draw();
    });
  }
  addEventListener("resize", draw);
  selected = data.entries[data.selected] ?? null;
  fillTables();
  fillList();
  applyTheme();
  if (active >= 0) list.children[active].scrollIntoView({ block: "center" });
})();
