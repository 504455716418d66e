"""A sweep in words, as one would cite it."""

from posgap.measurement.max_unanswered import NOTABLE
from posgap.measurement.statistics import ends
from posgap.measurement.sweeps import Sweep
from posgap.tasks.positions import format_positions

SIGNED = "+.1f"


def summary_text(sweep: Sweep) -> list[str]:
    """Sentences with the figures that matter and their intervals."""
    place = "gold documents" if sweep.by_category else "gold document"
    precision = f", answered in {sweep.asked.dtype}" if sweep.asked.dtype not in ("", "auto") else ""
    sentences = [
        f"Accuracy ({sweep.metric}, in percent) is highest with the {place} at {format_positions(sweep.advantageous)} "
        f"({max(sweep.accuracy):.1f}) and lowest at {format_positions(sweep.worst.placement)} "
        f"({sweep.worst.accuracy:.1f}): a gap of {sweep.gap:.1f} points (95 % interval {ends(sweep.gap_ci95)}). "
        f"A model without position bias would show about {sweep.gap_noise:.1f} by chance.",
        f"The mean over {len(sweep.placements)} placements is {sweep.mean:.1f} ({ends(sweep.mean_ci95)}), "
        f"of {sweep.sample_text}{precision}.",
    ]
    if sweep.mitigation:
        beside = "; baselines with fewer documents were asked without it" if sweep.baselines else ""
        sentences.append(
            f"Asked through the mitigation {sweep.mitigation.phrase}: a position is where the {place} stood "
            f"before it{beside}."
        )
    if sweep.served and sweep.served.notes:
        sentences.append(f"An application answered: {'; '.join(sweep.served.notes)}.")
    if sweep.baselines:
        parts = [f"{name} {asked.accuracy:.1f} ({ends(asked.ci95)})" for name, asked in sweep.baselines.items()]
        sentences.append(f"Asked otherwise, the same examples came out at: {', '.join(parts)}.")
    retrieved = sweep.baselines.get("as-retrieved")
    if retrieved and retrieved.best_over_ci95:
        sentences.append(
            "With the relevant passages at the best position, accuracy differs from the retriever's order "
            f"by {retrieved.best_over:+.1f} points ({ends(retrieved.best_over_ci95, SIGNED)})."
        )
    if sweep.outcomes:
        sentences += filter(None, [sweep.outcomes.copies, sweep.outcomes.unanswered_text(sweep.placements)])
    sentences.append(position_sentence(sweep))
    shape = sweep.named_shape
    if shape:
        first = ends(shape.beginning_over_middle_ci95, SIGNED)
        last = ends(shape.end_over_middle_ci95, SIGNED)
        sentences.append(
            f"The curve is {shape.name}: against the middle ({_positions(shape.middle)}), the beginning "
            f"({_positions(shape.ends)}) differs by {shape.beginning_over_middle:+.1f} points ({first}), and the end "
            f"by {shape.end_over_middle:+.1f} ({last})."
        )
    if sweep.same_place:
        sentences.append(sweep.same_place.habit_text)
    if sweep.choices:
        sentences.append(sweep.choices.preference_text)
    return sentences


def position_sentence(sweep: Sweep) -> str:
    """Says whether position matters, and if the examples are too few to say by how much."""
    test = f"(sign-flip test, {p_value(sweep.flatness.p)})"
    if not sweep.flatness.is_refuted:
        return f"There is no evidence that position matters {test}."
    too_few = f", but {sweep.sample_text} are too few to say by how much" if sweep.gap_ci95[0] <= 0 else ""
    return f"Position matters {test}{too_few}."


def _positions(number: int) -> str:
    return f"{number} position{'s' * (number > 1)}"


def copies_warning(sweep: Sweep) -> str:
    """Says how many answers are cut or copies, and what to do; empty if at most `NOTABLE` percent at each placement."""
    if not sweep.outcomes:
        return ""
    worst = dict.fromkeys(("cut", "echo", "others"), 0.0)
    for counts in sweep.outcomes.by_placement:
        for name in worst:
            worst[name] = max(worst[name], counts.percent(getattr(counts, name)))
    if max(worst.values()) <= NOTABLE:
        return ""
    remedies = []
    if not sweep.asked.template and not sweep.asked.stop:
        remedies.append("""--stop '["\\n\\n"]', at which a model without a chat template ends its answer""")
    if sweep.asked.template and max(worst["echo"], worst["others"]) > NOTABLE:
        remedies.append('a system message, --system "Reply with the answer alone."')
    if worst["cut"] > NOTABLE >= worst["echo"]:  # of a copy there would only be more
        remedies.append(f"a higher limit, --max-new-tokens {2 * sweep.asked.max_new_tokens}")
    tried = f": try {', or '.join(remedies)}" if remedies else ""
    return f"{sweep.outcomes.copies} Cut or copied answers may be right by chance{tried}."


def p_value(p: float) -> str:
    """A p-value as papers print it."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"
