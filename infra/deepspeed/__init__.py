"""DeepSpeed configurations that `posgap distill --deepspeed zero2|zero3` takes."""
