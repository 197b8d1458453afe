"""What is done to the bucket, one file per verb, written once for all drivers. No I/O, no clock, no dice here."""
