// What the page embeds, unpacked, and what it is called in words.

const { h, render } = preact;
const { useEffect, useLayoutEffect, useMemo, useRef, useState } = preactHooks;

async function unpacked(name) {
  const text = document.getElementById(`data-${name}`).textContent;
  const bytes = Uint8Array.fromBase64
    ? Uint8Array.fromBase64(text)
    : Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

// Lines of JSON by their example; a line is parsed when it is asked for.
let lines;
const answerLines = () =>
  (lines ??= unpacked("answers").then((text) => {
    const byExample = new Map();
    for (const line of text.split("\n")) if (line) byExample.set(Number(/^\{"at":\s*(\d+)/.exec(line)[1]), line);
    return byExample;
  }));
const parsed = new Map();

// What was asked and answered of an example; null where the page does not hold it.
function answersOf(lines, at) {
  if (!parsed.has(at)) parsed.set(at, lines.has(at) ? JSON.parse(lines.get(at)) : null);
  return parsed.get(at);
}

// What a model said to a prompt, once for each sample.
function said(texts, model, column) {
  return texts.r[model][column].map((answer) => {
    const { text, thoughts, reason, ...more } = typeof answer === "number" ? { text: answer } : answer;
    return { ...more, text: texts.t[text], thoughts: texts.t[thoughts] ?? "", reason: texts.t[reason] ?? "" };
  });
}

const number = (value, digits = 1) => value.toFixed(digits);
const plural = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;
const inWords = (score, outcome) =>
  outcome ?? (score === 1 ? "right" : score === 0 ? "wrong" : `${number(100 * score, 0)} % right`);
const cssOf = (score, outcome) => (outcome ? "none" : score === 1 ? "full" : score === 0 ? "zero" : "part");
const changeOf = (before, after) =>
  after > before ? "gained" : after < before ? "lost" : after === 0 ? "both-wrong" : "both-right";
const CHANGES = { gained: "better", lost: "worse", "both-wrong": "wrong in both", "both-right": "alike in both" };
