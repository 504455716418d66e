# Trainer's, JobSet's and Kueue's controllers, which were built here: their pods say which.
FROM scratch
COPY trainer jobset kueue /
USER 65532
