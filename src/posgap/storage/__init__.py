"""S3, through boto3: reading by a cache, writing so that nothing half-written is taken for complete."""
