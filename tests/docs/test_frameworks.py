"""The code for applications on docs/rag.md, in LangChain and Haystack themselves. `make frameworks` runs this."""

import importlib.util
import re
from pathlib import Path

import pytest

from posgap.mitigations.registry import PROMPT_MITIGATIONS

if not all(importlib.util.find_spec(name) for name in ("langchain_core", "haystack")):
    pytest.skip("LangChain and Haystack are not installed here: `make frameworks` runs these with both", True)

from haystack import Document as HaystackDocument
from haystack import Pipeline, component
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever

PAGE = (Path(__file__).parents[2] / "docs" / "rag.md").read_text("utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.partition("## In your application")[2], re.DOTALL)
TEXTS = [f"passage {number}" for number in range(5)]
AT_ENDS = [TEXTS[i] for i in (0, 2, 4, 3, 1)]


def block(word: str) -> str:
    (found,) = [text for text in BLOCKS if word in text]
    return found


@pytest.fixture
def names():
    found = {}
    for name, settings in (("reordering", {}), ("permutation", {"orders": 3})):
        mitigation = PROMPT_MITIGATIONS[name]
        exec(mitigation.write_code(mitigation.settings(**settings)), found)
    return found


def test_langchain_reorders_and_votes(names):
    class Fixed(BaseRetriever):
        def _get_relevant_documents(self, query, *, run_manager):
            return [Document(page_content=text) for text in TEXTS]

    seen = []

    def answer(question, passages):
        seen.append([passage.page_content for passage in passages])
        return "Two" if len(seen) > 1 else "one"

    exec(block("LangChain"), here := names | {"retriever": Fixed(), "question": "q", "answer": answer})
    assert [document.page_content for document in here["passages"]] == AT_ENDS
    assert here["voted"] == "Two" and all(sorted(order) == TEXTS for order in seen) and len(seen) == 3


def test_haystack_reorders(names):
    @component
    class Fixed:
        @component.output_types(documents=list[HaystackDocument])
        def run(self, query: str):
            return {"documents": [HaystackDocument(content=text) for text in TEXTS]}

    @component
    class Builder:
        @component.output_types(prompt=list[str])
        def run(self, documents: list[HaystackDocument]):
            return {"prompt": [document.content for document in documents]}

    pipeline = Pipeline()
    pipeline.add_component("retriever", Fixed())
    pipeline.add_component("prompt_builder", Builder())
    exec(block("haystack"), names | {"pipeline": pipeline})
    assert pipeline.run({"retriever": {"query": "q"}})["prompt_builder"]["prompt"] == AT_ENDS
