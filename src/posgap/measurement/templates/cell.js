// A cell of the map, opened.

const LONG = 20000; // characters of a text that are shown at once

// A text as somebody or some model wrote it: in its own direction, and long ones not at once.
function Text({ text, label }) {
  const [whole, setWhole] = useState(false);
  return h(
    "div",
    null,
    h(
      "pre",
      { dir: "auto", tabIndex: 0, role: "region", "aria-label": label },
      whole ? text : text.slice(0, LONG),
    ),
    text.length > LONG &&
      !whole &&
      h(
        "button",
        { type: "button", onClick: () => setWhole(true) },
        `Show all ${text.length.toLocaleString("en")} characters`,
      ),
  );
}

function Answer({ answer, label }) {
  return h(
    "div",
    null,
    answer.outcome && h("p", null, h("strong", { class: "wrong" }, answer.outcome), answer.reason ? `: ${answer.reason}` : ""),
    (answer.text || !answer.outcome) && h(Text, { text: answer.text, label }),
    answer.score !== undefined && h("p", { class: "soft" }, inWords(answer.score)),
    answer.echo && h("p", { class: "soft" }, "This answer repeats the prompt."),
    answer.cut && h("p", { class: "soft" }, "The limit of tokens ended this answer."),
    answer.thoughts &&
      h("details", null, h("summary", null, "Thoughts"), h(Text, { text: answer.thoughts, label: "Thoughts" })),
  );
}

function Cell({ data, lines, at, column, columns, models, close, go }) {
  const dialog = useRef(),
    texts = lines && answersOf(lines, at);
  useEffect(() => {
    dialog.current.showModal();
  }, []);
  const name = data.names[column],
    place = columns.indexOf(column);
  const key = (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step || event.target.closest("pre, summary")) return;
    event.preventDefault();
    go(place + step);
  };
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
              "What was answered here is in predictions.jsonl: the page holds some MB of texts, of the examples that depend on the position first.",
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
                    said(texts, m, column).map((answer, i) =>
                      h(Answer, { key: `${at}-${column}-${i}`, answer, label: `Response of ${data.models[m].label}` }),
                    ),
                  );
                }),
              ),
            ],
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
                        answer = said(texts, m, c)[0];
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
                          h("bdi", null, outcome ? answer.reason.slice(0, 200) || outcome : answer.text.slice(0, 200)),
                          answer.text.length > 200 && " …",
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
