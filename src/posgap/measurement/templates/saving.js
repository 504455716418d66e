// Answers as CSV and as parquet.

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
