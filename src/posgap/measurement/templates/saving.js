// Answers as CSV.

const COLUMNS = [
  "id",
  "model",
  "position",
  "region",
  "sample",
  "score",
  "outcome",
  "question",
  "response",
  "thoughts",
  "reason",
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
          said(texts, m, column).forEach((answer, sample) =>
            out.push([
              ...where,
              sample,
              answer.score ?? score,
              answer.outcome ?? "answered",
              texts.q,
              answer.text,
              answer.thoughts,
              answer.reason,
            ]),
          );
      }
    });
  }
  return out;
}

function csv(rows) {
  const field = (value) => {
    const plain = value === null ? "" : String(value);
    // A spreadsheet takes a text that begins so for a formula, and runs it.
    const text = typeof value === "string" && /^[=+\-@\t\r]/.test(plain) ? `'${plain}` : plain;
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const lines = [COLUMNS, ...rows].map((row) => row.map(field).join(","));
  return `${lines.join("\r\n")}\r\n`;
}

function save(text, name) {
  const link = Object.assign(document.createElement("a"), {
    href: URL.createObjectURL(new Blob([text], { type: "text/csv" })),
    download: name,
  });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}
