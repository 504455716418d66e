"""A sweep of ten thousand prompts to an endpoint: how fast they go out, whether any is lost, and in what memory.

    python benchmarks/endpoint.py [--quick] [--write] [--prompts 10000] [--concurrency 64] [--latency 0.5]

The endpoint is a process of its own on this machine that answers key-value prompts rightly after `latency` seconds.

- bare: as little as a client can be: `concurrency` tasks of asyncio that share httpx's client, post a prompt, read the
  text of the answer, and do nothing about anything that goes wrong.
- ours: `posgap.generation.openai` with every answer written down as it comes, as in `posgap sweep`.

The sides take turns; the best time of each counts. Then `posgap sweep` itself, in processes of its own, of a tenth of
the prompts and of all of them.

The last line is JSON: `throughput_ratio` (prompts a second, ours / bare), `lost` (prompts that the endpoint did not
see, or that are not among the predictions as rightly answered), `memory_growth` (peak memory of the whole sweep over
that of its tenth).
"""

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import httpx2
from report import conclude

from posgap.data.config import ImportConfig, MakeConfig
from posgap.data.verbs import import_examples, make
from posgap.foundation.files import read_jsonl
from posgap.foundation.tables import markdown
from posgap.generation.endpoint_parameters import EndpointParameters
from posgap.generation.generator import Sampling
from posgap.generation.openai import OpenAIGenerator
from posgap.measurement.unfinished import Unfinished
from posgap.tasks.placements import all_placements
from posgap.tasks.prompts import Prompt, TextPromptBuilder
from posgap.tasks.reading import read_examples
from posgap.tasks.registry import TASKS

RECORD = re.compile(r'"([\w-]+)": "([\w-]+)"')
POSITIONS = 10
RESIDENT: dict[int, float] = {}  # MiB of our side by the number of answers


async def serve(latency: float) -> None:
    """Answers until the process is ended; what it has seen it says at `GET /`."""
    prompts: Counter[int] = Counter()

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = re.search(rb"(?i)content-length: *(\d+)", head)
            if length:
                text = json.loads(await reader.readexactly(int(length[1])))["messages"][0]["content"]
                prompts[hash(text)] += 1
                records, _, question = text.rpartition("Key:")
                value = dict(RECORD.findall(records))[re.search(r'"([\w-]+)"', question)[1]]
                answer = {"choices": [{"message": {"content": value}, "finish_reason": "stop"}], "model": "local"}
                await asyncio.sleep(latency)
            else:
                answer = {"different": len(prompts), "requests": prompts.total()}
                prompts.clear()
            body = json.dumps(answer).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n")
            writer.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
            await writer.drain()

    async def until_closed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await converse(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(until_closed, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextmanager
def served(latency: float) -> Iterator[str]:
    """The address of such an endpoint."""
    process = subprocess.Popen([sys.executable, __file__, "--serve", str(latency)], stdout=subprocess.PIPE, text=True)
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.terminate()
        process.wait()


def bare(url: str, prompts: Iterator[str], concurrency: int) -> int:
    async def work(client: httpx2.AsyncClient) -> None:
        nonlocal answers
        for text in prompts:
            request = {"model": "local", "messages": [{"role": "user", "content": text}], "max_tokens": 100}
            response = await client.post(f"{url}/v1/chat/completions", json=request)
            answers += bool(response.json()["choices"][0]["message"]["content"])

    async def all_work() -> None:
        limits = httpx2.Limits(max_keepalive_connections=concurrency)
        async with httpx2.AsyncClient(timeout=60, limits=limits) as client:
            await asyncio.gather(*(work(client) for _ in range(concurrency)))

    answers = 0
    asyncio.run(all_work())
    return answers


def resident() -> float:
    """MiB of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def ours(url: str, prompts: Iterator[str], concurrency: int) -> int:
    generator = OpenAIGenerator("local", EndpointParameters(base_url=f"{url}/v1", concurrency=concurrency))
    with tempfile.TemporaryDirectory() as folder:
        kept = Unfinished(Path(folder), {})
        groups = ([Prompt(text)] for text in prompts)
        for index, number, completion in generator.generate(groups, Sampling(100)):
            kept.add(index, number, completion)
            if len(kept.completions) % 1000 == 0:
                RESIDENT[len(kept.completions)] = round(resident(), 1)
        return sum(completion.outcome == "answered" for completion in kept.completions.values())


def swept(url: str, examples: Path, out: Path, options, number: int) -> tuple[float, float, int]:
    """`posgap sweep` of so many prompts: seconds, peak MiB, and how many of the prompts were answered rightly."""
    positions = range(1, options.keys + 1, options.keys // POSITIONS)
    words = [
        *("sweep", "--task=kv", "--backend=openai", f"--base-url={url}/v1", "--model=local", f"--examples={examples}"),
        *(f"--limit={number // POSITIONS}", f"--n-docs={options.keys}", f"--concurrency={options.concurrency}"),
        *(f"--positions={','.join(map(str, islice(positions, POSITIONS)))}", f"--out={out}"),
    ]
    quiet = os.environ | {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9"}  # no tracking
    started = time.perf_counter()
    code = "from posgap.cli.main import main; main()"
    process = subprocess.Popen([sys.executable, "-c", code, *words], env=quiet, stderr=subprocess.PIPE)
    said = process.stderr.read().decode()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"posgap {' '.join(words)} failed:\n{said}")
    right = sum(row["correct"] is True or row["correct"] == 1 for _, row in read_jsonl(out / "predictions.jsonl"))
    return time.perf_counter() - started, usage.ru_maxrss / 1024, right


def compare(url: str, prompts: Callable[[], Iterator[str]], options) -> tuple[dict[str, float], int]:
    """The best rates of both sides in prompts a second, and how many prompts either lost."""
    rates, lost = {"bare": 0.0, "ours": 0.0}, 0
    for _ in range(options.repeats):
        for side in (bare, ours):
            started = time.perf_counter()
            answers = side(url, prompts(), options.concurrency)
            rate = options.prompts / (time.perf_counter() - started)
            rates[side.__name__] = max(rates[side.__name__], rate)
            lost += options.prompts - min(answers, httpx2.get(url).json()["different"])
    return rates, lost


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="500 prompts, once: under a minute on two cores")
    parser.add_argument("--write", action="store_true", help="write the figures into build/results/")
    parser.add_argument("--latency", type=float, default=0.5, help="seconds that the endpoint takes for an answer")
    parser.add_argument("--serve", type=float, help=argparse.SUPPRESS)
    for name, default in {"prompts": 10_000, "concurrency": 64, "keys": 75, "repeats": 2}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    if options.serve is not None:
        asyncio.run(serve(options.serve))
    if options.quick:
        options.prompts, options.repeats = 500, 1
    with tempfile.TemporaryDirectory() as folder, served(options.latency) as url:
        made = MakeConfig(
            kind="kv", out=Path(folder) / "m.jsonl", n_examples=options.prompts // POSITIONS, n_docs=options.keys
        )
        file = import_examples(ImportConfig(input=make(made), out=Path(folder) / "kv.jsonl"))
        build = TextPromptBuilder(TASKS["kv"], 100)
        placements = all_placements(options.keys, 1)[:: options.keys // POSITIONS][:POSITIONS]

        def prompts() -> Iterator[str]:
            return (build.text(example, placement) for example in read_examples(file) for placement in placements)

        rates, lost = compare(url, prompts, options)
        whole, rows, peaks = options.prompts, [], []
        for number in (whole // 10, whole):
            seconds, peak, right = swept(url, file, Path(folder) / str(number), options, number)
            seen = httpx2.get(url).json()
            lost += number - min(right, seen["different"])
            peaks.append(peak)
            rows.append([f"{number:,}", f"{seconds:.0f}", f"{seen['requests']:,}", f"{right:,}", f"{peak:.0f}"])
    lines = [
        markdown(["client", "prompts a second"], [[side, f"{rate:.1f}"] for side, rate in rates.items()]),
        "",
        markdown(["`posgap sweep`, prompts", "seconds", "requests", "right predictions", "peak MiB"], rows),
    ]
    if RESIDENT:
        lines += ["", f"Memory of our client, in MiB, after so many answers: {json.dumps(RESIDENT)}"]
    figures = {
        "throughput_ratio": round(rates["ours"] / rates["bare"], 3),
        "lost": lost,
        "memory_growth": round(peaks[1] / peaks[0], 3),
    }
    text = TEXT.replace("{prompts}", f"{whole:,}").replace("{concurrency}", str(options.concurrency))
    conclude("endpoint", text.replace("{latency}", f"{options.latency:g}"), lines, figures, options.write)


TEXT = """\
## Ten thousand prompts to an endpoint

Written by `benchmarks/endpoint.py --write` on {date}. {prompts} key-value prompts of some 6,000 characters,
{concurrency} at a time, go to an endpoint on the same cores that answers after {latency} s. "Bare" is tasks of asyncio
with httpx's client and nothing else. "Ours" is `posgap.generation.openai` with every answer written down as it comes.
`lost` counts prompts, of all these runs, that the endpoint did not see or that are not among the predictions as rightly
answered. What grows in `posgap sweep` is what it reads and writes: examples, answers and predictions, some 2 KB a
prompt. A prompt costs the client some 1.5 ms of a core, where the bare one takes 1.1: on a busy machine, or from some
500 answers a second on, that is what limits it.
"""


if __name__ == "__main__":
    main()
