"""The KFP components of all steps: what each takes and gives, and how one is made of that."""
