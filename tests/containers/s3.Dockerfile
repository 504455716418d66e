# What stands in for the S3 server.
FROM localhost/posgap-test-base
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    python3 -m venv /opt/moto && /opt/moto/bin/pip install --no-cache-dir 'moto[server]==5.2.5'
ENTRYPOINT ["sh", "-c", "exec /opt/moto/bin/moto_server -H 127.0.0.1 -p $MOTO_PORT"]
