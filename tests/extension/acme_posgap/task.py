"""A task: who is meant by a description among labelled notes."""

from posgap.tasks.task import Task

NOTES = Task(
    name="notes",
    help="the label of a note",
    template="Find the note.\n\n{documents}\n\nWhich note says: {question}\nLabel:",
    render=lambda documents: "\n".join(f"- {document.title}: {document.text}" for document in documents),
    metric="em",
    max_new_tokens=8,
)
