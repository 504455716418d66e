// The map with its filters, downloads and the cell that is open.

function Explorer({ data }) {
  const several = data.models.length > 1;
  const [state, setState] = useState({
    outcome: "any",
    compared: "any",
    position: "",
    region: "",
    words: "",
    sort: several ? "gains" : "worst",
    view: window.innerWidth < 720 || data.names.length > 40 ? "change" : "both",
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
  const download = async () => {
    setBusy("Making the file …");
    try {
      const made = await table(data, rows, columns);
      save(csv(made), `${data.file}.csv`);
      setBusy(`${plural(made.length, "answer")} in ${data.file}.csv`);
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
        "Click a cell, or move with the arrow keys and press Enter: the response. Esc closes.",
      ),
      h(
        "p",
        { class: "downloads" },
        "Save these as ",
        h("button", { type: "button", onClick: download }, "CSV"),
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
            const panel = Math.floor(cursor.column / columns.length);
            setCursor({ ...cursor, column: panel * columns.length + place });
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
  data.longest = data.ids.reduce((longest, id) => Math.min(40, Math.max(longest, id.length)), 0);
  data.file = "posgap-answers";
  root.replaceChildren();
  render(h(Explorer, { data }), root);
  root.dataset.ready = "yes";
  performance.mark("map");
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
