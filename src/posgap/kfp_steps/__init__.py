"""The glue between a KFP step and its stage: arguments, artifacts, and a process for each GPU."""
