// Which examples are shown, and in which order.

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
