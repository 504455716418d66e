# The image posgap-gpu-train without CUDA and flash-attn: DeepSpeed on CPUs.
ARG CPU
FROM ${CPU}
USER root
RUN apt-get update && apt-get install --yes --no-install-recommends g++ python3-dev && rm -rf /var/lib/apt/lists/*
# Two compilers at once take 2 GB.
ENV MAX_JOBS=1
# Headers of torch, without which DeepSpeed cannot compile its part for CPUs.
COPY include /opt/posgap/lib/python3.11/site-packages/torch/include
COPY constraints.txt /
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    pip install --no-build-isolation --no-cache-dir --constraint /constraints.txt deepspeed ninja
USER 10001:10001
