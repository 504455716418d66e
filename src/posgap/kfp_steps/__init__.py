"""The glue between a KFP step and its stage: arguments, artifacts, processes for GPUs, and unfinished work in S3."""
