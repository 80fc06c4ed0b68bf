"""The SQS dialect of the HTTP port: the API's actions on the queues of a broker."""
