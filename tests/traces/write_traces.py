"""Writes the traces in this folder with LangChain and LlamaIndex themselves, of a retriever that knows two questions.

Not a test: for an environment of its own, `pip install langchain-core llama-index-core`, then
`python tests/traces/write_traces.py`. The files here were written by langchain-core 1.7.2 and llama-index-core 0.14.25.
"""

import json
import sys
from pathlib import Path

from langchain_core.documents import Document
from langchain_core.load import dumpd
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_core.tracers.run_collector import RunCollectorCallbackHandler
from llama_index.core import retrievers
from llama_index.core.callbacks import CallbackManager, CBEventType, LlamaDebugHandler
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.schema import NodeWithScore, TextNode

PASSAGES = {
    "Who won the first Nobel Prize in Physics?": [
        ("a1", "Marie Curie shared the prize in 1903.", 0.81),
        ("a2", "Wilhelm Röntgen received it in 1901 for X-rays.", 0.74),
        ("a3", "The prize is awarded in Stockholm.", 0.6),
        ("a4", "Alfred Nobel invented dynamite.", 0.4),
    ],
    "When did the Titanic sink?": [
        ("b1", "RMS Titanic sank on 15 April 1912.", 0.9),
        ("b2", "The Titanic was built in Belfast.", 0.7),
        ("b3", "Lusitania was torpedoed in 1915.", 0.5),
        ("b4", "Britannic was her sister ship.", 0.3),
    ],
}


def langchain(folder: Path) -> None:
    class Retriever(BaseRetriever):
        def _get_relevant_documents(self, query, *, run_manager):
            return [
                Document(page_content=text, id=name, metadata={"title": f"Title {name}", "score": score})
                for name, text, score in PASSAGES[query]
            ]

    retrieved = RunnablePassthrough.assign(context=RunnableLambda(lambda given: given["input"]) | Retriever())
    chain = retrieved.assign(answer=RunnableLambda(lambda _: "I think it is so."))
    collector = RunCollectorCallbackHandler()
    results = [chain.invoke({"input": question}, config={"callbacks": [collector]}) for question in PASSAGES]

    def with_called(run):
        return [run, *(inner for called in run.child_runs for inner in with_called(called))]

    runs = [inner for run in collector.traced_runs for inner in with_called(run)]
    lines(folder / "langchain_runs.jsonl", [run.model_dump(mode="json") for run in runs])
    lines(folder / "langchain_results.jsonl", map(dumpd, results))


def llama_index(folder: Path) -> None:
    class Retriever(retrievers.BaseRetriever):
        def _retrieve(self, query_bundle):
            return [
                NodeWithScore(node=TextNode(text=text, id_=name, metadata={"title": f"Title {name}"}), score=score)
                for name, text, score in PASSAGES[query_bundle.query_str]
            ]

    events = []

    class Handler(BaseEventHandler):
        def handle(self, event, **_):
            if "Retrieval" in type(event).__name__ or "Query" in type(event).__name__:
                events.append(json.loads(event.model_dump_json()))

    get_dispatcher().add_event_handler(Handler())
    debugging = LlamaDebugHandler(print_trace_on_end=False)
    callbacks = CallbackManager([debugging])
    synthesizer = get_response_synthesizer(llm=MockLLM(), callback_manager=callbacks)
    engine = RetrieverQueryEngine(Retriever(callback_manager=callbacks), synthesizer, callback_manager=callbacks)
    responses = [(question, engine.query(question)) for question in PASSAGES]
    lines(
        folder / "llamaindex_responses.jsonl",
        [{"query": q, "response": str(r), "source_nodes": [n.to_dict() for n in r.source_nodes]} for q, r in responses],
    )
    lines(folder / "llamaindex_events.jsonl", events)
    pairs = debugging.get_event_pairs(CBEventType.RETRIEVE)
    lines(
        folder / "llamaindex_callbacks.jsonl",
        [
            {"event_type": event.event_type.value, "id_": event.id_, "payload": plain(event.payload)}
            for pair in pairs
            for event in pair
        ],
    )


def plain(value):
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if isinstance(value, list):
        return [plain(part) for part in value]
    if isinstance(value, dict):
        return {getattr(name, "value", name): plain(part) for name, part in value.items()}
    return value


def lines(file: Path, rows) -> None:
    file.write_text("".join(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else __file__).resolve()
    target = target if target.is_dir() else target.parent
    langchain(target)
    llama_index(target)
