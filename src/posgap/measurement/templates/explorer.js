"use strict";
// The map of examples by positions: what the page embeds is unpacked, drawn, searched and saved here.
(() => {
  const { h, render } = preact;
  const { useEffect, useLayoutEffect, useMemo, useRef, useState } = preactHooks;
  const ROW = 24; // height of an example in the map, pixels
  const LONG = 20000; // characters of a text that are shown at once

  // ---- What is embedded -------------------------------------------------------------------------------------------
  async function unpacked(name) {
    const text = document.getElementById(`data-${name}`).textContent;
    const bytes = Uint8Array.fromBase64
      ? Uint8Array.fromBase64(text)
      : Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  }

  // Lines of JSON by their example; a line is parsed when it is asked for.
  function lazily(name) {
    let lines;
    return () =>
      (lines ??= unpacked(name).then((text) => {
        const byExample = new Map();
        for (const line of text.split("\n")) if (line) byExample.set(Number(/^\{"at":\s*(\d+)/.exec(line)[1]), line);
        return byExample;
      }));
  }
  const answerLines = lazily("answers"),
    promptLines = lazily("prompts");
  const parsed = new Map();

  // What was asked and answered of an example; null where the page does not hold it.
  function answersOf(lines, at) {
    if (!parsed.has(at)) parsed.set(at, lines.has(at) ? JSON.parse(lines.get(at)) : null);
    return parsed.get(at);
  }

  // The pieces of an example's prompt at a placement; the document at position i is piece 2 i - 1.
  async function promptOf(at, column) {
    const line = (await promptLines()).get(at);
    if (!line) return null;
    const { t, p } = JSON.parse(line);
    let now = [];
    for (const [head, tail, ...between] of p.slice(0, column + 1))
      now = [...now.slice(0, head), ...between, ...now.slice(now.length - tail)];
    return now.map((index) => t[index]);
  }

  // What a model said to a prompt, once for each sample.
  function said(texts, model, column) {
    return texts.r[model][column].map((one) => {
      const { text, thoughts, reason, ...more } = typeof one === "number" ? { text: one } : one;
      return { ...more, text: texts.t[text], thoughts: texts.t[thoughts] ?? "", reason: texts.t[reason] ?? "" };
    });
  }

  // ---- Words ------------------------------------------------------------------------------------------------------
  const number = (value, digits = 1) => value.toFixed(digits);
  const plural = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;
  const inWords = (score, outcome) =>
    outcome ?? (score === 1 ? "right" : score === 0 ? "wrong" : `${number(100 * score, 0)} % right`);
  const cssOf = (score, outcome) => (outcome ? "none" : score === 1 ? "full" : score === 0 ? "zero" : "part");
  const changeOf = (before, after) =>
    after > before ? "gained" : after < before ? "lost" : after === 0 ? "both-wrong" : "both-right";
  const CHANGES = { gained: "better", lost: "worse", "both-wrong": "wrong in both", "both-right": "alike in both" };

  // ---- CSV and parquet --------------------------------------------------------------------------------------------
  const COLUMNS = [
    ["id", "text"],
    ["model", "text"],
    ["position", "text"],
    ["region", "text"],
    ["sample", "whole"],
    ["score", "real"],
    ["outcome", "text"],
    ["question", "text"],
    ["response", "text"],
    ["thoughts", "text"],
    ["reason", "text"],
  ];

  async function table(data, rows, columns) {
    const lines = await answerLines(),
      out = [];
    for (const at of rows) {
      const texts = answersOf(lines, at);
      data.models.forEach((model, m) => {
        for (const column of columns) {
          const score = model.scores[at][column],
            outcome = data.outcome(m, at, column) ?? "answered";
          const where = [data.ids[at], model.label, data.names[column], data.regionOf[column]];
          if (!texts) out.push([...where, null, score, outcome, null, null, null, null]);
          else
            said(texts, m, column).forEach((one, sample) =>
              out.push([
                ...where,
                sample,
                one.score ?? score,
                one.outcome ?? "answered",
                texts.q,
                one.text,
                one.thoughts,
                one.reason,
              ]),
            );
        }
      });
    }
    return out;
  }

  function csv(rows) {
    const field = (value) => {
      const text = value === null ? "" : String(value);
      return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
    };
    const lines = [COLUMNS.map(([name]) => name), ...rows].map((row) => row.map(field).join(","));
    return new TextEncoder().encode(`${lines.join("\r\n")}\r\n`);
  }

  const gzipped = async (bytes) =>
    new Uint8Array(
      await new Response(new Blob([bytes]).stream().pipeThrough(new CompressionStream("gzip"))).arrayBuffer(),
    );

  function joined(parts) {
    const whole = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
    let at = 0;
    for (const part of parts) {
      whole.set(part, at);
      at += part.length;
    }
    return whole;
  }

  // Thrift's compact protocol, as far as parquet's headers need it (apache/parquet-format, parquet.thrift): a struct is a
  // list of [field, type, value] in the fields' order.
  const I32 = 5,
    I64 = 6,
    BINARY = 8,
    LIST = 9,
    STRUCT = 12;
  function thrift(fields) {
    const out = [];
    const varint = (value) => {
      for (; value > 127; value = Math.floor(value / 128)) out.push((value % 128) | 128);
      out.push(value);
    };
    const put = (type, value) => {
      if (type === I32 || type === I64)
        varint(2 * value); // zigzag; none is negative
      else if (type === BINARY) {
        const bytes = new TextEncoder().encode(value);
        varint(bytes.length);
        out.push(...bytes);
      } else if (type === STRUCT) struct(value);
      else {
        const [of, items] = value;
        out.push((Math.min(items.length, 15) << 4) | of);
        if (items.length > 14) varint(items.length);
        items.forEach((item) => put(of, item));
      }
    };
    const struct = (members) => {
      let last = 0;
      for (const [id, type, value] of members) {
        out.push(((id - last) << 4) | type);
        last = id;
        put(type, value);
      }
      out.push(0);
    };
    struct(fields);
    return Uint8Array.from(out);
  }

  const PARQUET = { whole: 1, real: 5, text: 6 }; // INT32, DOUBLE, BYTE_ARRAY
  function plain(kind, values) {
    if (kind === "text") {
      const encoder = new TextEncoder();
      return joined(
        values.flatMap((value) => {
          const bytes = encoder.encode(value);
          return [new Uint8Array(Uint32Array.of(bytes.length).buffer), bytes];
        }),
      );
    }
    return new Uint8Array((kind === "real" ? Float64Array : Int32Array).from(values).buffer);
  }

  // Which values are there, as runs of ones and zeros (RLE), after their length.
  function levels(values) {
    const out = [];
    for (let at = 0; at < values.length;) {
      const there = values[at] !== null,
        begin = at;
      while (at < values.length && (values[at] !== null) === there) at++;
      for (let run = 2 * (at - begin); ; run = Math.floor(run / 128)) {
        if (run < 128) {
          out.push(run);
          break;
        }
        out.push((run % 128) | 128);
      }
      out.push(there ? 1 : 0);
    }
    return joined([new Uint8Array(Uint32Array.of(out.length).buffer), Uint8Array.from(out)]);
  }

  // A parquet file of one row group, one gzipped page for each column. A writer from elsewhere is larger than all else here.
  async function parquet(rows) {
    const parts = [new TextEncoder().encode("PAR1")],
      chunks = [];
    let offset = 4,
      total = 0;
    for (const [at, [name, kind]] of COLUMNS.entries()) {
      const values = rows.map((row) => row[at]);
      const body = joined([
        levels(values),
        plain(
          kind,
          values.filter((value) => value !== null),
        ),
      ]);
      const packed = await gzipped(body);
      const header = thrift([
        [1, I32, 0],
        [2, I32, body.length],
        [3, I32, packed.length],
        [
          5,
          STRUCT,
          [
            [1, I32, rows.length],
            [2, I32, 0],
            [3, I32, 3],
            [4, I32, 3],
          ],
        ],
      ]);
      chunks.push([
        [2, I64, offset],
        [
          3,
          STRUCT,
          [
            [1, I32, PARQUET[kind]],
            [2, LIST, [I32, [0, 3]]],
            [3, LIST, [BINARY, [name]]],
            [4, I32, 2],
            [5, I64, rows.length],
            [6, I64, header.length + body.length],
            [7, I64, header.length + packed.length],
            [9, I64, offset],
          ],
        ],
      ]);
      parts.push(header, packed);
      offset += header.length + packed.length;
      total += header.length + body.length;
    }
    const schema = COLUMNS.map(([name, kind]) => [
      [1, I32, PARQUET[kind]],
      [3, I32, 1],
      [4, BINARY, name],
      ...(kind === "text" ? [[6, I32, 0]] : []),
    ]);
    const footer = thrift([
      [1, I32, 1],
      [
        2,
        LIST,
        [
          STRUCT,
          [
            [
              [4, BINARY, "posgap"],
              [5, I32, COLUMNS.length],
            ],
            ...schema,
          ],
        ],
      ],
      [3, I64, rows.length],
      [
        4,
        LIST,
        [
          STRUCT,
          [
            [
              [1, LIST, [STRUCT, chunks]],
              [2, I64, total],
              [3, I64, rows.length],
            ],
          ],
        ],
      ],
      [6, BINARY, "posgap"],
    ]);
    return joined([...parts, footer, new Uint8Array(Uint32Array.of(footer.length).buffer), parts[0]]);
  }

  function save(bytes, name, type) {
    const link = Object.assign(document.createElement("a"), {
      href: URL.createObjectURL(new Blob([bytes], { type })),
      download: name,
    });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  }

  // ---- Filters ----------------------------------------------------------------------------------------------------
  const OUTCOMES = {
    any: "any outcome",
    flips: "right here, wrong there",
    right: "right throughout",
    wrong: "wrong throughout",
    somewhere: "wrong somewhere",
    none: "not answered somewhere",
  };
  const COMPARED = { any: "", better: "better somewhere", worse: "worse somewhere", alike: "alike everywhere" };
  const SORTS = {
    file: "as in the file",
    best: "most right first",
    worst: "most wrong first",
    flips: "most changes first",
    id: "by id",
  };
  const PAIRED = { gains: "largest gain first", losses: "largest loss first" };

  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / (values.length || 1);

  function chosenRows(data, state, pair, columns, matching) {
    const scores = data.models[pair.shown].scores,
      before = data.models[pair.before]?.scores;
    const at = state.position === "" ? columns : [Number(state.position)];
    const passes = {
      any: () => true,
      flips: (row) => new Set(at.map((c) => row[c])).size > 1,
      right: (row) => at.every((c) => row[c] === 1),
      wrong: (row) => at.every((c) => row[c] === 0),
      somewhere: (row) => at.some((c) => row[c] < 1),
      none: (_, i) => at.some((c) => data.outcome(pair.shown, i, c)),
    }[state.outcome];
    const changes = (i) => at.map((c) => scores[i][c] - before[i][c]);
    const compared = {
      any: () => true,
      better: (i) => changes(i).some((x) => x > 0),
      worse: (i) => changes(i).some((x) => x < 0),
      alike: (i) => changes(i).every((x) => x === 0),
    }[before ? state.compared : "any"];
    const rows = data.ids
      .map((_, i) => i)
      .filter((i) => passes(scores[i], i) && compared(i) && (!matching || matching.has(i)));
    const accuracy = (i) => mean(at.map((c) => scores[i][c]));
    const turns = (i) => at.slice(1).filter((c, k) => scores[i][c] !== scores[i][at[k]]).length;
    const weight = {
      best: (i) => -accuracy(i),
      worst: accuracy,
      flips: (i) => -turns(i),
      gains: (i) => -mean(changes(i)),
      losses: (i) => mean(changes(i)),
    }[state.sort];
    if (state.sort === "id") {
      const names = new Intl.Collator("en", { numeric: true });
      return rows.sort((a, b) => names.compare(data.ids[a], data.ids[b]));
    }
    if (!weight) return rows;
    // Among equals, those that fail alike stand together.
    const key = new Map(rows.map((i) => [i, [weight(i), at.map((c) => scores[i][c]).join()]]));
    return rows.sort((a, b) => {
      const [x, like] = key.get(a),
        [y, other] = key.get(b);
      return x - y || (like < other ? 1 : like > other ? -1 : a - b);
    });
  }

  function matches(data, lines, words) {
    const wanted = words.toLowerCase(),
      out = new Set();
    data.ids.forEach((id, at) => {
      const texts = answersOf(lines, at),
        own = texts ? [texts.q, ...texts.a, ...texts.t] : [];
      if ([id, ...own].some((text) => text.toLowerCase().includes(wanted))) out.add(at);
    });
    return out;
  }

  // ---- The map ----------------------------------------------------------------------------------------------------
  const choice = (label, value, options, set, extra) =>
    h(
      "label",
      { class: "choice" },
      h("span", null, label),
      h(
        "select",
        { value, onChange: (event) => set(event.target.value), ...extra },
        Object.entries(options).map(([key, text]) =>
          h("option", { value: key, selected: key === String(value) }, text),
        ),
      ),
    );

  // A panel is what is drawn side by side: a model's scores, or how the second differs from the first.
  function panelsOf(data, state, pair) {
    const of = (m) => ({ model: m, title: data.models[m].label });
    const difference = { change: true, title: "difference" };
    if (pair.before === undefined) return [of(pair.shown)];
    return {
      both: [of(pair.before), of(pair.shown), difference],
      change: [difference],
      before: [of(pair.before)],
      after: [of(pair.shown)],
    }[state.view];
  }

  function cellOf(data, pair, panel, at, column) {
    if (panel.change) {
      const before = data.models[pair.before].scores[at][column],
        after = data.models[pair.shown].scores[at][column];
      const change = changeOf(before, after);
      return { css: change, share: Math.abs(after - before), words: CHANGES[change] };
    }
    const score = data.models[panel.model].scores[at][column],
      outcome = data.outcome(panel.model, at, column);
    return { css: cssOf(score, outcome), share: score, words: inWords(score, outcome) };
  }

  function Overview({ data, pair, panel, rows, columns, scroll, height, go }) {
    const canvas = useRef(),
      [dark, setDark] = useState(0);
    useEffect(() => {
      const scheme = matchMedia("(prefers-color-scheme: dark)"),
        turn = () => setDark((n) => n + 1);
      scheme.addEventListener("change", turn);
      return () => scheme.removeEventListener("change", turn);
    }, []);
    useEffect(() => {
      const style = getComputedStyle(canvas.current),
        colors = {};
      for (const css of ["full", "zero", "part", "none", "gained", "lost", "both-right", "both-wrong"])
        colors[css] = style.getPropertyValue(`--cell-${css}`).trim();
      const drawn = Object.assign(canvas.current, {
        width: columns.length,
        height: Math.max(1, rows.length),
      }).getContext("2d");
      rows.forEach((at, y) =>
        columns.forEach((column, x) => {
          drawn.fillStyle = colors[cellOf(data, pair, panel, at, column).css];
          drawn.fillRect(x, y, 1, 1);
        }),
      );
    }, [rows, columns, panel.model, panel.change, pair.shown, pair.before, dark]);
    const whole = rows.length * ROW || 1,
      drawn = Math.min(height, whole);
    const move = (event) => {
      if (event.buttons !== 1) return;
      const box = canvas.current.getBoundingClientRect();
      go(((event.clientY - box.top) / box.height) * whole - height / 2);
    };
    return h(
      "div",
      {
        class: "overview",
        style: { height: `${drawn}px` },
        onPointerDown: move,
        onPointerMove: move,
        "aria-hidden": "true",
      },
      h("canvas", { ref: canvas }),
      whole > height &&
        h("div", {
          class: "window",
          style: { top: `${(scroll / whole) * drawn}px`, height: `${(height / whole) * drawn}px` },
        }),
    );
  }

  function Grid({ data, pair, panels, rows, columns, cursor, setCursor, open, lines }) {
    const box = useRef(),
      [view, setView] = useState({ top: 0, left: 0, width: 0, height: 480 });
    const measure = () => {
      const { scrollTop, scrollLeft, clientWidth, clientHeight } = box.current;
      if (clientWidth) setView({ top: scrollTop, left: scrollLeft, width: clientWidth, height: clientHeight });
    };
    useLayoutEffect(() => {
      measure();
      const resized = new ResizeObserver(measure);
      resized.observe(box.current);
      return () => resized.disconnect();
    }, []);
    const narrow = view.width < 560,
      gap = 14;
    const label = narrow ? 92 : Math.max(150, Math.min(view.width * 0.26, 26 + 7 * (data.longest + (lines ? 40 : 0))));
    const n = columns.length,
      room = view.width - label - panels.length * gap;
    const cell = Math.max(narrow ? 14 : 11, Math.min(44, Math.floor(room / (n * panels.length))));
    const width = label + panels.length * (n * cell + gap);
    const left = (p, c) => label + p * (n * cell + gap) + c * cell;
    const head = 68;
    const first = Math.max(0, Math.floor(view.top / ROW) - 4),
      last = Math.min(rows.length, Math.ceil((view.top + view.height) / ROW) + 4);
    const visible = (p, c) =>
      left(p, c) + cell > view.left + label - 4 * cell && left(p, c) < view.left + view.width + 4 * cell;
    const places = panels
      .flatMap((_, p) => columns.map((_, c) => [p, c]))
      .filter(([p, c]) => view.width === 0 || visible(p, c));

    // The cursor is a row and a cell of any panel; it stays in sight.
    useEffect(() => {
      if (!cursor.moved || !rows.length) return;
      const at = box.current,
        p = Math.floor(cursor.column / n),
        y = cursor.row * ROW,
        x = left(p, cursor.column % n);
      const seen = at.clientHeight - head;
      if (y < at.scrollTop) at.scrollTop = y;
      else if (y + ROW > at.scrollTop + seen) at.scrollTop = y + ROW - seen;
      if (x - label < at.scrollLeft) at.scrollLeft = x - label;
      else if (x + cell > at.scrollLeft + at.clientWidth) at.scrollLeft = x + cell - at.clientWidth;
    }, [cursor]);

    const most = n * panels.length - 1;
    const page = Math.max(1, Math.floor((view.height - head) / ROW) - 1);
    const key = (event) => {
      const { row, column } = cursor;
      const step = {
        ArrowDown: [row + 1, column],
        ArrowUp: [row - 1, column],
        ArrowRight: [row, column + 1],
        ArrowLeft: [row, column - 1],
        PageDown: [row + page, column],
        PageUp: [row - page, column],
        Home: event.ctrlKey ? [0, 0] : [row, 0],
        End: event.ctrlKey ? [rows.length - 1, most] : [row, most],
      }[event.key];
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        if (rows.length) open(rows[row], columns[column % n]);
        return;
      }
      if (!step || event.altKey || event.metaKey) return;
      event.preventDefault();
      const within = (value, end) => Math.max(0, Math.min(end, value));
      setCursor({ row: within(step[0], rows.length - 1), column: within(step[1], most), moved: true });
    };
    const pointed = (event) => {
      const target = event.target.closest("[data-row]");
      if (!target) return;
      const row = Number(target.dataset.row),
        column = Number(target.dataset.column ?? 0);
      setCursor({ row, column, moved: false });
      open(rows[row], columns[column % n]);
    };
    const here = cursor.row < rows.length ? `cell-${cursor.row}-${cursor.column}` : undefined;
    const accuracies = useMemo(
      () =>
        panels.map((panel) =>
          columns.map((c) => {
            const of = (m) => 100 * mean(rows.map((at) => data.models[m].scores[at][c]));
            return panel.change ? of(pair.shown) - of(pair.before) : of(panel.model);
          }),
        ),
      [rows, columns, panels.map((panel) => panel.title).join("\n"), pair.shown, pair.before],
    );
    const every = Math.ceil((8 * Math.max(...columns.map((c) => data.names[c].length))) / cell);

    return h(
      "div",
      { class: "grid-frame" },
      h(Overview, {
        data,
        pair,
        panel: panels.at(-1),
        rows,
        columns,
        scroll: view.top,
        height: view.height - head,
        go: (y) => {
          box.current.scrollTop = y;
        },
      }),
      h(
        "div",
        {
          class: "map",
          ref: box,
          role: "grid",
          tabIndex: 0,
          "aria-label": "Examples by positions: arrow keys move, Enter opens",
          "aria-rowcount": rows.length + 1,
          "aria-colcount": most + 2,
          "aria-activedescendant": here,
          onScroll: measure,
          onKeyDown: key,
          onClick: pointed,
        },
        h(
          "div",
          { class: "grid-head", role: "row", "aria-rowindex": 1, style: { width: `${width}px`, height: `${head}px` } },
          h(
            "div",
            { class: "grid-label", role: "columnheader", "aria-colindex": 1, style: { width: `${label}px` } },
            h("span", { class: "soft" }, narrow ? "% right" : "accuracy of these, %"),
          ),
          panels.map((panel, p) =>
            h(
              "div",
              {
                class: "panel-title",
                "aria-hidden": "true",
                style: { left: `${left(p, 0)}px`, width: `${n * cell}px` },
                title: panel.title,
              },
              panels.length > 1 || panel.change ? panel.title : "",
            ),
          ),
          places.map(([p, c]) => {
            const value = accuracies[p][c],
              name = data.names[columns[c]],
              signed = panels[p].change;
            const share = Math.abs(value) / 100;
            return h(
              "div",
              {
                key: `${p}-${c}`,
                class: "column",
                role: "columnheader",
                "aria-colindex": 2 + p * n + c,
                "aria-label": `${panels[p].title}, position ${name}: ${rows.length ? (signed && value > 0 ? "+" : "") + number(value) : "no examples"}`,
                title: `${panels[p].title}, position ${name}: ${number(value)}`,
                "data-accuracy": rows.length ? value : "",
                style: { left: `${left(p, c)}px`, width: `${cell}px` },
              },
              cell >= 28 && rows.length > 0 && h("span", { class: "value" }, number(value, 0)),
              h("span", {
                class: `bar ${signed ? (value < 0 ? "lost" : "gained") : "full"}`,
                style: { height: `${Math.round(24 * share)}px` },
              }),
              h("span", { class: "name" }, c % every === 0 ? name : ""),
            );
          }),
        ),
        h(
          "div",
          { class: "grid-body", style: { width: `${width}px`, height: `${rows.length * ROW}px` } },
          Array.from({ length: Math.max(0, last - first) }, (_, k) => first + k).map((row) => {
            const at = rows[row];
            return h(
              "div",
              { key: at, class: "grid-row", role: "row", "aria-rowindex": row + 2, style: { top: `${row * ROW}px` } },
              h(
                "div",
                {
                  class: "grid-label",
                  role: "rowheader",
                  "aria-colindex": 1,
                  "data-row": row,
                  style: { width: `${label}px` },
                  title: data.ids[at].slice(0, 300),
                },
                h("bdi", null, data.ids[at].slice(0, 80)),
                lines && !narrow && h("bdi", { class: "soft question-of" }, answersOf(lines, at)?.q.slice(0, 200)),
              ),
              places.map(([p, c]) => {
                const { css, share, words } = cellOf(data, pair, panels[p], at, columns[c]),
                  column = p * n + c;
                const current = row === cursor.row && column === cursor.column;
                return h("div", {
                  key: column,
                  id: `cell-${row}-${column}`,
                  role: "gridcell",
                  "aria-colindex": 2 + column,
                  "data-row": row,
                  "data-column": column,
                  "aria-label": `${panels.length > 1 || panels[p].change ? `${panels[p].title}, ` : ""}position ${data.names[columns[c]]}: ${words}`,
                  class: `cell ${css}${current ? " current" : ""}`,
                  style: { left: `${left(p, c)}px`, width: `${cell}px`, "--share": share },
                });
              }),
            );
          }),
          !rows.length && h("p", { class: "soft empty" }, "No example fits these filters."),
        ),
      ),
    );
  }

  // ---- A cell, opened ---------------------------------------------------------------------------------------------
  // A text as somebody or some model wrote it: in its own direction, and long ones not at once.
  function Text({ text, label, parts }) {
    const [whole, setWhole] = useState(false);
    const length = parts ? parts.reduce((sum, [piece]) => sum + piece.length, 0) : text.length;
    let left = whole ? Infinity : LONG;
    const cut = (piece) => {
      const shown = piece.slice(0, left);
      left -= shown.length;
      return shown;
    };
    return h(
      "div",
      null,
      h(
        "pre",
        { dir: "auto", tabIndex: 0, role: "region", "aria-label": label },
        parts
          ? parts.map(([piece, gold]) => {
              const shown = cut(piece);
              return shown && (gold ? h("mark", null, shown) : shown);
            })
          : cut(text),
      ),
      length > LONG &&
        !whole &&
        h(
          "button",
          { type: "button", onClick: () => setWhole(true) },
          `Show all ${length.toLocaleString("en")} characters`,
        ),
    );
  }

  function Answer({ one, label }) {
    return h(
      "div",
      null,
      one.outcome && h("p", null, h("strong", { class: "wrong" }, one.outcome), one.reason ? `: ${one.reason}` : ""),
      (one.text || !one.outcome) && h(Text, { text: one.text, label }),
      one.score !== undefined && h("p", { class: "soft" }, inWords(one.score)),
      one.cut && h("p", { class: "soft" }, "The limit of tokens ended this answer."),
      one.thoughts &&
        h("details", null, h("summary", null, "Thoughts"), h(Text, { text: one.thoughts, label: "Thoughts" })),
    );
  }

  function Cell({ data, lines, at, column, columns, models, close, go }) {
    const dialog = useRef(),
      texts = lines && answersOf(lines, at),
      [prompt, setPrompt] = useState(),
      [unfolded, setUnfolded] = useState(false);
    useEffect(() => {
      dialog.current.showModal();
    }, []);
    useEffect(() => {
      let here = true;
      setPrompt();
      if (unfolded) promptOf(at, column).then((found) => here && setPrompt(found));
      return () => {
        here = false;
      };
    }, [at, column, unfolded]);
    const name = data.names[column],
      place = columns.indexOf(column);
    const key = (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step || event.target.closest("pre, summary")) return;
      event.preventDefault();
      go(place + step);
    };
    const golds = new Set(data.placements[column].map((position) => 2 * position - 1));
    return h(
      "dialog",
      {
        ref: dialog,
        onClose: close,
        onKeyDown: key,
        "aria-labelledby": "cell-title",
        onClick: (event) => event.target === dialog.current && dialog.current.close(),
      },
      h(
        "div",
        { class: "opened" },
        h(
          "header",
          null,
          h("h2", { id: "cell-title" }, h("bdi", null, data.ids[at]), h("small", null, ` gold at ${name}`)),
          h(
            "div",
            { class: "steps" },
            h(
              "button",
              { type: "button", disabled: place === 0, onClick: () => go(place - 1), "aria-label": "Position before" },
              "←",
            ),
            h(
              "button",
              {
                type: "button",
                disabled: place === columns.length - 1,
                onClick: () => go(place + 1),
                "aria-label": "Position after",
              },
              "→",
            ),
            h("button", { type: "button", onClick: () => dialog.current.close(), "aria-label": "Close" }, "✕"),
          ),
        ),
        texts === undefined
          ? h("p", { class: "soft" }, "Unpacking …")
          : texts === null
            ? h(
                "p",
                null,
                "What was asked and answered here is in predictions.jsonl: the page holds some MB of texts, of the examples that depend on the position first.",
              )
            : [
                texts.q && h("p", { class: "question", dir: "auto" }, texts.q),
                texts.a.length > 0 &&
                  h(
                    "p",
                    { class: "soft accepted" },
                    "Accepted: ",
                    texts.a.map((answer, i) => [i ? ", " : "", h("code", null, h("bdi", null, answer))]),
                  ),
                h(
                  "div",
                  { class: `answers of-${models.length}` },
                  models.map((m) => {
                    const score = data.models[m].scores[at][column],
                      outcome = data.outcome(m, at, column);
                    return h(
                      "section",
                      { key: m },
                      h(
                        "h3",
                        null,
                        h("bdi", { class: "model" }, data.models[m].label),
                        " ",
                        h("span", { class: `badge ${cssOf(score, outcome)}` }, inWords(score, outcome)),
                      ),
                      said(texts, m, column).map((one, i) =>
                        h(Answer, { key: `${at}-${column}-${i}`, one, label: `Response of ${data.models[m].label}` }),
                      ),
                    );
                  }),
                ),
              ],
        h(
          "details",
          { open: unfolded, onToggle: (event) => setUnfolded(event.target.open) },
          h("summary", null, "Prompt"),
          unfolded &&
            (prompt === undefined
              ? h("p", { class: "soft" }, "Unpacking …")
              : prompt === null
                ? h(
                    "p",
                    { class: "soft" },
                    "The page has no prompts of this example; posgap makes them of the examples’ file.",
                  )
                : h(Text, {
                    key: `${at}-${column}`,
                    label: "Prompt",
                    parts: prompt.map((piece, i) => [piece, golds.has(i)]),
                  })),
        ),
        texts &&
          h(
            "details",
            { open: true },
            h("summary", null, "Every position"),
            h(
              "div",
              { class: "scroll", tabIndex: 0, role: "region", "aria-label": "Every position" },
              h(
                "table",
                { class: "wide" },
                h(
                  "thead",
                  null,
                  h(
                    "tr",
                    null,
                    h("th", { scope: "col" }, "position"),
                    models.map((m) => h("th", { scope: "col", class: "text" }, h("bdi", null, data.models[m].label))),
                  ),
                ),
                h(
                  "tbody",
                  null,
                  data.names.map((other, c) =>
                    h(
                      "tr",
                      { key: c, class: c === column ? "here" : "" },
                      h(
                        "th",
                        { scope: "row" },
                        h(
                          "button",
                          {
                            type: "button",
                            class: "plain",
                            disabled: !columns.includes(c),
                            onClick: () => go(columns.indexOf(c)),
                          },
                          other,
                        ),
                      ),
                      models.map((m) => {
                        const score = data.models[m].scores[at][c],
                          outcome = data.outcome(m, at, c),
                          one = said(texts, m, c)[0];
                        return h(
                          "td",
                          { class: "text" },
                          h("span", {
                            class: `dot ${cssOf(score, outcome)}`,
                            role: "img",
                            "aria-label": inWords(score, outcome),
                          }),
                          " ",
                          h(
                            "code",
                            null,
                            h("bdi", null, outcome ? one.reason.slice(0, 200) || outcome : one.text.slice(0, 200)),
                            one.text.length > 200 && " …",
                          ),
                        );
                      }),
                    ),
                  ),
                ),
              ),
            ),
          ),
      ),
    );
  }

  // ---- All of it --------------------------------------------------------------------------------------------------
  function Explorer({ data }) {
    const several = data.models.length > 1;
    const [state, setState] = useState({
      outcome: "any",
      compared: "any",
      position: "",
      region: "",
      words: "",
      sort: several ? "gains" : "worst",
      view: window.innerWidth < 720 ? "change" : "both",
      before: 0,
      shown: several ? 1 : 0,
    });
    const [matching, setMatching] = useState(null),
      [cursor, setCursor] = useState({ row: 0, column: 0, moved: false });
    const [opened, setOpened] = useState(null),
      [lines, setLines] = useState(),
      [busy, setBusy] = useState(""),
      [spoken, setSpoken] = useState("");
    const set = (change) => {
      setState((old) => ({ ...old, ...change }));
      setCursor({ row: 0, column: 0, moved: false });
    };
    useEffect(() => {
      if (!state.words) {
        setMatching(null);
        return undefined;
      }
      let here = true;
      const wait = setTimeout(
        () => answerLines().then((all) => here && setMatching(matches(data, all, state.words))),
        150,
      );
      return () => {
        here = false;
        clearTimeout(wait);
      };
    }, [state.words]);
    // The map is drawn first; what was asked comes beside it when it is unpacked.
    useEffect(() => {
      requestAnimationFrame(() => answerLines().then(setLines));
    }, []);
    const pair = { shown: state.shown, before: several ? state.before : undefined };
    const columns = useMemo(() => data.regions[state.region] ?? data.names.map((_, c) => c), [state.region]);
    const rows = useMemo(() => chosenRows(data, state, pair, columns, matching), [state, matching, columns]);
    const panels = panelsOf(data, state, pair);
    const models = several ? [...new Set([pair.before, pair.shown])] : [0];
    const count = `${plural(rows.length, "example")} of ${data.ids.length.toLocaleString("en")}`;
    useEffect(() => {
      setSpoken(`${count} shown`);
    }, [count]);
    useEffect(() => {
      if (!cursor.moved || !rows.length) return;
      const at = rows[cursor.row],
        panel = panels[Math.floor(cursor.column / columns.length)],
        column = columns[cursor.column % columns.length];
      setSpoken(
        `${data.ids[at].slice(0, 80)}, position ${data.names[column]}: ${cellOf(data, pair, panel, at, column).words}`,
      );
    }, [cursor]);
    const download = async (kind) => {
      setBusy(`Making the ${kind} file …`);
      try {
        const made = await table(data, rows, columns);
        const bytes = kind === "csv" ? csv(made) : await parquet(made);
        save(bytes, `${data.file}.${kind}`, kind === "csv" ? "text/csv" : "application/vnd.apache.parquet");
        setBusy(`${plural(made.length, "answer")} in ${data.file}.${kind}`);
      } catch (error) {
        setBusy(`That did not work: ${error.message}`);
      }
    };
    const kinds = Object.keys(data.regions),
      ofPairs = data.placements[0].length > 1;
    const labels = Object.fromEntries(data.models.map((model, m) => [m, model.label.slice(0, 60)]));
    return h(
      "div",
      { class: "explorer" },
      h(
        "form",
        { class: "filters", role: "search", onSubmit: (event) => event.preventDefault() },
        several &&
          data.models.length > 2 &&
          choice("Model", state.shown, labels, (value) => set({ shown: Number(value) })),
        several &&
          data.models.length > 2 &&
          choice("against", state.before, labels, (value) => set({ before: Number(value) })),
        several &&
          choice(
            "Show",
            state.view,
            { both: "side by side", change: "difference", before: labels[pair.before], after: labels[pair.shown] },
            (view) => set({ view }),
          ),
        choice("Outcome", state.outcome, OUTCOMES, (outcome) => set({ outcome })),
        several &&
          choice("Change", state.compared, { ...COMPARED, any: "any change" }, (compared) => set({ compared })),
        kinds.length > 1 &&
          choice(
            ofPairs ? "Category" : "Part",
            state.region,
            {
              "": ofPairs ? "all categories" : "all positions",
              ...Object.fromEntries(kinds.map((kind) => [kind, kind])),
            },
            (region) => set({ region, position: "" }),
          ),
        choice(
          "At position",
          state.position,
          { "": "any", ...Object.fromEntries(columns.map((c) => [c, data.names[c]])) },
          (position) => set({ position }),
        ),
        choice("Sort", state.sort, { ...SORTS, ...(several ? PAIRED : {}) }, (sort) => set({ sort })),
        h(
          "label",
          { class: "choice words" },
          h("span", null, "Text"),
          h("input", {
            type: "search",
            value: state.words,
            placeholder: "in ids, questions, responses",
            onInput: (event) => set({ words: event.target.value }),
          }),
        ),
      ),
      h(
        "div",
        { class: "legend-line" },
        h("p", { class: "count" }, h("strong", null, count)),
        h(
          "ul",
          { class: "legend keys" },
          [
            ...(panels.some((panel) => !panel.change)
              ? [
                  ["full", "right"],
                  ["zero", "wrong"],
                ]
              : []),
            ...(data.partly && panels.some((panel) => !panel.change) ? [["part", "in part"]] : []),
            ...(data.models.some((model) => model.unanswered.length) ? [["none", "not answered"]] : []),
            ...(panels.some((panel) => panel.change)
              ? [
                  ["gained", "better"],
                  ["lost", "worse"],
                  ["both-wrong", "wrong in both"],
                ]
              : []),
          ].map(([css, words]) => h("li", { key: css }, h("span", { class: `dot ${css}` }), words)),
        ),
      ),
      h(Grid, {
        data,
        lines,
        pair,
        panels,
        rows,
        columns,
        cursor,
        setCursor,
        open: (at, column) => setOpened({ at, column }),
      }),
      h(
        "div",
        { class: "below" },
        h(
          "p",
          { class: "soft hint" },
          "Click a cell, or move with the arrow keys and press Enter: prompt and response. Esc closes.",
        ),
        h(
          "p",
          { class: "downloads" },
          "Save these as ",
          h("button", { type: "button", onClick: () => download("csv") }, "CSV"),
          " ",
          h("button", { type: "button", onClick: () => download("parquet") }, "Parquet"),
          " ",
          h("span", { class: "soft", role: "status" }, busy),
        ),
      ),
      h("p", { class: "unseen", role: "status", "aria-live": "polite" }, spoken),
      opened &&
        h(Cell, {
          data,
          lines,
          models,
          columns,
          ...opened,
          close: () => {
            setOpened(null);
            document.querySelector(".map").focus();
          },
          go: (place) => {
            if (place >= 0 && place < columns.length) {
              setOpened({ at: opened.at, column: columns[place] });
              setCursor((old) => ({ ...old, column: place }));
            }
          },
        }),
    );
  }

  async function explore(root) {
    const data = JSON.parse(await unpacked("map"));
    const unanswered = data.models.map(
      (model) => new Map(model.unanswered.map(([at, column, how]) => [`${at} ${column}`, how])),
    );
    data.outcome = (model, at, column) => unanswered[model].get(`${at} ${column}`);
    data.regionOf = data.names.map(
      (_, c) => Object.keys(data.regions).find((name) => data.regions[name].includes(c)) ?? "",
    );
    data.partly = data.models.some((model) => model.scores.some((row) => row.some((score) => score > 0 && score < 1)));
    data.longest = Math.min(40, Math.max(...data.ids.map((id) => id.length)));
    data.file = "posgap-answers";
    root.replaceChildren();
    render(h(Explorer, { data }), root);
    root.dataset.ready = "yes";
  }

  const root = document.getElementById("explorer");
  if (root) {
    if (typeof DecompressionStream === "undefined")
      root.textContent = "This browser is too old to unpack the examples; they are in predictions.jsonl.";
    else
      explore(root).catch((error) => {
        root.textContent = `The examples cannot be shown: ${error.message}`;
      });
  }
})();
