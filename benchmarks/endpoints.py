"""Asking an endpoint: posgap's client beside fixed numbers of requests at a time, Inspect and lm-evaluation-harness.

    python benchmarks/endpoints.py [--quick] [--write] [--prompts 1000] [--slots 64] [--latencies 0.05,0.5] ...
    python benchmarks/endpoints.py --peers /path/to/python

A stub in a process of its own answers `slots` requests at a time, each after `latency` seconds; others wait in line.
All sides ask it the same key-value prompts (`docs` records each). One after the other, `repeats` times, in turn:

- found: posgap as it is, which finds the number of requests at a time by itself.
- fixed N: posgap with N requests at a time from the first on.
- inspect, lm-eval: the peers, with as many connections as there are slots, by the python of `--peers`, an environment
  with inspect-ai, openai and lm-eval[api]; left out without it. Their time is that of their evaluation alone.

The processor's seconds for 1,000 requests are measured against a stub that answers at once, for each of `in-flight`
requests at a time: those of the whole process from the first prompt to the last answer.

The last line is JSON: `found_ratio` (the worst of found / the best fixed number, of the smallest times), and
`cpu_seconds` by the number of requests at a time. `identical` says that all sides of posgap got the same answers.
`--write` puts the figures into build/results/.
"""

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from report import conclude

from posgap.data.synthetic import uuid_records
from posgap.foundation.tables import markdown
from posgap.generation.congestion import Window
from posgap.generation.endpoint_parameters import EndpointParameters
from posgap.generation.generator import Sampling
from posgap.generation.openai import OpenAIGenerator
from posgap.tasks.prompts import Prompt

FIXED = (1, 8, 10, 32, 64, 128, 256)


class Stub(asyncio.Protocol):
    """A connection to a server that answers `slots` requests at a time, each after some seconds."""

    slots: asyncio.Semaphore
    seconds = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport, self.read = transport, b""

    def data_received(self, data: bytes) -> None:
        self.read += data
        while (ends := self.read.find(b"\r\n\r\n")) >= 0:
            head = self.read[:ends].lower()
            length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
            if len(self.read) < ends + 4 + length:
                return
            body, self.read = self.read[ends + 4 : ends + 4 + length], self.read[ends + 4 + length :]
            asyncio.get_running_loop().create_task(self.answer(body))

    async def answer(self, body: bytes) -> None:
        text = json.loads(body)["messages"][-1]["content"]
        if self.seconds:
            async with self.slots:
                await asyncio.sleep(self.seconds)
        said = {
            "id": "chatcmpl-0",
            "object": "chat.completion",
            "created": 0,
            "model": "stub",
            "choices": [
                {"index": 0, "message": {"role": "assistant", "content": str(len(text))}, "finish_reason": "stop"}
            ],
            "usage": {"prompt_tokens": len(text) // 4, "completion_tokens": 5, "total_tokens": len(text) // 4 + 5},
        }
        content = json.dumps(said).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        if not self.transport.is_closing():
            self.transport.write(head.encode() + content)


async def serve(slots: int, seconds: float) -> None:
    Stub.slots, Stub.seconds = asyncio.Semaphore(slots), seconds
    server = await asyncio.get_running_loop().create_server(Stub, "127.0.0.1", 0, backlog=2048)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextmanager
def served(slots: int, seconds: float) -> Iterator[str]:
    """The address of a stub in a process of its own."""
    call = [sys.executable, __file__, "--serve", str(slots), str(seconds)]
    with subprocess.Popen(call, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
        finally:
            process.terminate()


class Fixed(Window):
    """As many requests at a time from the first to the last."""

    def __init__(self, size: int):
        super().__init__(size)
        self.size = float(size)

    def note_answer(self, sent: float) -> None:
        pass


def make_prompts(number: int, docs: int) -> list[str]:
    """Key-value prompts, all different."""
    texts = []
    for row in uuid_records(number, docs, seed=1):
        records = "\n".join(f'"{key}": "{value}"' for key, value in row["ordered_kv_records"])
        texts.append(f'Extract the value.\n\n{records}\n\nKey: "{row["key"]}"\nCorresponding value:')
    return texts


def ask(address: str, texts: list[str], fixed: int = 0, most: int = 256) -> tuple[float, float, list[str], int]:
    """Seconds by the clock, and of this process's processors, the answers, and the requests at a time at last."""
    generator = OpenAIGenerator("stub", EndpointParameters(base_url=address, concurrency=fixed or most))
    if fixed:
        generator.window = Fixed(fixed)
    began, cpu, answers = time.perf_counter(), cpu_seconds(), [""] * len(texts)
    for index, _, completion in generator.generate(([Prompt(text)] for text in texts), Sampling(100, opened=None)):
        answers[index] = completion.text
    return time.perf_counter() - began, cpu_seconds() - cpu, answers, generator.pace.at_once


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


PEERS = {
    "inspect": """
import json, sys, time, resource
def cpu():
    used = resource.getrusage(resource.RUSAGE_SELF); return used.ru_utime + used.ru_stime
from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.scorer import exact
from inspect_ai.solver import generate
from inspect_ai.model import get_model, GenerateConfig
address, connections, file, logs = sys.argv[1:]
texts = json.load(open(file))
model = get_model("openai/stub", base_url=address, api_key="x", responses_api=False)
task = Task(dataset=[Sample(input=text, target=str(len(text))) for text in texts], solver=generate(), scorer=exact())
began, used = time.perf_counter(), cpu()
eval(task, model=model, max_connections=int(connections), max_samples=int(connections), display="none", log_dir=logs,
     temperature=0, max_tokens=100, log_samples=False)
print(json.dumps([time.perf_counter() - began, cpu() - used]))
""",
    "lm-eval": """
import json, sys, time, resource
def cpu():
    used = resource.getrusage(resource.RUSAGE_SELF); return used.ru_utime + used.ru_stime
from lm_eval.models.openai_completions import LocalChatCompletion
from lm_eval.models.api_models import JsonChatStr
from lm_eval.api.instance import Instance
address, connections, file, logs = sys.argv[1:]
texts = json.load(open(file))
model = LocalChatCompletion(base_url=address + "/chat/completions", model="stub", num_concurrent=int(connections),
                            tokenized_requests=False, tokenizer_backend=None)
asked = [Instance("generate_until", {}, (JsonChatStr(json.dumps([{"role": "user", "content": text}])),
         {"until": [], "max_gen_toks": 100, "temperature": 0}), i) for i, text in enumerate(texts)]
began, used = time.perf_counter(), cpu()
said = model.generate_until(asked)
assert said == [str(len(text)) for text in texts], said[:3]
print(json.dumps([time.perf_counter() - began, cpu() - used]))
""",
}


def ask_peer(python: str, name: str, address: str, connections: int, texts: list[str], folder: Path) -> list[float]:
    """Seconds by the clock and of the processor that a peer's evaluation took."""
    file = folder / "texts.json"
    file.write_text(json.dumps(texts))
    call = [python, "-c", PEERS[name], address, str(connections), str(file), str(folder / "logs")]
    done = subprocess.run(call, capture_output=True, text=True, env={"OPENAI_API_KEY": "x", "HOME": str(folder)})
    if done.returncode:
        raise SystemExit(f"{name}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().rpartition("\n")[2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="few prompts: the sides agree, and no figure counts")
    parser.add_argument("--write", action="store_true", help="write the figures into build/results/")
    parser.add_argument("--prompts", type=int, default=2000)
    parser.add_argument("--docs", type=int, default=20)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--latencies", default="0.05,0.5")
    parser.add_argument("--in-flight", default="32,128,512")
    parser.add_argument("--fixed", default=",".join(map(str, FIXED)))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--peers", default="", help="python of an environment with the peers")
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve(int(options.serve[0]), float(options.serve[1])))
        return
    if options.quick:
        options.prompts, options.latencies, options.repeats = 200, "0.02", 1
        options.in_flight, options.fixed = "32", "8,64"
    measure(options)


def measure(options: argparse.Namespace) -> None:
    import tempfile

    texts = make_prompts(options.prompts, options.docs)
    fixed = [int(number) for number in options.fixed.split(",")]
    rows, lines, ratios, right = [], [], [], [str(len(text)) for text in texts]
    identical = True
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for latency in map(float, options.latencies.split(",")):
            # One and eight at a time take minutes, and nobody's best: by the formula.
            sides = [0, *(number for number in fixed if options.prompts * latency / number < 60)]
            best: dict[str, float] = {}
            with served(options.slots, latency) as address:
                for _ in range(options.repeats):
                    for side in sides:
                        seconds, _, answers, at_once = ask(address, texts, side)
                        identical &= answers == right
                        label = f"fixed {side}" if side else "found"
                        best[label] = min(best.get(label, seconds), seconds)
                        lines.append(f"{latency} s, {label}: {seconds:.2f} s, {at_once} at once")
                    for peer in PEERS if options.peers else ():
                        seconds, _ = ask_peer(options.peers, peer, address, options.slots, texts, folder)
                        best[peer] = min(best.get(peer, seconds), seconds)
            least = min(seconds for label, seconds in best.items() if label.startswith("fixed"))
            ratios.append(best["found"] / least)
            rows += [[f"{latency:g} s", label, f"{best[label]:.2f}", f"{best[label] / least:.2f}"] for label in best]
        cpu: dict[str, dict[str, float]] = {}
        with served(10**6, 0.0) as address:
            for _ in range(options.repeats):
                for number in map(int, options.in_flight.split(",")):
                    used = {"posgap": ask(address, texts, number)[1]}
                    for peer in PEERS if options.peers else ():
                        used[peer] = ask_peer(options.peers, peer, address, number, texts, folder)[1]
                    for side, seconds in used.items():
                        each = seconds / len(texts) * 1000
                        cpu.setdefault(side, {})[str(number)] = min(each, cpu.get(side, {}).get(str(number), each))
    text = markdown(["an answer takes", "side", "seconds", "of the best fixed number's"], rows) + "\n"
    numbers = options.in_flight.split(",")
    table = [[side, *(f"{cpu[side][number]:.2f}" for number in numbers)] for side in cpu]
    text += markdown(["seconds of CPU for 1,000 requests", *(f"{number} at a time" for number in numbers)], table)
    figures = {"found_ratio": round(max(ratios), 3), "cpu_seconds": cpu["posgap"], "identical": identical}
    conclude("endpoints", text, lines, figures, options.write)


if __name__ == "__main__":
    main()
