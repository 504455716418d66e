"""What a step of a KFP run does around its stage: arguments in, artifacts out, a process for each GPU."""
