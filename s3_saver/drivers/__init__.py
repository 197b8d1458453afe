"""What runs operations: over boto3, over aiobotocore, and over a dictionary."""
