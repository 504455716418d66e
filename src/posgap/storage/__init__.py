"""Where things are: what a path names, what it was made from, files at addresses that are only read, and S3, through
boto3, read by a cache and written so that nothing half-written is taken for complete."""
