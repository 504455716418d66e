# What stands in for python:3.11-slim-bookworm where nothing can be pulled.
FROM scratch
ADD rootfs.tar /
RUN apt-get update && apt-get install --yes --no-install-recommends python3 python3-venv \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt /usr/share/doc /usr/share/man
