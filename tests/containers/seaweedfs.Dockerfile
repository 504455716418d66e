# What stands in for the S3 server's image, with a program that was built here; and CoreDNS.
FROM localhost/posgap-test-base
COPY coredns weed /usr/bin/
COPY --chmod=755 entrypoint.sh /
COPY filer.toml /etc/seaweedfs/
ENTRYPOINT ["/entrypoint.sh"]
