"""Multiple-choice questions, with the right option at every letter."""

from posgap.tasks.choosing import Choosing, lettered

OPTIONS = Choosing(
    name="options",
    help="a multiple-choice question",
    template=(
        "Choose the right option of the following multiple-choice question, and reply with its letter alone.\n\n"
        "{documents}\n\nQuestion: {question}\nAnswer:"
    ),
    render=lettered("{letter}. {text}", "\n"),
    metric="em",
    max_new_tokens=32,
    synthetic="choice",
)
