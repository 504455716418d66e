// The map of examples by positions.

const ROW = 24; // height of an example, pixels
const TALLEST = 4000; // rows of the picture of the whole map

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
      height: Math.max(1, Math.min(rows.length, TALLEST)),
    }).getContext("2d");
    // Of more examples than there are pixels every so manyth is drawn.
    const every = Math.max(1, rows.length / TALLEST);
    for (let y = 0; y < rows.length / every; y++)
      columns.forEach((column, x) => {
        drawn.fillStyle = colors[cellOf(data, pair, panel, rows[Math.floor(y * every)], column).css];
        drawn.fillRect(x, y, 1, 1);
      });
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
  const asked = useMemo(() => {
    const lengths = lines ? data.ids.slice(0, 30).map((_, at) => answersOf(lines, at)?.q.length ?? 0) : [];
    return Math.min(40, Math.max(0, ...lengths));
  }, [lines]);
  const label = narrow ? 92 : Math.max(130, Math.min(view.width * 0.26, 34 + 7 * (data.longest + asked)));
  const n = columns.length,
    room = view.width - label - panels.length * gap;
  const cell = Math.max(narrow ? 14 : 7, Math.min(60, Math.floor(room / (n * panels.length))));
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
    const inSight = at.clientHeight - head;
    if (y < at.scrollTop) at.scrollTop = y;
    else if (y + ROW > at.scrollTop + inSight) at.scrollTop = y + ROW - inSight;
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
        { class: "grid-body",
          role: "rowgroup", style: { width: `${width}px`, height: `${rows.length * ROW}px` } },
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
