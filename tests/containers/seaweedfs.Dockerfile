# What stands in for the S3 server's image, with a program that was built here; and CoreDNS.
FROM localhost/posgap-test-base
COPY coredns weed /usr/bin/
COPY --chmod=755 entrypoint.sh /
COPY filer.toml /etc/seaweedfs/
# It sets aside seven volumes of a GB for each bucket, as far as the disk has room, and then has none for the next.
RUN printf '[master.volume_growth]\ncopy_1 = 1\n' > /etc/seaweedfs/master.toml
ENTRYPOINT ["/entrypoint.sh"]
