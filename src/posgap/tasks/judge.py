"""Answers to be judged, in every order: of two, or of more."""

from posgap.tasks.choosing import Choosing, lettered

JUDGE = Choosing(
    name="judge",
    help="the best of two or more answers to a question, which the model judges",
    template=(
        "Compare the answers to the following question, and choose the best one. Neither the order of the answers nor "
        "their length says which is better. Reply with the letter of the best answer alone.\n\n"
        "{documents}\n\nQuestion: {question}\nBest answer:"
    ),
    render=lettered("Answer {letter}:\n{text}", "\n\n"),
    metric="em",
    max_new_tokens=32,
    synthetic="choice",
)
