"""The gate: its rules, and the verdict on a model that asks to be admitted."""
