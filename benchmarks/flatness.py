"""How often tests of flatness refute it where it is true, and where it is not, under correlations of several shapes.

    python benchmarks/flatness.py [--quick] [--write] [--runs 600]

Each simulated sweep has rights and wrongs, or scores between 0 and 1, of n examples at P placements: thresholds, or
quantiles of a beta distribution, of normal numbers that are equally alike at any two placements (exchangeable) or more
alike the nearer the placements are (AR(1), as measured on the demo's base: 0.75, 0.66, 0.60 at lags 1 to 3).

- flips: `posgap.measurement.statistics.flatness_p`, the test that posgap uses.
- Q: Cochran's Q (1950), which takes any two placements to be equally alike.
- GG: the F test of repeated measures with degrees of freedom by Greenhouse and Geisser (1959).
- Wald: Hotelling's T^2 of the contrasts with the first placement; there is none with as many placements as examples.

The last line is JSON: the largest share (in percent) of flat models that each test calls uneven at the 5 % level, and
the mean power of each over the models that are not flat. `--write` puts the table into build/results/.
"""

import argparse
import json
from collections.abc import Iterator
from itertools import product

import numpy as np
import scipy.stats
from report import write_section

from posgap.foundation.tables import markdown
from posgap.measurement.statistics import LEVEL, flatness_p

SHAPES = {"exchangeable 0.5": 0.5, "AR(1) 0.6": 0.6, "AR(1) 0.9": 0.9, "exchangeable 0.9": 0.9}
SCORES = {"0.5": (0.5, True), "0.9": (0.9, True), "0.97": (0.97, True), "0.9, graded": (0.9, False)}


def simulated(accuracy: np.ndarray, n: int, shape: str, binary: bool, rng: np.random.Generator) -> np.ndarray:
    """Scores `[n, P]` of a model with this `accuracy [P]` (shares)."""
    own, correlation = rng.standard_normal((n, len(accuracy))), SHAPES[shape]
    if shape.startswith("exchangeable"):
        latent = np.sqrt(correlation) * rng.standard_normal((n, 1)) + np.sqrt(1 - correlation) * own
    else:
        latent = own
        for j in range(1, len(accuracy)):
            latent[:, j] = correlation * latent[:, j - 1] + np.sqrt(1 - correlation**2) * own[:, j]
    quantiles = scipy.stats.norm.cdf(latent)
    return (
        (quantiles < accuracy).astype(float)
        if binary
        else scipy.stats.beta.ppf(quantiles, 3 * accuracy, 3 - 3 * accuracy)
    )


def cochran(correct: np.ndarray) -> float:
    within, df = ((correct - correct.mean(axis=1, keepdims=True)) ** 2).sum(), correct.shape[1] - 1
    totals = correct.sum(axis=0)
    return scipy.stats.chi2.sf(df * ((totals - totals.mean()) ** 2).sum() / within, df) if within else 1.0


def greenhouse_geisser(correct: np.ndarray) -> float:
    contrasts = correct - correct.mean(axis=1, keepdims=True)
    covariance = np.cov(contrasts.T)
    if not (trace := np.trace(covariance)):
        return 1.0
    df = trace**2 / (covariance**2).sum()
    f = len(correct) * (contrasts.mean(axis=0) ** 2).sum() / trace
    return scipy.stats.f.sf(f, df, df * (len(correct) - 1))


def wald(correct: np.ndarray) -> float:
    (n, placements), contrasts = correct.shape, correct[:, 1:] - correct[:, :1]
    covariance = np.cov(contrasts.T).reshape(placements - 1, placements - 1)
    if n <= placements or np.linalg.matrix_rank(covariance) < placements - 1:
        return np.nan
    mean = contrasts.mean(axis=0)
    t = n * mean @ np.linalg.solve(covariance, mean)
    return scipy.stats.f.sf(t * (n - placements + 1) / ((n - 1) * (placements - 1)), placements - 1, n - placements + 1)


TESTS = {"flips": flatness_p, "Q": cochran, "GG": greenhouse_geisser, "Wald": wald}


def unevenness(placements: int) -> Iterator[tuple[str, np.ndarray]]:
    """Names and deviations `[P]` from the mean of a flat model and of three others."""
    at = np.linspace(-1, 1, placements)
    yield "flat", np.zeros(placements)
    yield "U", 0.1 * (at**2 - (at**2).mean())
    yield "hole", np.where(np.arange(placements) == placements // 2, -0.15, 0.0)
    yield "falling", -0.07 * at


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few models, in a minute")
    parser.add_argument("--write", action="store_true", help="write the table into build/results/")
    parser.add_argument("--runs", type=int, default=600, help="simulated models a cell")
    options = parser.parse_args()
    runs = 100 if options.quick else options.runs
    numbers, sizes = ((50,), (5, 20)) if options.quick else ((20, 50, 200), (2, 5, 20, 50))
    shares: dict[tuple[str, str, str], list[np.ndarray]] = {}
    for cell, ((shape, scores), n, placements) in enumerate(product(product(SHAPES, SCORES), numbers, sizes)):
        mean, binary = SCORES[scores]
        for name, deviations in unevenness(placements):
            if name != "flat" and (mean > 0.9 or not binary or placements < 3):
                continue
            rng = np.random.default_rng(cell)
            found = [
                [test(correct) for test in TESTS.values()]
                for correct in (simulated(mean + deviations, n, shape, binary, rng) for _ in range(runs))
            ]
            known = (~np.isnan(found)).sum(axis=0)
            refuted = 100 * (np.array(found) < LEVEL).sum(axis=0) / np.where(known, known, np.nan)
            shares.setdefault((name, shape, scores), []).append(refuted)
            print(name, shape, scores, n, placements, *refuted.round(1), sep=", ", flush=True)
    flat = {key: np.nanmax(each, axis=0) for key, each in shares.items() if key[0] == "flat"}
    power = {key: np.nanmean(each, axis=0) for key, each in shares.items() if key[0] != "flat"}
    if options.write:
        rows = [[*key, *(f"{share:.1f}" for share in each)] for key, each in (flat | power).items()]
        table = markdown(["model", "correlation", "mean", *TESTS], rows, left=3)
        write_section("statistics", "flatness", table)
    largest, average = (
        dict(zip(TESTS, np.array(summary(list(each.values()), axis=0)).round(1).tolist()))
        for summary, each in ((np.max, flat), (np.mean, power))
    )
    print(json.dumps({"runs": runs, "size": largest, "power": average}))


if __name__ == "__main__":
    main()
