# What stands in for the image postgres: it takes the same variables, and the same user runs it.
FROM localhost/posgap-test-base
RUN useradd --uid 999 --create-home server \
    && apt-get update && apt-get install --yes --no-install-recommends postgresql && rm -rf /var/lib/apt/lists/* \
    && mkdir -p /var/lib/postgresql/data && chmod 3777 /var/lib/postgresql/data
COPY postgres.sh /
ENTRYPOINT ["sh", "/postgres.sh"]
