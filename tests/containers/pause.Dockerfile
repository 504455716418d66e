# What holds a pod's network.
FROM localhost/posgap-test-base
CMD ["sleep", "infinity"]
